#include "models/decoder/decoder.h"

#include "models/decoder/targets.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/nn/recompute.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/layers/norm_mlp.h"
#include "trireme/ops/norm.h"
#include "trireme/ops/rope.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace trireme {

namespace {

constexpr int kEmbed = 0;
constexpr int kTokenTable = 0, kPositionTable = 1;  // parameters of the embedding's unit
constexpr int kFinalNorm = 0, kFinalNormBias = 1;   // of the head's; the output matrix comes last

/// Streams of dropout: sixteen for each block. The first are the adapters'.
constexpr uint64_t kStreams = 16;
enum DropoutPlace : uint64_t { kAttentionDropout = 12, kOutputDropout, kMlpDropout, kEmbeddingDropout };

RopeFrequencies rope_frequencies(const DecoderConfig& config) {
  RopeFrequencies rope;
  switch (config.rope_scaling.type) {
    case RopeScaling::Type::kNone: rope.scaling = RopeFrequencies::Scaling::kNone; break;
    case RopeScaling::Type::kLinear: rope.scaling = RopeFrequencies::Scaling::kLinear; break;
    case RopeScaling::Type::kLlama3: rope.scaling = RopeFrequencies::Scaling::kLlama3; break;
  }
  rope.theta = config.rope_theta;
  rope.factor = config.rope_scaling.factor;
  rope.low_freq_factor = config.rope_scaling.low_freq_factor;
  rope.high_freq_factor = config.rope_scaling.high_freq_factor;
  rope.original_max_position = config.rope_scaling.original_max_position;
  return rope;
}

/// Everything that is the same for all blocks of one forward pass.
struct Pass {
  DecoderConfig config;
  RopeTable rope;
  Sequences sequences;
  std::vector<LoraTarget> targets;
  double lora_scale = 0;
  Dropout lora_dropout;
  bool train = false;
  uint64_t seed = 0;
  at::Tensor sample_ids_B;

