#include "models/decoder/decoder.h"

#include "models/decoder/targets.h"
#include "trireme/base/error.h"
#include "trireme/nn/recompute.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/layers/norm_mlp.h"
#include "trireme/ops/norm.h"
#include "trireme/ops/rope.h"

#include <ATen/ATen.h>

#include <cmath>

namespace trireme {

namespace {

constexpr int kEmbed = 0;

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
  Dropout dropout;
};

/// Adapters of `parameter` in this block; `adapters` holds A and B of every target in order.
std::vector<LoraAdapter> adapters_of(const Pass& pass, int64_t block, int parameter, at::TensorList adapters) {
  std::vector<LoraAdapter> list;
  for (size_t t = 0; t < pass.targets.size(); ++t) {
    const LoraTarget& target = pass.targets[t];
    if (target.parameter != parameter) continue;
    list.push_back(
        {adapters[2 * t], adapters[2 * t + 1], target.row_begin, static_cast<uint64_t>(block) * 16 + target.index});
  }
  return list;
}

/// One decoder block on tokens [T, D]. `unit`: the block's tensors, then A and B of every target.
at::Tensor block_forward(const Pass& pass, int64_t block, const at::Tensor& x_TD, const UnitTensors& unit,
                         bool recompute_mlp) {
  const DecoderConfig& config = pass.config;
  const at::TensorList adapters = unit.values.slice(kDownProj + 1);
  const auto linear = [&](int parameter) -> Linear {
    return {unit.weight(parameter), {}, {adapters_of(pass, block, parameter, adapters), pass.lora_scale, pass.dropout}};
  };
  const double eps = config.rms_norm_eps, scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));

  const auto [qkv, residual_TD] = norm_linear(x_TD, rms_norm(unit[kInputNorm], eps), linear(kQkvProj));
  const auto [q, k, v] =
      rope_split_qkv_(qkv, pass.rope, config.num_attention_heads, config.num_key_value_heads, config.head_dim);
  const at::Tensor attended = attention(q, k, v, pass.sequences, {.scale = scale, .causal = true}).flatten(1);
  const at::Tensor h_TD = linear_residual(attended, residual_TD, linear(kOutProj));
  return norm_mlp(h_TD, {.norm = rms_norm(unit[kPostAttentionNorm], eps),
                         .up = linear(kGateUpProj),
                         .activation = Activation::kSwiglu,
                         .down = linear(kDownProj),
                         .recompute_up = recompute_mlp});
}

ParameterSpec matrix(const std::string& name, int64_t in, std::vector<ParameterPart> parts, double deviation) {
  int64_t rows = 0;
  for (const ParameterPart& part : parts) rows += part.rows;
  return {name, {rows, in}, std::move(parts), Init::kNormal, deviation, true};
}

/// A matrix of the blocks: the products that FP8 is for.
ParameterSpec projection(const std::string& name, int64_t in, std::vector<ParameterPart> parts, double deviation) {
  ParameterSpec spec = matrix(name, in, std::move(parts), deviation);
  spec.quantisable = true;
  return spec;
}

ParameterSpec norm(const std::string& name, const std::string& checkpoint_name, int64_t width) {
  return {name, {width}, {{checkpoint_name, width}}, Init::kOnes, 0, false};
}

UnitSpec block_unit(const DecoderConfig& config, int64_t block) {
  const std::string prefix = "model.layers." + std::to_string(block) + ".";
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const double deviation = config.initializer_range;
  UnitSpec unit;
  unit.name = "layers." + std::to_string(block);
  unit.parameters = {
      norm("input_layernorm", prefix + "input_layernorm.weight", d),
      projection("qkv_proj", d,
                 {{prefix + "self_attn.q_proj.weight", q},
                  {prefix + "self_attn.k_proj.weight", kv},
                  {prefix + "self_attn.v_proj.weight", kv}},
                 deviation),
      projection("o_proj", q, {{prefix + "self_attn.o_proj.weight", d}}, deviation),
      norm("post_attention_layernorm", prefix + "post_attention_layernorm.weight", d),
      projection("gate_up_proj", d, {{prefix + "mlp.gate_proj.weight", f}, {prefix + "mlp.up_proj.weight", f}},
                 deviation),
      projection("down_proj", f, {{prefix + "mlp.down_proj.weight", d}}, deviation),
  };
  return unit;
}

/// PEFT's initialisation: A as kaiming_uniform(a = sqrt(5)), which is uniform within 1/sqrt(in); B zero.
UnitSpec adapters_unit(const DecoderConfig& config, const LoraOptions& lora) {
  UnitSpec unit;
  unit.name = "adapters";
  unit.trained = unit.replicated = true;
  const std::vector<LoraTarget> targets = lora_targets(config, lora);
  for (int64_t block = 0; block < config.num_hidden_layers; ++block) {
    for (const LoraTarget& target : targets) {
      const std::string name = "layers." + std::to_string(block) + "." + target.name;
      const std::string module = lora_module_name(block, target);
      const double bound = 1.0 / std::sqrt(static_cast<double>(target.in));
      unit.parameters.push_back(
          {name + ".lora_A", {lora.r, target.in}, {{module + ".lora_A.weight", lora.r}}, Init::kUniform, bound, true});
      unit.parameters.push_back(
          {name + ".lora_B", {target.rows, lora.r}, {{module + ".lora_B.weight", target.rows}}, Init::kZeros, 0, true});
    }
  }
  return unit;
}

