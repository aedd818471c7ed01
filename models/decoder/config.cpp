#include "models/decoder/config.h"

#include "models/decoder/hf_config.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

using Json = nlohmann::json;

/// The family that model_type names, or architectures where there is no model_type.
const Family* named_family(ConfigReader& reader) {
  const bool typed = reader.has("model_type");
  const char* key = typed ? "model_type" : "architectures";
  if (!reader.has(key)) {
    reader.problem("neither model_type nor architectures is there");
    return nullptr;
  }
  std::vector<std::string> known;
  for (const Family* family : families()) {
    if (reader.json()[key] == (typed ? Json(family->model_type) : Json::array({family->architecture}))) return family;
    known.push_back(typed ? family->model_type : family->architecture);
  }
  reader.problem(fmt::format("{}: {} is not supported; known are {}", key, reader.json()[key].dump().substr(0, 120),
                             join(known, ", ")));
  return nullptr;
}

void check_rotation(const RopeFrequencies& rope, int64_t head_dim, std::vector<std::string>& problems) {
  const int64_t rotated = rope.rotated(head_dim), pairs = rotated / 2;
  if (head_dim % 2 != 0)
    problems.push_back(fmt::format("head_dim {} is odd: rotary positions need pairs", head_dim));
  else if (rotated % 2 != 0 || pairs < 1)
    problems.push_back(
        fmt::format("partial_rotary_factor {} of heads of {} makes {} elements rotate: rotary positions "
                    "need pairs",
                    rope.part, head_dim, rotated));
  else if (rope.scaling == RopeFrequencies::Scaling::kLongrope)
    for (const auto& [name, factors] :
         {std::pair("short_factor", &rope.short_factor), {"long_factor", &rope.long_factor}})
      if (static_cast<int64_t>(factors->size()) != pairs)
        problems.push_back(fmt::format("{} has {} numbers, {} pairs of a head rotate", name, factors->size(), pairs));
  if (rope.scaling == RopeFrequencies::Scaling::kDynamic && rotated <= 2)
    problems.push_back(fmt::format("dynamic rope scaling needs more than {} elements that rotate", rotated));
  if (!std::isfinite(rope_attention_factor(rope)) ||
      (rope.scaling == RopeFrequencies::Scaling::kYarn && rope.theta <= 1))
    problems.push_back(
        fmt::format("{} rope scaling by {} from {} positions with rope_theta {} has no finite frequencies",
                    rope_type(rope.scaling), rope.factor, rope.original_max_position, rope.theta));
}

std::string rope_text(const RopeFrequencies& rope) {
  if (rope.scaling == RopeFrequencies::Scaling::kNone) return "none";
  if (rope.scaling != RopeFrequencies::Scaling::kLlama3)
    return fmt::format("{} {}", rope_type(rope.scaling), format_exact(rope.factor));
  return fmt::format("llama3 {} {} {} {}", format_exact(rope.factor), format_exact(rope.low_freq_factor),
                     format_exact(rope.high_freq_factor), rope.original_max_position);
}

}  // namespace

std::vector<std::string> shape_problems(const DecoderConfig& config) {
  std::vector<std::string> problems;
  if (config.num_hidden_layers > kMaxLayers)
    problems.push_back(
        fmt::format("num_hidden_layers is {}, at most {} are supported", config.num_hidden_layers, kMaxLayers));
  if (!problems.empty()) return problems;
  for (const auto& [what, count] :
       {std::pair("layer_types", config.windowed.size()), {"no_rope_layers", config.without_rope.size()}})
    if (count != 0 && static_cast<int64_t>(count) != config.num_hidden_layers)
      problems.push_back(
          fmt::format("{} names {} layers, num_hidden_layers is {}", what, count, config.num_hidden_layers));
  if (!problems.empty()) return problems;
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    problems.push_back(fmt::format("num_attention_heads {} is no multiple of num_key_value_heads {}",
                                   config.num_attention_heads, config.num_key_value_heads));
  if (config.positions == DecoderPositions::kRope) {
    check_rotation(config.rope, config.head_dim, problems);
    if (config.window_rope) check_rotation(*config.window_rope, config.head_dim, problems);
  }
  const BlockTable block = decoder_block(config);
  // GPT-2's config.json has no words for other heads.
  if (config.positions == DecoderPositions::kLearned &&
      (config.num_key_value_heads != config.num_attention_heads ||
       config.head_dim * config.num_attention_heads != config.hidden_size))
    problems.push_back(fmt::format(
        "a {} model has as many key/value heads as heads, of hidden size / heads each, not "
        "{} of {} for {} heads and a hidden size of {}",
        config.family, config.num_key_value_heads, config.head_dim, config.num_attention_heads, config.hidden_size));
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  double layers = 0;
  for (const BlockLayer& layer : block.layers)
    for (const LayerPart& part : layer.parts)
      layers += real(part.rows) * ((layer.product() ? real(layer.in) : 1) + (layer.bias ? 1 : 0));
  const double positions = config.positions == DecoderPositions::kLearned ? real(config.max_position_embeddings) : 0;
  const double parameters = real(config.num_hidden_layers) * layers +
                            real(config.hidden_size) * (2 * real(config.vocab_size) + positions + 1);
  if (parameters > kMaxParameters)
    problems.push_back(fmt::format("the shape has {:.3g} parameters, more than any computer holds", parameters));
  return problems;
}

