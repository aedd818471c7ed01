#include "models/common/blocks.h"

#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/layers/norm_mlp.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>

namespace trireme {

namespace {

/// One block's tensors by the names of its table's layers: the unit's, then A and B of every target, magnitudes and
/// trained biases.
class BlockTensors {
 public:
  BlockTensors(const BlockPass& pass, int64_t index, const UnitTensors& unit)
      : pass_(pass), block_(*pass.block), index_(static_cast<uint64_t>(index)), unit_(unit) {
    if (!pass.adapters) return;
    targets_ = &pass.adapters->targets[index_];
    magnitudes_ = static_cast<size_t>(block_.parameters()) + 2 * targets_->size();
    biases_ = magnitudes_ + (pass.adapters->dora ? targets_->size() : 0);
  }

  /// `branch`: Norm::branch.
  Norm norm(const char* name, const std::shared_ptr<BranchGradient>& branch = nullptr) {
    const int layer = find(name);
    if (layer < 0) return {};
    Norm norm = norm_of(unit_[block_.weight_position(layer)], bias(layer), pass_.norm_eps, block_.norms_plus_one);
    norm.branch = branch;
    return norm;
  }
  Linear linear(const char* name) {
    const int layer = find(name);
    TRIREME_CHECK(layer >= 0, "the block has no layer ", name);
    return {unit_.weight(block_.weight_position(layer)), bias(layer), {adapters(layer), pass_.lora_dropout}};
  }
  /// Every layer of the table was asked for.
  void check_complete() const {
    TRIREME_CHECK(found_ == block_.layers.size(), "the forward uses ", found_, " layers of a block, its table has ",
                  block_.layers.size());
  }

 private:
  int find(const char* name) {
    const int layer = block_.find(name);
    found_ += layer >= 0 ? 1 : 0;
    return layer;
  }
  at::Tensor bias(int layer) const {
    const int position = block_.bias_position(layer);
    if (position < 0) return {};
    const at::Tensor& frozen = unit_[position];
    if (!pass_.adapters) return frozen;
    std::vector<at::Tensor> parts;  // of the bias: trained ones, and what is between them
    int64_t row = 0;
    for (size_t i = 0; const TrainedBias& trained : pass_.adapters->biases[index_]) {
      const size_t parameter = biases_ + i++;
      if (trained.layer != layer) continue;
      if (row < trained.row_begin) parts.push_back(frozen.narrow(0, row, trained.row_begin - row));
      parts.push_back(unit_.values[parameter].to(frozen.scalar_type()));
      row = trained.row_begin + trained.rows;
    }
    if (row == 0) return frozen;
    if (row < frozen.size(0)) parts.push_back(frozen.narrow(0, row, frozen.size(0) - row));
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }
  std::vector<LoraAdapter> adapters(int layer) const {
    if (targets_ == nullptr) return {};
    const at::TensorList pairs = unit_.values.slice(static_cast<size_t>(block_.parameters()));
    std::vector<LoraAdapter> list;
    for (size_t t = 0; const LoraTarget& target : *targets_) {
      if (target.layer == layer)
        list.push_back({pairs[2 * t], pairs[2 * t + 1], target.row_begin, index_ * pass_.streams + target.index,
                        target.strength.scale, pass_.adapters->dora ? unit_.values[magnitudes_ + t] : at::Tensor()});
      ++t;
    }
    return list;
  }