  /// Dropout of the base model; the embedding counts as block 0.
  Dropout dropout(double p, int64_t block, DropoutPlace place) const {
    if (!train || p == 0) return {};
    return {p, seed, sample_ids_B, static_cast<uint64_t>(block) * kStreams + place};
  }
};

/// Adapters of `parameter` in this block; `adapters` holds A and B of every target in order.
std::vector<LoraAdapter> adapters_of(const Pass& pass, int64_t block, int parameter, at::TensorList adapters) {
  std::vector<LoraAdapter> list;
  for (size_t t = 0; t < pass.targets.size(); ++t) {
    const LoraTarget& target = pass.targets[t];
    if (target.parameter != parameter) continue;
    list.push_back({adapters[2 * t], adapters[2 * t + 1], target.row_begin,
                    static_cast<uint64_t>(block) * kStreams + target.index});
  }
  return list;
}

Activation activation_of(const DecoderConfig& config) {
  switch (config.activation) {
    case DecoderActivation::kGeluErf: return Activation::kGeluErf;
    case DecoderActivation::kGeluTanh: return Activation::kGeluTanh;
    default: return Activation::kSwiglu;
  }
}

Norm norm_of(const DecoderConfig& config, const at::Tensor& weight, const at::Tensor& bias) {
  return config.norm == DecoderNorm::kLayer ? layer_norm(weight, bias, config.norm_eps)
                                            : rms_norm(weight, config.norm_eps);
}

/// Attention of a projection [T, (N + 2 K) H] laid out q | k | v, which is given up: [T, N H].
at::Tensor attend(const Pass& pass, const at::Tensor& qkv, const AttentionOptions& options) {
  const int64_t heads = pass.config.num_attention_heads, kv_heads = pass.config.num_key_value_heads;
  if (pass.config.positions == DecoderPositions::kLearned)
    return attention_of_packed(qkv.view({qkv.size(0), heads + 2 * kv_heads, pass.config.head_dim}), kv_heads,
                               pass.sequences, options)
        .flatten(1);
  const auto [q, k, v] = rope_split_qkv_(qkv, pass.rope, heads, kv_heads, pass.config.head_dim);
  return attention(q, k, v, pass.sequences, options).flatten(1);
}

/// One decoder block on tokens [T, D]. `unit`: the block's tensors, then A and B of every target.
at::Tensor block_forward(const Pass& pass, int64_t block, const at::Tensor& x_TD, const UnitTensors& unit,
                         Recompute recompute) {
  const ProfileRange range("layers", block);
  const DecoderConfig& config = pass.config;
  const at::TensorList adapters = unit.values.slice(static_cast<size_t>(block_parameters(config)));
  const auto bias = [&](int weight) {
    const int position = bias_position(config, weight);
    return position < 0 ? at::Tensor() : unit[position];
  };
  const auto norm = [&](int weight) { return norm_of(config, unit[weight], bias(weight)); };
  const auto linear = [&](int weight) -> Linear {
    return {unit.weight(weight),
            bias(weight),
            {adapters_of(pass, block, weight, adapters), pass.lora_scale, pass.lora_dropout}};
  };

  const auto [qkv, residual_TD] =
      norm_linear(x_TD, norm(kInputNorm), linear(kQkvProj), Activation::kNone, recompute == Recompute::kNone);
  const at::Tensor attended = attend(pass, qkv,
                                     {.scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                                      .causal = true,
                                      .dropout = pass.dropout(config.attention_dropout, block, kAttentionDropout)});
  const at::Tensor h_TD = linear_residual(attended, residual_TD, linear(kOutProj),
                                          pass.dropout(config.residual_dropout, block, kOutputDropout));
  return norm_mlp(h_TD, {.norm = norm(kPostAttentionNorm),
                         .up = linear(kGateUpProj),
                         .activation = activation_of(config),
                         .down = linear(kDownProj),
                         .dropout = pass.dropout(config.residual_dropout, block, kMlpDropout),
                         .recompute_up = recompute == Recompute::kMlp,
                         .keep_inputs = recompute == Recompute::kNone});
}

void check_batch(const TokenBatch& batch) {
  TRIREME_CHECK(batch.tokens_BS.dim() == 2 && batch.tokens_BS.scalar_type() == at::kLong,
                "tokens must be int64 [B, S]");
  TRIREME_CHECK(batch.positions_BS.sizes() == batch.tokens_BS.sizes(), "positions ", batch.positions_BS.sizes(),
                ", tokens ", batch.tokens_BS.sizes());
  TRIREME_CHECK(!batch.labels_BS.defined() || batch.labels_BS.sizes() == batch.tokens_BS.sizes(), "labels ",
                batch.labels_BS.sizes(), ", tokens ", batch.tokens_BS.sizes());
}

/// The trained rows of the embedding (0) or of the output matrix (1), undefined if there are none. A tied model has one
/// matrix for both.
at::Tensor trained_rows(const DecoderModel& model, UnitStore& store, int matrix) {
  if (!model.lora() || model.lora()->rows_begin == model.lora()->rows_end) return {};
  const std::vector<at::Tensor>& adapters = store.parameters(static_cast<int>(model.units().size()) - 1);
  return adapters[adapters.size() - (model.config().tie_word_embeddings || matrix == 1 ? 1 : 2)];
}

/// Puts trained rows into the gathered weight.
void replace_rows(const at::Tensor& weight, const at::Tensor& rows, int64_t begin) {
  at::NoGradGuard no_grad;
  if (rows.defined()) weight.narrow(0, begin, rows.size(0)).copy_(rows);
}

/// Final hidden states before the head's norm.
at::Tensor decode(const DecoderModel& model, UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) {
  check_batch(batch);
  const DecoderConfig& config = model.config();
  const int64_t blocks = config.num_hidden_layers;
  TRIREME_CHECK(options.recompute.empty() || static_cast<int64_t>(options.recompute.size()) == blocks,
                "recompute names ", options.recompute.size(), " blocks, the model has ", blocks);

  const at::Tensor tokens = enter_unit(batch.tokens_BS.flatten(), store, kEmbed);
  const at::Tensor positions = batch.positions_BS.flatten();
  Pass pass;
  pass.config = config;
  pass.train = options.train;
  pass.seed = options.seed;
  pass.sample_ids_B = batch.sample_ids_B;
  const at::Tensor rows = trained_rows(model, store, 0);
  replace_rows(store.parameters(kEmbed)[kTokenTable], rows, model.lora() ? model.lora()->rows_begin : 0);
  at::Tensor x_TD = embed(store.parameters(kEmbed)[kTokenTable], tokens);
  if (rows.defined()) x_TD = train_rows(x_TD, tokens, rows, model.lora()->rows_begin);
  if (config.positions == DecoderPositions::kLearned)
    x_TD = x_TD + embed(store.parameters(kEmbed)[kPositionTable], positions);
  if (const Dropout dropout = pass.dropout(config.embedding_dropout, 0, kEmbeddingDropout); dropout.active())
    x_TD = recorded_dropout(x_TD, dropout);
  x_TD = leave_unit(x_TD, store, kEmbed);

  if (config.positions == DecoderPositions::kRope)
    pass.rope =
        rope_table(rope_inverse_frequencies(rope_frequencies(config), config.head_dim), positions, x_TD.scalar_type());
  const bool drops = pass.dropout(config.attention_dropout, 0, kAttentionDropout).active();
  TRIREME_CHECK(!drops || batch.sequence_keys.size() + 1 == batch.cu_seqlens.size(), "dropout of attention needs ",
                batch.cu_seqlens.size() - 1, " sequence keys, there are ", batch.sequence_keys.size());
  pass.sequences =
      make_sequences(batch.cu_seqlens, drops ? batch.sequence_keys : std::vector<int64_t>(), x_TD.device());
  const int adapters_index = static_cast<int>(blocks) + 2;
  if (model.lora()) {
    const LoraOptions& lora = *model.lora();
    pass.targets = lora_targets(config, lora);
    pass.lora_scale = lora.alpha / static_cast<double>(lora.r);
    if (options.train && lora.dropout > 0) pass.lora_dropout = {lora.dropout, options.seed, batch.sample_ids_B};
    x_TD = enter_unit(x_TD, store, adapters_index);
  }

  for (int64_t block = 0; block < blocks; ++block) {
    const int unit = static_cast<int>(block) + 1;
    x_TD = enter_unit(x_TD, store, unit);
    std::vector<at::Tensor> tensors = store.parameters(unit);
    if (!pass.targets.empty()) {
      const std::vector<at::Tensor>& adapters = store.parameters(adapters_index);
      const size_t count = 2 * pass.targets.size();
      const auto first = adapters.begin() + static_cast<std::ptrdiff_t>(count * static_cast<size_t>(block));
      tensors.insert(tensors.end(), first, first + static_cast<std::ptrdiff_t>(count));
    }
    const std::vector<WeightState>* states = &store.weight_states(unit);
    const Recompute recompute = options.recompute.empty() ? Recompute::kNone : options.recompute[block];
    if (recompute == Recompute::kFull)
      x_TD = recomputed(
          [pass, block, states](const at::Tensor& x, const std::vector<at::Tensor>& t) {
            return block_forward(pass, block, x, {t, states}, Recompute::kNorms);
          },
          x_TD, tensors);
    else
      x_TD = block_forward(pass, block, x_TD, {tensors, states}, recompute);
    x_TD = leave_unit(x_TD, store, unit);
  }
  if (model.lora()) x_TD = leave_unit(x_TD, store, adapters_index);
  return x_TD;
}

/// The output matrix: lm_head, or the embedding when tied.
const at::Tensor& output_weight(const DecoderModel& model, UnitStore& store, int head) {
  return model.config().tie_word_embeddings ? store.parameters(kEmbed)[kTokenTable] : store.parameters(head).back();
}

at::Tensor final_norm(const DecoderModel& model, UnitStore& store, int head, const at::Tensor& x_TD) {
  const std::vector<at::Tensor>& tensors = store.parameters(head);
  const bool has_bias = model.config().norm == DecoderNorm::kLayer;
  return apply_norm(x_TD,
                    norm_of(model.config(), tensors[kFinalNorm], has_bias ? tensors[kFinalNormBias] : at::Tensor()));
}

}  // namespace

