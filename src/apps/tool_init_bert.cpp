// `trireme init-model` for BERT.
#include "init_model.h"
#include "tools.h"

#include "models/bert/bert.h"
#include "models/bert/files.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/bert_config.h"
#include "trireme/formats/huggingface/staged_model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>

namespace trireme {

namespace {

/// google-research/bert's sizes, uncased.
const std::map<std::string, BertConfig>& presets() {
  static const std::map<std::string, BertConfig> all = [] {
    std::map<std::string, BertConfig> sizes;
    for (const auto& [name, layers, hidden] :
         {std::tuple{"bert-tiny", 2, 128}, {"bert-base", 12, 768}, {"bert-large", 24, 1024}}) {
      BertConfig& config = sizes[name];
      config.num_hidden_layers = layers;
      config.hidden_size = hidden;
      config.num_attention_heads = hidden / 64;
      config.intermediate_size = 4 * hidden;
      config.vocab_size = 30522;
    }
    return sizes;
  }();
  return all;
}

BertConfig bert_shape(const InitModelOptions& options) {
  for (const auto& [given, name] : {std::pair{options.kv_heads.has_value(), "--kv-heads"},
                                    {options.head_dim.has_value(), "--head-dim"},
                                    {options.tie, "--tie"}})
    if (given) throw ConfigError(fmt::format("init-model: {} is not for BERT, which has no such choice", name));
  BertConfig config =
      options.preset.empty() ? read_bert_config(bert_config_path(options.config)) : presets().at(options.preset);
  if (options.hidden_size && !options.intermediate_size) config.intermediate_size = 4 * *options.hidden_size;
  config.hidden_size = options.hidden_size.value_or(config.hidden_size);
  config.intermediate_size = options.intermediate_size.value_or(config.intermediate_size);
  config.num_hidden_layers = options.layers.value_or(config.num_hidden_layers);
  config.num_attention_heads = options.heads.value_or(config.num_attention_heads);
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  config.max_position_embeddings = options.max_positions.value_or(config.max_position_embeddings);
  if (config.hidden_size % config.num_attention_heads != 0)
    throw ConfigError(fmt::format("init-model: hidden size {} is no multiple of {} heads; change one",
                                  config.hidden_size, config.num_attention_heads));
  return config;
}

}  // namespace

std::vector<std::string> bert_preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

bool asks_for_bert(const InitModelOptions& options) {
  if (!options.preset.empty()) return presets().contains(options.preset);
  if (options.config.empty()) return false;
  std::filesystem::path file = options.config;
  if (std::filesystem::is_directory(file)) file /= "config.json";
  if (!std::filesystem::is_regular_file(file)) return false;
  // Whoever reads the file for the model reports what is wrong with it.
  const auto json = nlohmann::json::parse(read_text_file(file, ExitCode::kModel, 16 << 20), nullptr, false);
  return json.is_object() && json.value("model_type", nlohmann::json()) == "bert";
}

void init_bert(const InitModelOptions& options) {
  if (!options.preset.empty() && !options.config.empty())
    throw ConfigError("init-model: give --preset or --config, not both");
  BertConfig config = bert_shape(options);
  const DType dtype = dtype_option("init-model", options.dtype.empty() ? config.dtype : options.dtype);
  config.dtype = torch_dtype_name(dtype);
  const std::filesystem::path output = options.output;
  if (!options.force && holds_model(output))
    throw WriteError(
        fmt::format("init-model: {} already holds a model; choose another directory or add --force", options.output));
  if (!options.tokenizer.empty() && !std::filesystem::is_directory(options.tokenizer))
    throw ConfigError(
        fmt::format("init-model: {} is no directory: for BERT --tokenizer names one with vocab.txt or tokenizer.json",
                    options.tokenizer));

  const BertModel model(config, 1);
  log_info(
      fmt::format("{} parameters, {} as {}", format_count(model.num_parameters()),
                  format_bytes(static_cast<double>(model.num_parameters()) * static_cast<double>(dtype_size(dtype))),
                  config.dtype));
  BertDirectoryWriter writer(output,
                             options.config_only ? std::vector<StoredTensor>() : stored_tensors(model.units(), dtype));
  if (!options.config_only) writer.append_initial(model.units(), options.seed);
  writer.finish(options.tokenizer.empty() ? output : std::filesystem::path(options.tokenizer), config);
  log_info(fmt::format("wrote {}", options.output));
}

}  // namespace trireme
