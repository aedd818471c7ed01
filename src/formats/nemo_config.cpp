// The shape of a NeMo Llama: context/model.yaml, a dump of the Python objects with `_target_` nodes.
#include "trireme/formats/hf_config.h"

#include "json.h"
#include "model_checks.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
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
  for (const auto& root : {directory / "weights", directory}) {
    for (const char* name : {"module.embedding.word_embeddings.weight", "embedding.word_embeddings.weight"}) {
      const auto zarray = root / name / ".zarray";
      if (!std::filesystem::exists(zarray)) continue;
      const auto json =
          parse_json(read_text_file(zarray, ExitCode::kModel, 1 << 20), zarray.string(), ExitCode::kModel);
      const auto shape = member(json, "shape");
      if (shape.is_array() && shape.size() == 2 && shape[0].is_number_unsigned() && shape[0].get<uint64_t>() > 0 &&
          shape[0].get<uint64_t>() <= INT32_MAX)
        return shape[0].get<int64_t>();
      throw ModelError(fmt::format("{} has no two-dimensional shape", zarray.string()));
    }
  }
  throw ModelError(
      fmt::format("{} has no embedding array (weights/module.embedding.word_embeddings.weight)", directory.string()));
}

}  // namespace

LlamaConfig read_nemo_llama_config(const std::filesystem::path& model_yaml) {
  std::vector<std::string> problems;
  LlamaConfig config;
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
    const auto refuse = [&](const char* key, const char* allowed) {
      const auto found = value(key);
      if (found && found->Scalar() != allowed && found->Scalar() != "None")
        problems.push_back(fmt::format("{}: {} is not supported", key, found->Scalar()));
    };
    config.num_hidden_layers = integer("num_layers", std::nullopt);
    config.hidden_size = integer("hidden_size", std::nullopt);
    config.intermediate_size = integer("ffn_hidden_size", std::nullopt);
    config.num_attention_heads = integer("num_attention_heads", std::nullopt);
    config.num_key_value_heads = integer("num_query_groups", config.num_attention_heads);
    config.head_dim = integer("kv_channels", config.hidden_size / config.num_attention_heads);
    config.max_position_embeddings = integer("seq_length", 4096);
    config.rope_theta = number("rotary_base", 10000.0);
    config.rms_norm_eps = number("layernorm_epsilon", 1e-5);
    if (const auto tied = value("share_embeddings_and_output_weights")) config.tie_word_embeddings = tied->as<bool>();
    refuse("normalization", "RMSNorm");
    refuse("gated_linear_unit", "true");
    refuse("add_bias_linear", "false");
    refuse("add_qkv_bias", "false");
    refuse("position_embedding_type", "rope");
    refuse("rotary_percent", "1.0");
    refuse("seq_len_interpolation_factor", "null");
  } catch (const YAML::Exception& error) {
    throw ModelError(
        fmt::format("{}:{}:{}: {}", model_yaml.string(), error.mark.line + 1, error.mark.column + 1, error.msg));
  }
  if (!problems.empty()) throw ModelError(fmt::format("{}: {}", model_yaml.string(), join(problems, "; ")));
  config.dtype = "bfloat16";
  config.vocab_size = embedding_rows(model_yaml.parent_path().parent_path());
  if (problems = shape_problems(config); !problems.empty())
    throw ModelError(fmt::format("{}: {}", model_yaml.string(), join(problems, "; ")));
  return config;
}

}  // namespace trireme