DecoderConfig read_decoder_config(const std::filesystem::path& config_json) {
  const Json json = read_json_object(config_json);
  ConfigReader reader(json, config_json.string());
  const Family* family = named_family(reader);
  reader.finish();
  if (reader.has("architectures") && json["architectures"] != Json::array({family->architecture}) &&
      json["architectures"] != Json::array())
    reader.problem(fmt::format("architectures: {} is not supported; of a {} it is [\"{}\"]",
                               json["architectures"].dump().substr(0, 120), family->model_type, family->architecture));
  DecoderConfig config = family->read(reader);
  config.family = family->model_type;
  reader.finish();
  for (const std::string& problem : shape_problems(config)) reader.problem(problem);
  reader.finish();
  return config;
}

std::string decoder_config_json(const DecoderConfig& config) { return family_of(config).write(config).dump(2) + "\n"; }

void check_sequence_length(const DecoderConfig& config, int64_t length, const std::string& what) {
  if (config.positions == DecoderPositions::kLearned && length > config.max_position_embeddings)
    throw ConfigError(fmt::format("{} is {}, and this {} has learned positions for {} tokens: at most that many work",
                                  what, length, config.family, config.max_position_embeddings));
}

bool extend_positions(DecoderConfig& config, int64_t length) {
  if (config.positions != DecoderPositions::kRope || length <= config.max_position_embeddings ||
      config.rope.scaling == RopeFrequencies::Scaling::kDynamic ||
      (config.window_rope && config.window_rope->scaling == RopeFrequencies::Scaling::kDynamic))
    return false;
  config.max_position_embeddings = length;
  config.rope.factor_stated = true;  // it was the ratio of the old one
  return true;
}

void set_layers(DecoderConfig& config, int64_t layers) {
  const auto continued = [&](std::vector<bool>& blocks) {
    const size_t count = blocks.size();
    size_t period = 1;  // the smallest
    while (period < count &&
           !std::equal(blocks.begin() + static_cast<std::ptrdiff_t>(period), blocks.end(), blocks.begin()))
      ++period;
    if (count == 0) return;
    blocks.resize(static_cast<size_t>(std::min(layers, kMaxLayers)));
    for (size_t i = count; i < blocks.size(); ++i) blocks[i] = blocks[i - period];
  };
  continued(config.windowed);
  continued(config.without_rope);
  config.num_hidden_layers = layers;
}

int64_t padding_row(const DecoderConfig& config) {
  if (config.positions == DecoderPositions::kLearned || !config.pad_token_id) return -1;
  return *config.pad_token_id < 0 ? config.vocab_size + *config.pad_token_id : *config.pad_token_id;
}

std::vector<int64_t> end_of_text_ids(const std::filesystem::path& directory, const DecoderConfig& config) {
  const std::vector<int64_t> ids = eos_ids_of(directory / "generation_config.json");
  return ids.empty() ? config.eos_token_ids : ids;
}

double repetition_penalty(const std::filesystem::path& directory) {
  const auto path = directory / "generation_config.json";
  if (!std::filesystem::is_regular_file(path)) return 1;
  const nlohmann::json json = read_json_object(path);
  ConfigReader reader(json, path.string());
  const double penalty = reader.number("repetition_penalty", 1);
  reader.finish();
  return penalty;
}

std::string generation_config_json(const DecoderConfig& config) {
  nlohmann::ordered_json json = {{"_from_model_config", true}, {"bos_token_id", or_null(config.bos_token_id)}};
  json["eos_token_id"] = common_fields_json(config)["eos_token_id"];
  if (config.pad_token_id && *config.pad_token_id >= 0) json["pad_token_id"] = *config.pad_token_id;
  return json.dump(2) + "\n";
}

DecoderConfig read_model_config(const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / "config.json")) return read_decoder_config(directory / "config.json");
  for (const auto& context : {directory / "context", directory.parent_path() / "context"})
    if (std::filesystem::exists(context / "model.yaml")) return read_nemo_config(context / "model.yaml");
  for (const auto& folder : {directory, directory.parent_path()})
    if (std::filesystem::exists(folder / "model_config.yaml")) return read_nemo_config(folder / "model_config.yaml");
  require_model_directory(directory);
  if (is_zarr_checkpoint(directory))
    throw ModelError(fmt::format(
        "{} is a NeMo checkpoint without context/model.yaml or model_config.yaml, which say the model's shape",
        directory.string()));
  const bool adapter = std::filesystem::exists(directory / "adapter_config.json");
  throw ModelError(fmt::format("{} has no config.json{}", directory.string(),
                               adapter ? ": it holds an adapter, which lora.adapter or --adapter names beside its base"
                                       : training_checkpoint_text(directory)));
}

DecoderConfig read_model_shape(const std::filesystem::path& path) {
  return std::filesystem::is_regular_file(path) ? read_decoder_config(path) : read_model_config(path);
}

std::vector<std::pair<std::string, std::string>> shape_facts(const DecoderConfig& shape) {
  return {{"model_type", shape.family},
          {"num_hidden_layers", std::to_string(shape.num_hidden_layers)},
          {"hidden_size", std::to_string(shape.hidden_size)},
          {"intermediate_size", std::to_string(shape.intermediate_size)},
          {"num_attention_heads", std::to_string(shape.num_attention_heads)},
          {"num_key_value_heads", std::to_string(shape.num_key_value_heads)},
          {"head_dim", std::to_string(shape.head_dim)},
          {"vocab_size", std::to_string(shape.vocab_size)},
          {"rms_norm_eps", format_exact(shape.norm_eps)},
          {"rope_theta", format_exact(shape.rope.theta)},
          {"rope_scaling", rope_text(shape.rope)},
          {"tie_word_embeddings", shape.tie_word_embeddings ? "true" : "false"},
          {"attention_dropout", format_exact(shape.attention_dropout)},
          {"initializer_range", format_exact(shape.initializer_range)}};
}

}  // namespace trireme