void check_batch(const TokenBatch& batch) {
  TRIREME_CHECK(batch.tokens_BS.dim() == 2 && batch.tokens_BS.scalar_type() == at::kLong,
                "tokens must be int64 [B, S]");
  TRIREME_CHECK(batch.positions_BS.sizes() == batch.tokens_BS.sizes(), "positions ", batch.positions_BS.sizes(),
                ", tokens ", batch.tokens_BS.sizes());
}

/// Final hidden states before the head's norm.
at::Tensor decode(const DecoderModel& model, UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) {
  check_batch(batch);
  const DecoderConfig& config = model.config();
  const int64_t blocks = config.num_hidden_layers;
  TRIREME_CHECK(options.recompute.empty() || static_cast<int64_t>(options.recompute.size()) == blocks,
                "recompute names ", options.recompute.size(), " blocks, the model has ", blocks);

  const at::Tensor tokens = enter_unit(batch.tokens_BS.flatten(), store, kEmbed);
  at::Tensor x_TD = leave_unit(embed(store.parameters(kEmbed)[0], tokens), store, kEmbed);

  Pass pass;
  pass.config = config;
  pass.rope = rope_table(rope_inverse_frequencies(rope_frequencies(config), config.head_dim),
                         batch.positions_BS.flatten(), x_TD.scalar_type());
  pass.sequences = make_sequences(batch.cu_seqlens, {}, x_TD.device());
  const int adapters_index = static_cast<int>(blocks) + 2;
  if (model.lora()) {
    const LoraOptions& lora = *model.lora();
    pass.targets = lora_targets(config, lora);
    pass.lora_scale = lora.alpha / static_cast<double>(lora.r);
    if (options.train && lora.dropout > 0) pass.dropout = {lora.dropout, options.seed, batch.sample_ids_B};
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
            return block_forward(pass, block, x, {t, states}, /*recompute_mlp=*/false);
          },
          x_TD, tensors);
    else
      x_TD = block_forward(pass, block, x_TD, {tensors, states}, recompute == Recompute::kMlp);
    x_TD = leave_unit(x_TD, store, unit);
  }
  if (model.lora()) x_TD = leave_unit(x_TD, store, adapters_index);
  return x_TD;
}

/// The output matrix: lm_head, or the embedding when tied.
const at::Tensor& output_weight(const DecoderModel& model, UnitStore& store, int head) {
  return model.config().tie_word_embeddings ? store.parameters(kEmbed)[0] : store.parameters(head)[1];
}

}  // namespace

DecoderModel::DecoderModel(const DecoderConfig& config, std::optional<LoraOptions> lora)
    : config_(config), lora_(std::move(lora)) {
  const int64_t d = config_.hidden_size, v = config_.vocab_size;
  UnitSpec embed, head;
  embed.name = "embed";
  embed.parameters = {matrix("embed_tokens", d, {{"model.embed_tokens.weight", v}}, config_.initializer_range)};
  embed.keep = config_.tie_word_embeddings;
  // Gradients of the embedding need token ids only, and the loss head forms its gradients in the forward pass.
  embed.backward_reads_weights = false;
  head.name = "head";
  head.parameters = {norm("norm", "model.norm.weight", d)};
  if (!config_.tie_word_embeddings)
    head.parameters.push_back(matrix("lm_head", d, {{"lm_head.weight", v}}, config_.initializer_range));
  units_.push_back(std::move(embed));
  for (int64_t block = 0; block < config_.num_hidden_layers; ++block) units_.push_back(block_unit(config_, block));
  units_.push_back(std::move(head));
  for (UnitSpec& unit : units_) unit.trained = !lora_;
  if (lora_) units_.push_back(adapters_unit(config_, *lora_));
}

LossOutput DecoderModel::loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(decode(*this, store, batch, options), store, head);
  const at::Tensor hidden = apply_norm(x_TD, rms_norm(store.parameters(head)[0], config_.rms_norm_eps));
  // Position t predicts token t + 1; what rolls around into the last column has weight 0.
  const at::Tensor targets = batch.tokens_BS.roll(-1, 1).view({-1});
  const at::Tensor loss_sum =
      loss_head(hidden, output_weight(*this, store, head), targets, batch.loss_weight_BS.reshape({-1}));
  return {leave_unit(loss_sum, store, head)};
}

at::Tensor DecoderModel::logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  at::NoGradGuard no_grad;
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(decode(*this, store, batch, options), store, head);
  const at::Tensor hidden = apply_norm(x_TD, rms_norm(store.parameters(head)[0], config_.rms_norm_eps));
  const at::Tensor logits_TV = at::linear(hidden, output_weight(*this, store, head)).to(at::kFloat);
  return leave_unit(logits_TV, store, head).view({batch.tokens_BS.size(0), batch.tokens_BS.size(1), -1});
}

int64_t DecoderModel::num_parameters() const {
  int64_t n = 0;
  for (const UnitSpec& unit : units_)
    if (!unit.replicated) n += unit.numel();
  return n;
}

int64_t DecoderModel::num_trained_parameters() const {
  int64_t n = 0;
  for (const UnitSpec& unit : units_)
    if (unit.trained) n += unit.numel();
  return n;
}

}  // namespace trireme
