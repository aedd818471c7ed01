// The tensors of a NeMo Llama's arrays, and its shape: context/model.yaml, a dump of the Python objects with `_target_`
// nodes (NeMo 2), or model_config.yaml, the settings of the training run (NeMo 1).
#include "models/decoder/family.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"
#include "trireme/formats/nemo/zarr_checkpoint.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <initializer_list>
#include <optional>

namespace trireme {

namespace {

constexpr int kMaxDepth = 24;
constexpr int kMaxVisits = 100'000;     // aliases can make few nodes many
constexpr size_t kMaxFile = 256 << 10;  // NeMo writes some 10 KB

/// The first mapping, searched depth first, that has both keys of a transformer configuration.
YAML::Node find_config(const YAML::Node& node, int depth, int& visits) {
  if (++visits > kMaxVisits)
    throw YAML::RepresentationException(node.Mark(), fmt::format("more than {} nodes", kMaxVisits));
  if (depth > kMaxDepth) return YAML::Node(YAML::NodeType::Undefined);
  if (node.IsMap()) {
    if (node["num_layers"] && node["hidden_size"]) return node;
    for (const auto& entry : node)
      if (YAML::Node found = find_config(entry.second, depth + 1, visits); found && found.IsMap()) return found;
  } else if (node.IsSequence()) {
    for (const auto& entry : node)
      if (YAML::Node found = find_config(entry, depth + 1, visits); found && found.IsMap()) return found;
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

int64_t embedding_rows(const std::filesystem::path& directory) {
  const auto array = zarr_array(directory, "embedding.word_embeddings.weight");
  if (array.empty())
    throw ModelError(
        fmt::format("{} has no embedding array (weights/module.embedding.word_embeddings.weight)", directory.string()));
  const auto path = array / ".zarray";
  const auto shape = member(read_json(path, ExitCode::kModel, 1 << 20), "shape");
  if (shape.is_array() && shape.size() == 2 && shape[0].is_number_unsigned() && shape[0].get<uint64_t>() > 0 &&
      shape[0].get<uint64_t>() <= INT32_MAX)
    return shape[0].get<int64_t>();
  throw ModelError(fmt::format("{} has no two-dimensional shape", path.string()));
}

}  // namespace

DecoderConfig read_nemo_config(const std::filesystem::path& model_yaml) {
  std::vector<std::string> problems;
  DecoderConfig config;
  try {
    int visits = 0;
    const YAML::Node node = find_config(YAML::Load(read_text_file(model_yaml, ExitCode::kModel, kMaxFile)), 0, visits);
    if (!node.IsDefined() || !node.IsMap())
      throw ModelError(fmt::format("{} holds no transformer configuration", model_yaml.string()));
    const auto value = [&](const char* key) -> std::optional<YAML::Node> {
      const YAML::Node found = node[key];
      if (!found.IsDefined() || found.IsNull() || !found.IsScalar()) return std::nullopt;
      return found;
    };
    const auto integer = [&](const char* key, std::optional<int64_t> fallback) -> int64_t {
      const auto found = value(key);
      if (found && found->as<int64_t>() > 0 && found->as<int64_t>() <= INT32_MAX) return found->as<int64_t>();
      if (found || !fallback) problems.push_back(fmt::format("{} is {}", key, found ? found->Scalar() : "missing"));
      return fallback.value_or(1);
    };
    const auto number = [&](const char* key, double fallback) -> double {
      const auto found = value(key);
      if (!found) return fallback;
      const auto read = found->as<double>();
      if (!(read > 0) || !std::isfinite(read))
        problems.push_back(fmt::format("{} is {}, expected a positive number", key, found->Scalar()));
      return read;
    };
    const auto refuse = [&](const char* key, std::initializer_list<const char*> allowed) {
      const YAML::Node found = node[key];
      if (!found.IsDefined() || found.IsNull() || (found.IsScalar() && found.Scalar() == "None")) return;
      const std::string text = found.IsScalar() ? found.Scalar() : YAML::Dump(found);
      for (const char* word : allowed) {
        double given = 0, wanted = 0;  // 0.00 is 0
        const bool numbers = YAML::convert<double>::decode(found, given) &&
                             YAML::convert<double>::decode(YAML::Node(std::string(word)), wanted);
        if (lower(text) == word || (numbers && given == wanted)) return;
      }
      problems.push_back(fmt::format("{}: {} is not supported", key, text));
    };
    config.num_hidden_layers = integer("num_layers", std::nullopt);
    config.hidden_size = integer("hidden_size", std::nullopt);
    config.intermediate_size = integer("ffn_hidden_size", std::nullopt);
    config.num_attention_heads = integer("num_attention_heads", std::nullopt);
    config.num_key_value_heads = integer("num_query_groups", config.num_attention_heads);
    config.head_dim = integer("kv_channels", config.hidden_size / config.num_attention_heads);
    config.max_position_embeddings =
        integer("seq_length", integer("max_position_embeddings", integer("encoder_seq_length", 4096)));
    config.rope.theta = number("rotary_base", 10000.0);
    config.norm_eps = number("layernorm_epsilon", 1e-5);
    if (const auto tied = value("share_embeddings_and_output_weights")) config.tie_word_embeddings = tied->as<bool>();
    const auto scaled = value("scale_positional_embedding");                                    // NeMo 1
    if ((value("scale_factor") && value("old_context_len")) || (scaled && scaled->as<bool>()))  // Llama 3.1 and later
      config.rope = {RopeFrequencies::Scaling::kLlama3, config.rope.theta,
                     number("scale_factor", 8),         number("low_freq_factor", 1),
                     number("high_freq_factor", 4),     integer("old_context_len", 8192)};
    // Keys that change the arithmetic, with the values of a Llama; NeMo 1 has its own words for some.
    refuse("normalization", {"rmsnorm"});
    refuse("gated_linear_unit", {"true"});
    refuse("activation", {"swiglu", "fast-swiglu"});
    refuse("add_bias_linear", {"false"});
    refuse("bias", {"false"});
    refuse("add_qkv_bias", {"false"});
    refuse("qk_layernorm", {"false"});
    refuse("layernorm_zero_centered_gamma", {"false"});
    refuse("position_embedding_type", {"rope"});
    refuse("rotary_interleaved", {"false"});
    refuse("rotary_percent", {"1"});
    refuse("rotary_percentage", {"1"});
    refuse("seq_len_interpolation_factor", {"null"});
    refuse("num_moe_experts", {"null"});
    refuse("multi_latent_attention", {"false"});
    for (const char* key :
         {"window_size", "softmax_scale", "activation_func_clamp_value", "attention_chunk_size", "no_rope_freq"})
      refuse(key, {"null"});
    for (const char* key : {"hidden_dropout", "attention_dropout"}) refuse(key, {"0"});
    refuse("nope_layer_interval", {"null", "0"});
    refuse("apply_residual_connection_post_layernorm", {"false"});
    refuse("softmax_type", {"vanilla"});
    refuse("normalize_attention_scores", {"true"});
    refuse("transformer_block_type", {"pre_ln"});
    if (const YAML::Node activation = node["activation_func"]; activation && activation.IsMap())
      if (const YAML::Node target = activation["_target_"];
          target && target.IsScalar() && !target.Scalar().ends_with(".silu"))
        problems.push_back(fmt::format("activation_func: {} is not supported", target.Scalar()));
  } catch (const YAML::Exception& error) {
    throw ModelError(
        fmt::format("{}:{}:{}: {}", model_yaml.string(), error.mark.line + 1, error.mark.column + 1, error.msg));
  }
  if (!problems.empty()) throw ModelError(fmt::format("{}: {}", model_yaml.string(), join(problems, "; ")));
  config.dtype = "bfloat16";
  // context/model.yaml lies a folder below the checkpoint, model_config.yaml of NeMo 1 in it.
  const auto folder = model_yaml.parent_path();
  config.vocab_size = embedding_rows(model_yaml.filename() == "model_config.yaml" ? folder : folder.parent_path());
  if (problems = shape_problems(config); !problems.empty())
    throw ModelError(fmt::format("{}: {}", model_yaml.string(), join(problems, "; ")));
  return config;
}

std::vector<ZarrTensor> nemo_tensors(const DecoderConfig& config) {
  const TensorNames& names = family_of(config).names;
  const BlockTable block = decoder_block(config);
  const int64_t d = config.hidden_size, v = config.vocab_size, blocks = config.num_hidden_layers;
  std::vector<ZarrTensor> tensors;
  const auto whole = [&](const std::string& module, const char* array, std::vector<int64_t> shape) {
    tensors.push_back({module + ".weight", array, shape, shape, -1, 0, shape[0]});
  };
  whole(names.embedding, "embedding.word_embeddings.weight", {v, d});
  whole(names.final_norm, "decoder.final_layernorm.weight", {d});
  if (!config.tie_word_embeddings) whole(names.head, "output_layer.weight", {v, d});
  for (const BlockLayer& layer : block.layers) {
    const auto shape = [&](int64_t rows) {
      return layer.product() ? std::vector<int64_t>{rows, layer.in} : std::vector<int64_t>{rows};
    };
    std::vector<int64_t> array_shape = shape(layer.out());
    array_shape.insert(array_shape.begin(), blocks);
    const int64_t groups = layer.nemo_groups, stride = layer.out() / groups;
    int64_t row = 0;
    for (const LayerPart& part : layer.parts) {
      for (int64_t b = 0; b < blocks; ++b)
        tensors.push_back({names.block(b) + part.module + ".weight", "decoder.layers." + layer.nemo, shape(part.rows),
                           array_shape, b, row, part.rows / groups, stride, groups});
      row += part.rows / groups;
    }
  }
  return tensors;
}

}  // namespace trireme