  const BlockPass& pass_;
  const BlockTable& block_;
  uint64_t index_;
  const UnitTensors& unit_;
  const std::vector<LoraTarget>* targets_ = nullptr;  // of this block; null: none
  size_t magnitudes_ = 0, biases_ = 0;                // where they begin in unit_
  size_t found_ = 0;
};

/// Attention of a projection [T, (N + 2 K) H] laid out q | k | v, which is given up: [T, N H].
at::Tensor attend(const BlockPass& pass, int rope, const at::Tensor& qkv, const AttentionOptions& options,
                  KeptAttention* kept) {
  const BlockTable& block = *pass.block;
  const int64_t n = block.heads, k = block.kv_heads, width = block.head_dim;
  const bool rotates = block.rotary && rope >= 0;
  const auto heads = [&] { return qkv.view({qkv.size(0), n + 2 * k, width}); };
  if (!rotates && pass.exchange == nullptr)
    return attention_of_packed(heads(), k, pass.sequences, options, kept).flatten(1);
  std::array<at::Tensor, 3> parts;
  if (rotates) {
    parts = rope_split_qkv_(qkv, pass.ropes.at(static_cast<size_t>(rope)), n, k, width);
  } else {
    const std::vector<at::Tensor> split = heads().split_with_sizes({n, k, k}, 1);
    parts = {split[0], split[1], split[2]};
  }
  const auto& [q, key, value] = parts;
  return (pass.exchange != nullptr ? attention_over_ranks(q, key, value, pass.sequences, options, *pass.exchange, kept)
                                   : attention(q, key, value, pass.sequences, options, kept))
      .flatten(1);
}

/// `qkv` as attend() takes it, with q and k normalised where there are norms for them: by head, or all heads together
/// where the norm has as many columns.
at::Tensor norm_heads(const BlockTable& block, const at::Tensor& qkv, const Norm& q_norm, const Norm& k_norm) {
  if (q_norm.kind == NormKind::kNone && k_norm.kind == NormKind::kNone) return qkv;
  const int64_t q = block.heads * block.head_dim, kv = block.kv_heads * block.head_dim;
  std::vector<at::Tensor> parts = qkv.split_with_sizes({q, kv, kv}, 1);
  const auto normed = [](const at::Tensor& x, const Norm& norm) {
    return norm.kind == NormKind::kNone ? x : apply_norm(x.unflatten(1, {-1, norm.weight.size(0)}), norm).flatten(1);
  };
  return at::cat({normed(parts[0], q_norm), normed(parts[1], k_norm), parts[2]}, 1);
}

/// Between a block and its neighbours.
struct BlockEnds {
  std::shared_ptr<BranchGradient> of_x{}, of_result{};  // null: none
  at::Tensor result_rows{};                             // undefined: all
};

/// `run`: of a block that is recomputed with kAttention or kFull; otherwise null. `tile_tokens`: Recomputation's, of
/// such a block. `offload`: where the MLP's projection of a block with kMlp waits, which is not computed again then.
at::Tensor block_forward(const BlockPass& pass, int64_t index, const at::Tensor& x_TD, const UnitTensors& unit,
                         Recompute recompute, BlockRun* run, int64_t tile_tokens, OffloadStore* offload,
                         const BlockEnds& ends) {
  const ProfileRange range("layers", index);
  BlockTensors block(pass, index, unit);
  const uint64_t stream = pass.first_stream + static_cast<uint64_t>(index) * pass.streams;
  const auto of_h = tile_tokens == 0 ? std::make_shared<BranchGradient>() : nullptr;
  const auto [qkv, residual_TD] = norm_linear(x_TD, block.norm("attention_norm", ends.of_x), block.linear("qkv"),
                                              Activation::kNone, recompute == Recompute::kNone, tile_tokens);
  const BlockTable& table = *pass.block;
  const BlockAttention& own = table.attention_of(index);
  const at::Tensor normed = norm_heads(table, qkv, block.norm("q_norm"), block.norm("k_norm"));
  const double scale =
      table.attention_scale > 0 ? table.attention_scale : 1.0 / std::sqrt(static_cast<double>(table.head_dim));
  // Dropout that is keyed by samples of several rows, as that of adapters is, needs all rows.
  const at::Tensor& rows = ends.result_rows;
  const bool early = rows.defined() && pass.residual.row_by_row(x_TD.size(0)) && !pass.lora_dropout.active();
  const at::Tensor attended = attend(pass, own.rope, normed,
                                     {.scale = scale,
                                      .causal = table.causal,
                                      .window = own.window,
                                      .dropout = pass.attention.at(stream),
                                      .only_needed = early,
                                      .fp8 = table.fp8_attention},
                                     recompute == Recompute::kAttention ? &run->kept : nullptr);
  const Dropout residual = early ? pass.residual.of_picked_rows(rows) : pass.residual;
  const auto picked = [&](const at::Tensor& x) { return early ? gather_rows(x, rows) : x; };
  const at::Tensor h_TD = linear_residual(picked(attended), picked(residual_TD), block.linear("output"),
                                          {.dropout = residual.at(stream + 1),
                                           .norm = block.norm("attention_branch_norm"),
                                           .multiplier = table.branch_multiplier,
                                           .post_norm = block.norm("attention_post_norm"),
                                           .gradient = of_h},
                                          tile_tokens);
  const at::Tensor y_TD = norm_mlp(h_TD, {.norm = block.norm("mlp_norm", of_h),
                                          .up = block.linear("up"),
                                          .activation = pass.activation,
                                          .down = block.linear("down"),
                                          .join = {.dropout = residual.at(stream + 2),
                                                   .norm = block.norm("mlp_branch_norm"),
                                                   .multiplier = table.branch_multiplier,
                                                   .post_norm = block.norm("mlp_post_norm"),
                                                   .gradient = ends.of_result},
                                          .recompute_up = recompute == Recompute::kMlp && offload == nullptr,
                                          .offload = offload,
                                          .block = index,
                                          .keep_inputs = recompute == Recompute::kNone,
                                          .result_unused = run != nullptr && run->again,
                                          .tile_tokens = tile_tokens});
  block.check_complete();
  return rows.defined() && !early ? gather_rows(y_TD, rows) : y_TD;
}

}  // namespace

Norm norm_of(const at::Tensor& weight, const at::Tensor& bias, double eps, bool plus_one) {
  if (bias.defined()) return layer_norm(weight, bias, eps);
  return plus_one ? rms_norm_plus_one(weight, eps) : rms_norm(weight, eps);
}

at::Tensor run_blocks(const at::Tensor& x_TD, UnitStore& store, const BlockPass& pass, int64_t blocks,
                      const Recomputation& recomputation, const AdapterUnits& adapters) {
  const std::vector<Recompute>& recompute = recomputation.blocks;
  TRIREME_CHECK(recompute.empty() || static_cast<int64_t>(recompute.size()) == blocks, "recompute names ",
                recompute.size(), " blocks, the model has ", blocks);
  size_t matrix = 0, vector = 0;  // the next of the adapters' parameters
  at::Tensor y_TD = x_TD;
  std::shared_ptr<BranchGradient> of_x;
  for (int64_t block = 0; block < blocks; ++block) {
    const int unit = static_cast<int>(block) + 1;
    y_TD = enter_unit(y_TD, store, unit);
    std::vector<at::Tensor> tensors = store.parameters(unit);
    const auto add = [&](int from, size_t& next, size_t count) {
      for (size_t i = 0; i < count; ++i) tensors.push_back(store.parameters(from)[next++]);
    };
    if (pass.adapters) {
      const size_t targets = pass.adapters->targets[static_cast<size_t>(block)].size();
      add(adapters.matrices, matrix, 2 * targets);
      if (pass.adapters->dora) add(adapters.vectors, vector, targets);
      add(adapters.vectors, vector, pass.adapters->biases[static_cast<size_t>(block)].size());
    }
    const std::vector<WeightState>* states = &store.weight_states(unit);
    const at::Tensor result_rows = block + 1 == blocks ? pass.result_rows : at::Tensor();
    const Recompute what = recompute.empty() ? Recompute::kNone : recompute[static_cast<size_t>(block)];
    OffloadStore* offload = recomputation.offload;
    if (offload != nullptr && !offload->takes(block)) offload = nullptr;
    TRIREME_CHECK(what != Recompute::kMlp || pass.block->find("attention_post_norm") < 0,
                  "the MLP alone is recomputed from the residual, which the block norms");
    if (what == Recompute::kFull || what == Recompute::kAttention) {
      of_x.reset();
      y_TD = recomputed(
          [pass, block, states, what, tile = recomputation.tile_tokens, result_rows](
              const at::Tensor& x, const std::vector<at::Tensor>& t, BlockRun& run) {
            return block_forward(pass, block, x, {t, states}, what, &run, tile, nullptr, {.result_rows = result_rows});
          },
          y_TD, tensors, offload, block);
    } else {
      const auto of_result = std::make_shared<BranchGradient>();
      y_TD = block_forward(pass, block, y_TD, {tensors, states}, what, nullptr, /*tile_tokens=*/0,
                           what == Recompute::kMlp ? offload : nullptr, {of_x, of_result, result_rows});
      of_x = of_result;
    }
    y_TD = leave_unit(y_TD, store, unit);
  }
  return y_TD;
}

}  // namespace trireme
