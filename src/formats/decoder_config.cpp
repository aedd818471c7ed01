#include "trireme/formats/decoder_config.h"

#include "config_reader.h"
#include "json.h"
#include "model_checks.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/zarr_checkpoint.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace trireme {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxInteger = ConfigReader::kMaxInteger;
constexpr int64_t kMaxLayers = 10'000;
constexpr double kMaxParameters = 1125899906842624.0;  // 2^50

using Reader = ConfigReader;

void read_rope(Reader& reader, DecoderConfig& config) {
  const Json& root = reader.json();
  config.rope_theta = reader.number("rope_theta", 10000.0);
  // transformers 5 writes one object, rope_parameters; transformers 4 rope_theta beside rope_scaling. Where both are
  // there transformers takes rope_scaling alone, unless it is empty.
  const auto holds = [&](const char* name) { return reader.has(name) && !root[name].empty(); };
  const char* key = holds("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!holds(key)) return;
  const Json& rope = root[key];
  if (!rope.is_object()) return reader.problem(fmt::format("{} is not an object", key));
  for (const auto& [name, value] : rope.items())
    if (value.is_object()) reader.lacking(fmt::format("{}.{}", key, name), value);  // one set for each kind of layer
  config.rope_theta = reader.number(rope, "rope_theta", config.rope_theta);
  if (rope.contains("partial_rotary_factor") && rope["partial_rotary_factor"] != Json(1.0))
    reader.lacking("partial_rotary_factor", rope["partial_rotary_factor"]);
  const Json type = rope.contains("rope_type") ? rope["rope_type"]
                    : rope.contains("type")    ? rope["type"]
                                               : Json("default");
  if (type == "default") return;
  const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
  config.rope_scaling.factor = reader.number(rope, "factor", 0.0);
  if (name == "linear") {
    config.rope_scaling.type = RopeScaling::Type::kLinear;
  } else if (name == "llama3") {
    config.rope_scaling.type = RopeScaling::Type::kLlama3;
    const Json outer = member(root, "original_max_position_embeddings");
    for (const char* field : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      if (!rope.contains(field) && (outer.is_null() || field != std::string("original_max_position_embeddings")))
        reader.problem(fmt::format("{}.{} is missing", key, field));
    config.rope_scaling.low_freq_factor = reader.number(rope, "low_freq_factor", 1.0);
    config.rope_scaling.high_freq_factor = reader.number(rope, "high_freq_factor", 4.0);
    // A value beside rope_scaling overrides the one in it.
    const double original = reader.number(outer.is_null() ? rope : root, "original_max_position_embeddings", 8192);
    if (original < 1 || original > static_cast<double>(kMaxInteger) || original != std::floor(original))
      reader.problem(fmt::format("{}.original_max_position_embeddings is {}, expected an integer from 1 to {}", key,
                                 original, kMaxInteger));
    else
      config.rope_scaling.original_max_position = static_cast<int64_t>(original);
    if (config.rope_scaling.high_freq_factor <= config.rope_scaling.low_freq_factor)
      reader.problem(fmt::format("{}.high_freq_factor must be greater than low_freq_factor", key));
  } else {
    return reader.lacking(fmt::format("{}.rope_type", key), type);
  }
  if (!rope.contains("factor")) reader.problem(fmt::format("{}.factor is missing", key));
}

}  // namespace

std::vector<std::string> shape_problems(const DecoderConfig& config) {
  std::vector<std::string> problems;
  if (config.num_hidden_layers > kMaxLayers)
    problems.push_back(
        fmt::format("num_hidden_layers is {}, at most {} are supported", config.num_hidden_layers, kMaxLayers));
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    problems.push_back(fmt::format("num_attention_heads {} is no multiple of num_key_value_heads {}",
                                   config.num_attention_heads, config.num_key_value_heads));
  if (config.head_dim % 2 != 0)
    problems.push_back(fmt::format("head_dim {} is odd: rotary positions need pairs", config.head_dim));
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double attention =
      real(config.head_dim) * 2 * (real(config.num_attention_heads) + real(config.num_key_value_heads));
  const double block = real(config.hidden_size) * (attention + 3 * real(config.intermediate_size) + 2);
  const double parameters =
      real(config.num_hidden_layers) * block + real(config.hidden_size) * (2 * real(config.vocab_size) + 1);
  if (parameters > kMaxParameters)
    problems.push_back(fmt::format("the shape has {:.3g} parameters, more than any computer holds", parameters));
  return problems;
}

void refuse_file_for_directory(const std::filesystem::path& path) {
  throw ModelError(fmt::format(
      "{} is a file where a model's directory is expected (config.json, *.safetensors); PyTorch's own files (.pt, "
      ".bin) are pickles and never opened: convert them once with transformers' save_pretrained(path, "
      "safe_serialization=True)",
      path.string()));
}

DecoderConfig read_decoder_config(const std::filesystem::path& config_json) {
  const Json json =
      parse_json(read_text_file(config_json, ExitCode::kModel, 16 << 20), config_json.string(), ExitCode::kModel);
  if (!json.is_object()) throw ModelError(fmt::format("{} is not a JSON object", config_json.string()));
  Reader reader(json, config_json.string());
  reader.only("model_type", {"\"llama\""});
  reader.only("architectures", {"[\"LlamaForCausalLM\"]", "[]"});
  if (!reader.has("model_type") && !reader.has("architectures"))
    reader.problem("neither model_type nor architectures is there");
  reader.only("attention_bias", {"false"});
  reader.only("mlp_bias", {"false"});
  reader.only("hidden_act", {"\"silu\"", "\"swish\""});
  reader.only("attention_dropout", {"0", "0.0"});
  reader.only("partial_rotary_factor", {"1", "1.0"});
  for (const char* key : {"quantization_config", "sliding_window"})
    if (reader.has(key)) reader.lacking(key, json[key]);

  DecoderConfig config;
  config.hidden_size = reader.integer("hidden_size");
  config.intermediate_size = reader.integer("intermediate_size");
  config.num_hidden_layers = reader.integer("num_hidden_layers");
  config.num_attention_heads = reader.integer("num_attention_heads");
  config.num_key_value_heads = reader.integer("num_key_value_heads", config.num_attention_heads);
  config.vocab_size = reader.integer("vocab_size");
  config.max_position_embeddings = reader.integer("max_position_embeddings", 2048);
  config.head_dim = reader.integer("head_dim", config.hidden_size / config.num_attention_heads);
  config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  config.initializer_range = reader.number("initializer_range", 0.02);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  config.bos_token_id = reader.token_id("bos_token_id", 1);
  config.eos_token_ids = reader.token_ids("eos_token_id", {2});
  config.pad_token_id = reader.token_id("pad_token_id", std::nullopt, /*lowest=*/-1);
  for (const char* key : {"torch_dtype", "dtype"})
    if (reader.has(key) && json[key].is_string()) config.dtype = json[key].get<std::string>();
  read_rope(reader, config);
  reader.finish();

  for (const std::string& problem : shape_problems(config)) reader.problem(problem);
  if (!reader.has("head_dim") && config.hidden_size % config.num_attention_heads != 0)
    reader.problem(fmt::format("hidden_size {} is no multiple of num_attention_heads {}", config.hidden_size,
                               config.num_attention_heads));
  reader.finish();
  return config;
}

namespace {

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// As transformers writes eos_token_id: null, one id, or a list.
Json id_or_list(const std::vector<int64_t>& ids) {
  if (ids.empty()) return Json();
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

}  // namespace

std::vector<int64_t> end_of_text_ids(const std::filesystem::path& directory, const DecoderConfig& config) {
  const auto path = directory / "generation_config.json";
  if (!std::filesystem::is_regular_file(path)) return config.eos_token_ids;
  const Json json = parse_json(read_text_file(path, ExitCode::kModel, 1 << 20), path.string(), ExitCode::kModel);
  if (!json.is_object()) throw ModelError(fmt::format("{} is not a JSON object", path.string()));
  Reader reader(json, path.string());
  const std::vector<int64_t> ids = reader.token_ids("eos_token_id", {});
  reader.finish();
  return ids.empty() ? config.eos_token_ids : ids;
}

std::string generation_config_json(const DecoderConfig& config) {
  nlohmann::ordered_json json = {{"_from_model_config", true}, {"bos_token_id", or_null(config.bos_token_id)}};
  json["eos_token_id"] = id_or_list(config.eos_token_ids);
  if (config.pad_token_id && *config.pad_token_id >= 0) json["pad_token_id"] = *config.pad_token_id;
  return json.dump(2) + "\n";
}

std::string decoder_config_json(const DecoderConfig& config) {
  Json rope = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  Json scaling;  // null
  if (config.rope_scaling.type == RopeScaling::Type::kLinear) {
    scaling = {{"rope_type", "linear"}, {"type", "linear"}, {"factor", config.rope_scaling.factor}};
  } else if (config.rope_scaling.type == RopeScaling::Type::kLlama3) {
    scaling = {{"rope_type", "llama3"},
               {"factor", config.rope_scaling.factor},
               {"low_freq_factor", config.rope_scaling.low_freq_factor},
               {"high_freq_factor", config.rope_scaling.high_freq_factor},
               {"original_max_position_embeddings", config.rope_scaling.original_max_position}};
  }
  if (scaling.is_object()) {
    rope = scaling;
    rope.erase("type");
    rope["rope_theta"] = config.rope_theta;
  }
  const Json json = {{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"hidden_size", config.hidden_size},
                     {"intermediate_size", config.intermediate_size},
                     {"num_hidden_layers", config.num_hidden_layers},
                     {"num_attention_heads", config.num_attention_heads},
                     {"num_key_value_heads", config.num_key_value_heads},
                     {"head_dim", config.head_dim},
                     {"vocab_size", config.vocab_size},
                     {"max_position_embeddings", config.max_position_embeddings},
                     {"rms_norm_eps", config.rms_norm_eps},
                     {"initializer_range", config.initializer_range},
                     {"hidden_act", "silu"},
                     {"attention_bias", false},
                     {"attention_dropout", 0.0},
                     {"mlp_bias", false},
                     {"tie_word_embeddings", config.tie_word_embeddings},
                     {"bos_token_id", or_null(config.bos_token_id)},
                     {"eos_token_id", id_or_list(config.eos_token_ids)},
                     {"pad_token_id", or_null(config.pad_token_id)},
                     {"rope_theta", config.rope_theta},
                     {"rope_scaling", scaling},
                     {"rope_parameters", rope},
                     {"torch_dtype", config.dtype},
                     {"use_cache", true}};
  return json.dump(2) + "\n";
}

DecoderConfig read_model_config(const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / "config.json")) return read_decoder_config(directory / "config.json");
  for (const auto& context : {directory / "context", directory.parent_path() / "context"})
    if (std::filesystem::exists(context / "model.yaml")) return read_nemo_config(context / "model.yaml");
  for (const auto& folder : {directory, directory.parent_path()})
    if (std::filesystem::exists(folder / "model_config.yaml")) return read_nemo_config(folder / "model_config.yaml");
  if (std::filesystem::is_regular_file(directory)) refuse_file_for_directory(directory);
  if (!std::filesystem::is_directory(directory))
    throw ModelError(fmt::format("model directory {} does not exist", directory.string()));
  if (is_zarr_checkpoint(directory))
    throw ModelError(fmt::format(
        "{} is a NeMo checkpoint without context/model.yaml or model_config.yaml, which say the model's shape",
        directory.string()));
  throw ModelError(fmt::format("{} has no config.json", directory.string()));
}

}  // namespace trireme
