#include "models/decoder/decoder.h"

#include "models/decoder/family.h"
#include "models/decoder/targets.h"
#include "trireme/base/error.h"
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

#include <algorithm>
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
                         bool recompute_mlp) {
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

  const auto [qkv, residual_TD] = norm_linear(x_TD, norm(kInputNorm), linear(kQkvProj));
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

ParameterSpec norm(const std::string& name, const std::string& stored, int64_t width) {
  return {name, {width}, {{stored + ".weight", width}}, Init::kOnes, 0, false};
}

ParameterSpec bias(const std::string& name, std::vector<ParameterPart> parts) {
  int64_t rows = 0;
  for (const ParameterPart& part : parts) rows += part.rows;
  return {name, {rows}, std::move(parts), Init::kZeros, 0, false};
}

UnitSpec block_unit(const DecoderConfig& config, int64_t block) {
  const TensorNames& names = family_of(config).names;
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const double deviation = config.initializer_range;
  const double into_residual = config.scaled_residual_init
                                   ? deviation / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers))
                                   : deviation;
  const std::vector<int64_t> qkv_rows = names.qkv.size() == 1 ? std::vector{q + 2 * kv} : std::vector{q, kv, kv};
  struct Layer {
    const char* name;  // inside the unit
    std::vector<std::string> stored;
    std::vector<int64_t> rows;
    int64_t in;
    double deviation;
  };
  // In the order of BlockParameter; in = 0: a norm.
  const Layer layers[] = {
      {"input_layernorm", {names.attention_norm}, {d}, 0, 0},
      {"qkv_proj", names.qkv, qkv_rows, d, deviation},
      {"o_proj", {names.output}, {d}, q, into_residual},
      {"post_attention_layernorm", {names.mlp_norm}, {d}, 0, 0},
      {config.gated_mlp() ? "gate_up_proj" : "up_proj", names.up, std::vector(names.up.size(), f), d, deviation},
      {"down_proj", {names.down}, {d}, f, into_residual},
  };
  UnitSpec unit;
  unit.name = "layers." + std::to_string(block);
  const auto parts = [&](const Layer& layer, const char* suffix) {
    std::vector<ParameterPart> list;
    for (size_t i = 0; i < layer.stored.size(); ++i)
      list.push_back({names.block(block) + layer.stored[i] + suffix, layer.rows[i]});
    return list;
  };
  for (const Layer& layer : layers)
    unit.parameters.push_back(layer.in == 0
                                  ? norm(layer.name, names.block(block) + layer.stored[0], d)
                                  : projection(layer.name, layer.in, parts(layer, ".weight"), layer.deviation));
  for (int weight = 0; weight < kBlockWeights; ++weight)
    if (bias_position(config, weight) >= 0)
      unit.parameters.push_back(bias(layers[weight].name + std::string(".bias"), parts(layers[weight], ".bias")));
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
      // A name that stands for two layers (GPT-2's c_proj) is told apart by its module.
      const bool ambiguous = std::count_if(targets.begin(), targets.end(),
                                           [&](const LoraTarget& other) { return other.name == target.name; }) > 1;
      const std::string name = "layers." + std::to_string(block) + "." + (ambiguous ? target.module : target.name);
      const std::string module = lora_module_name(config, block, target);
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
  const at::Tensor positions = batch.positions_BS.flatten();
  Pass pass;
  pass.config = config;
  pass.train = options.train;
  pass.seed = options.seed;
  pass.sample_ids_B = batch.sample_ids_B;
  at::Tensor x_TD = embed(store.parameters(kEmbed)[kTokenTable], tokens);
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
  return model.config().tie_word_embeddings ? store.parameters(kEmbed)[kTokenTable] : store.parameters(head).back();
}

at::Tensor final_norm(const DecoderModel& model, UnitStore& store, int head, const at::Tensor& x_TD) {
  const std::vector<at::Tensor>& tensors = store.parameters(head);
  const bool has_bias = model.config().norm == DecoderNorm::kLayer;
  return apply_norm(x_TD,
                    norm_of(model.config(), tensors[kFinalNorm], has_bias ? tensors[kFinalNormBias] : at::Tensor()));
}

}  // namespace

DecoderModel::DecoderModel(const DecoderConfig& config, std::optional<LoraOptions> lora)
    : config_(config), lora_(std::move(lora)) {
  const TensorNames& names = family_of(config_).names;
  const int64_t d = config_.hidden_size, v = config_.vocab_size;
  UnitSpec embed, head;
  embed.name = "embed";
  embed.parameters = {matrix("embed_tokens", d, {{names.embedding + ".weight", v}}, config_.initializer_range)};
  if (config_.positions == DecoderPositions::kLearned)
    embed.parameters.push_back(matrix("embed_positions", d,
                                      {{names.positions + ".weight", config_.max_position_embeddings}},
                                      config_.initializer_range));
  embed.keep = config_.tie_word_embeddings;
  // Gradients of the embedding need token ids only, and the loss head forms its gradients in the forward pass.
  embed.backward_reads_weights = false;
  head.name = "head";
  head.parameters = {norm("norm", names.final_norm, d)};
  if (config_.norm == DecoderNorm::kLayer)
    head.parameters.push_back(bias("norm.bias", {{names.final_norm + ".bias", d}}));
  if (!config_.tie_word_embeddings)
    head.parameters.push_back(matrix("lm_head", d, {{names.head + ".weight", v}}, config_.initializer_range));
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
  const at::Tensor hidden = final_norm(*this, store, head, x_TD);
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
  const at::Tensor hidden = final_norm(*this, store, head, x_TD);
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