LossOutput DecoderModel::loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(decode(*this, store, batch, options), store, head);
  const at::Tensor hidden = final_norm(*this, store, head, x_TD);
  // Without labels position t predicts token t + 1; what rolls around into the last column has weight 0.
  const at::Tensor targets =
      batch.labels_BS.defined() ? batch.labels_BS.reshape({-1}) : batch.tokens_BS.roll(-1, 1).view({-1});
  const at::Tensor weight = output_weight(*this, store, head), rows = trained_rows(*this, store, 1);
  const int64_t rows_begin = lora_ ? lora_->rows_begin : 0;
  if (!config_.tie_word_embeddings) replace_rows(weight, rows, rows_begin);
  const at::Tensor loss_sum =
      loss_head(hidden, weight, targets, batch.loss_weight_BS.reshape({-1}), {}, rows, rows_begin);
  return {leave_unit(loss_sum, store, head)};
}

at::Tensor DecoderModel::logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  at::NoGradGuard no_grad;
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(decode(*this, store, batch, options), store, head);
  const at::Tensor hidden = final_norm(*this, store, head, x_TD);
  const at::Tensor weight = output_weight(*this, store, head);
  if (!config_.tie_word_embeddings) replace_rows(weight, trained_rows(*this, store, 1), lora_ ? lora_->rows_begin : 0);
  const at::Tensor logits_TV = at::linear(hidden, weight).to(at::kFloat);
  return leave_unit(logits_TV, store, head).view({batch.tokens_BS.size(0), batch.tokens_BS.size(1), -1});
}

}  // namespace trireme
