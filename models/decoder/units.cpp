// The units of a decoder: names, shapes and initial values of its parameters.
#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "models/decoder/targets.h"

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

ParameterSpec matrix(const std::string& name, int64_t in, std::vector<ParameterPart> parts, double deviation) {
  int64_t rows = 0;
  for (const ParameterPart& part : parts) rows += part.rows;
  return {name, {rows, in}, std::move(parts), Init::kNormal, deviation, true};
}

/// A matrix of the blocks: the products that FP8 is for.
ParameterSpec projection(const std::string& name, int64_t in, std::vector<ParameterPart> parts, double deviation) {
  ParameterSpec spec = matrix(name, in, std::move(parts), deviation);
  spec.linear = true;
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
  if (const int64_t rows = lora.rows_end - lora.rows_begin; rows > 0)
    for (const std::string& module : token_modules(config))
      unit.parameters.push_back({module.substr(module.rfind('.') + 1) + ".rows",
                                 {rows, config.hidden_size},
                                 {{module + kTokenRowsSuffix, rows}},
                                 Init::kNormal,
                                 config.initializer_range,
                                 true});
  return unit;
}

}  // namespace

std::vector<std::string> token_modules(const DecoderConfig& config) {
  const TensorNames& names = family_of(config).names;
  if (config.tie_word_embeddings) return {names.embedding};
  return {names.embedding, names.head};
}

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
