// `trireme init-model`: a Hugging Face model directory with random weights.
#include "tools.h"

#include "data/tokenizer/tokenizer.h"
#include "models/bert/bert.h"
#include "models/bert/files.h"
#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "models/decoder/model_directory.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/bert_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>

namespace trireme {

namespace {

struct InitModelOptions {
  std::string preset, config, output, tokenizer, dtype;
  std::optional<int64_t> hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, vocab_size, max_positions;
  bool tie = false, force = false, config_only = false;
  uint64_t seed = 0;
};

/// ConfigError for a size below 1 or above ConfigReader::kMaxInteger.
void check_sizes(const InitModelOptions& options) {
  for (const auto& [name, value] : {std::pair{"--hidden-size", options.hidden_size},
                                    {"--layers", options.layers},
                                    {"--heads", options.heads},
                                    {"--kv-heads", options.kv_heads},
                                    {"--head-dim", options.head_dim},
                                    {"--intermediate-size", options.intermediate_size},
                                    {"--vocab-size", options.vocab_size},
                                    {"--max-positions", options.max_positions}})
    if (value && (*value < 1 || *value > ConfigReader::kMaxInteger))
      throw ConfigError(
          fmt::format("init-model: {} is {}; it must be from 1 to {}", name, *value, ConfigReader::kMaxInteger));
}

template <class Shape>
void set_sizes(Shape& config, const InitModelOptions& options) {
  config.hidden_size = options.hidden_size.value_or(config.hidden_size);
  config.intermediate_size = options.intermediate_size.value_or(config.intermediate_size);
  config.num_hidden_layers = options.layers.value_or(config.num_hidden_layers);
  config.num_attention_heads = options.heads.value_or(config.num_attention_heads);
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  config.max_position_embeddings = options.max_positions.value_or(config.max_position_embeddings);
}

/// The type of the weights, which becomes the configuration's. WriteError if --output holds a model.
DType stored_type(const InitModelOptions& options, std::string& configured) {
  const DType dtype = dtype_option("init-model", options.dtype.empty() ? configured : options.dtype);
  configured = torch_dtype_name(dtype);
  require_model_output("init-model", options.output, options.force);
  return dtype;
}

void tell_size(int64_t parameters, DType dtype) {
  log_info(fmt::format("{} parameters, {} as {}", format_count(parameters),
                       format_bytes(static_cast<double>(parameters) * static_cast<double>(dtype_size(dtype))),
                       torch_dtype_name(dtype)));
}

DecoderConfig shape_of(const InitModelOptions& options) {
  DecoderConfig config;
  if (!options.preset.empty()) {
    config = decoder_preset(options.preset);
  } else if (!options.config.empty()) {
    config = read_decoder_config(options.config);
  } else {
    std::vector<std::string> missing;
    for (const auto& [value, name] : {std::pair(&options.hidden_size, "--hidden-size"),
                                      {&options.layers, "--layers"},
                                      {&options.heads, "--heads"},
                                      {&options.intermediate_size, "--intermediate-size"},
                                      {&options.vocab_size, "--vocab-size"}})
      if (!*value) missing.emplace_back(name);
    if (!missing.empty())
      throw ConfigError("init-model: without --preset or --config it also needs " + join(missing, ", "));
    config.max_position_embeddings = 2048;
    config.norm_eps = 1e-5;
  }
  const int64_t old_heads = config.num_attention_heads;
  // The MLP keeps its ratio to the hidden size: exact for GPT's 4, else refused rather than rounded.
  if (options.hidden_size && !options.intermediate_size && config.hidden_size > 0) {
    const int64_t scaled = config.intermediate_size * *options.hidden_size;
    if (scaled % config.hidden_size != 0)
      throw ConfigError(
          fmt::format("init-model: --hidden-size {} and the shape's ratio {} / {} of MLP to hidden size give no whole "
                      "number: add --intermediate-size",
                      *options.hidden_size, config.intermediate_size, config.hidden_size));
    config.intermediate_size = scaled / config.hidden_size;
  }
  set_layers(config, options.layers.value_or(config.num_hidden_layers));
  set_sizes(config, options);
  config.num_key_value_heads = options.kv_heads.value_or(
      options.heads && (old_heads == 0 || old_heads == config.num_key_value_heads) ? *options.heads
                                                                                   : config.num_key_value_heads);
  if (options.head_dim)
    config.head_dim = *options.head_dim;
  else if (options.heads || options.hidden_size)
    config.head_dim = config.hidden_size / config.num_attention_heads;
  if (options.tie) config.tie_word_embeddings = true;

  if (config.head_dim < 1)
    throw ConfigError(
        fmt::format("init-model: a hidden size of {} has no room for {} heads; change one or give --head-dim",
                    config.hidden_size, config.num_attention_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    throw ConfigError(fmt::format(
        "init-model: {} query heads cannot share {} key/value heads evenly; --heads must be a multiple of --kv-heads",
        config.num_attention_heads, config.num_key_value_heads));
  const bool own_heads = !options.heads && !options.hidden_size;  // the preset's, of any size
  if (!options.head_dim && !own_heads && config.head_dim * config.num_attention_heads != config.hidden_size &&
      options.config.empty())
    throw ConfigError(
        fmt::format("init-model: hidden size {} is no multiple of {} heads; change one or give --head-dim",
                    config.hidden_size, config.num_attention_heads));
  if (config.positions == DecoderPositions::kRope && config.head_dim % 2 != 0)
    throw ConfigError(
        fmt::format("init-model: head dimension {} is odd; rotary embedding needs pairs", config.head_dim));
  if (const auto problems = shape_problems(config); !problems.empty())
    throw ConfigError("init-model: " + join(problems, "; "));
  return config;
}

void init_decoder(const InitModelOptions& options) {
  DecoderConfig config = shape_of(options);
  const DType dtype = stored_type(options, config.dtype);
  std::optional<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer.emplace(std::filesystem::path(options.tokenizer));
    if (tokenizer->vocab_size() > config.vocab_size)
      throw ConfigError(fmt::format("init-model: {} has {} tokens, the model's vocabulary {}; add --vocab-size {}",
                                    options.tokenizer, tokenizer->vocab_size(), config.vocab_size,
                                    tokenizer->vocab_size()));
    config.bos_token_id = tokenizer->bos_id();
    config.eos_token_ids = tokenizer->eos_id() ? std::vector<int64_t>{*tokenizer->eos_id()} : std::vector<int64_t>{};
    config.pad_token_id = tokenizer->pad_id();
  }
  // A preset's, of a larger vocabulary.
  for (std::optional<int64_t>* id : {&config.bos_token_id, &config.pad_token_id})
    if (*id && **id >= config.vocab_size) id->reset();
  std::erase_if(config.eos_token_ids, [&](int64_t id) { return id >= config.vocab_size; });

  const DecoderModel model(config, std::nullopt);
  tell_size(model.num_parameters(), dtype);
  ModelDirectoryWriter writer(options.output,
                              options.config_only ? std::vector<StoredTensor>() : stored_tensors(model.units(), dtype));
  if (!options.config_only) writer.append_initial(model.units(), options.seed);
  if (tokenizer) writer.copy_tokenizer(options.tokenizer);
  writer.write_companion("generation_config.json", generation_config_json(config));
  writer.finish(config);
}

/// google-research/bert's sizes, uncased.
const std::map<std::string, BertConfig>& bert_presets() {
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
      options.preset.empty() ? read_bert_config(bert_config_path(options.config)) : bert_presets().at(options.preset);
  if (options.hidden_size && !options.intermediate_size) config.intermediate_size = 4 * *options.hidden_size;
  set_sizes(config, options);
  if (config.hidden_size % config.num_attention_heads != 0)
    throw ConfigError(fmt::format("init-model: hidden size {} is no multiple of {} heads; change one",
                                  config.hidden_size, config.num_attention_heads));
  return config;
}

/// Whether --preset or --config names a BERT.
bool asks_for_bert(const InitModelOptions& options) {
  if (!options.preset.empty()) return bert_presets().contains(options.preset);
  if (options.config.empty()) return false;
  std::filesystem::path file = options.config;
  if (std::filesystem::is_directory(file)) file /= "config.json";
  if (!std::filesystem::is_regular_file(file)) return false;
  // Whoever reads the file for the model reports what is wrong with it.
  const auto json = nlohmann::json::parse(read_text_file(file, ExitCode::kModel, 16 << 20), nullptr, false);
  return json.is_object() && json.value("model_type", nlohmann::json()) == "bert";
}

/// Matrices and embeddings are normal with the configuration's initializer_range, biases 0, norms 1.
void init_bert(const InitModelOptions& options) {
  BertConfig config = bert_shape(options);
  const DType dtype = stored_type(options, config.dtype);
  if (!options.tokenizer.empty() && !std::filesystem::is_directory(options.tokenizer))
    throw ConfigError(
        fmt::format("init-model: {} is no directory: for BERT --tokenizer names one with vocab.txt or tokenizer.json",
                    options.tokenizer));

  const BertModel model(config, 1);
  tell_size(model.num_parameters(), dtype);
  BertDirectoryWriter writer(options.output,
                             options.config_only ? std::vector<StoredTensor>() : stored_tensors(model.units(), dtype));
  if (!options.config_only) writer.append_initial(model.units(), options.seed);
  writer.finish(options.tokenizer.empty() ? options.output : options.tokenizer, config);
}

}  // namespace

void add_init_model_tool(CLI::App& app) {
  auto options = std::make_shared<InitModelOptions>();
  std::vector<std::string> presets = decoder_preset_names();
  for (const auto& [name, config] : bert_presets()) presets.push_back(name);
  CLI::App* tool = app.add_subcommand("init-model", "A Hugging Face model directory with random weights");
  tool->add_option("--preset", options->preset, "Shape: " + join(presets, ", "));
  tool->add_option("--config", options->config, "Shape: a config.json of a decoder or of BERT");
  tool->add_option("--hidden-size", options->hidden_size, "Width of the residual stream (these override the preset)");
  tool->add_option("--layers", options->layers, "Blocks");
  tool->add_option("--heads", options->heads, "Query heads");
  tool->add_option("--kv-heads", options->kv_heads, "Key/value heads");
  tool->add_option("--head-dim", options->head_dim, "Width of a head (hidden size / heads)");
  tool->add_option("--intermediate-size", options->intermediate_size,
                   "Width inside the MLP (default: the shape's, in its ratio to the hidden size)");
  tool->add_option("--vocab-size", options->vocab_size, "Vocabulary");
  tool->add_option("--max-positions", options->max_positions, "Longest sequence");
  tool->add_flag("--tie", options->tie, "One matrix for embedding and output");
  tool->add_option("--tokenizer", options->tokenizer,
                   "Tokenizer to copy into the directory: tokenizer.model, tokenizer.json, or a directory with one; "
                   "for BERT a directory with vocab.txt");
  tool->add_option("--seed", options->seed, "Seed of the weights")->capture_default_str();
  tool->add_option("--dtype", options->dtype, "fp32, bf16 or fp16 (default: that of the shape)");
  tool->add_flag("--force", options->force, "Replace the model in --output");
  tool->add_flag("--config-only", options->config_only, "No weights: for runs with model.init: random");
  tool->add_option("--output", options->output, "Directory to write")->required();
  tool->callback([options] {
    if (!options->preset.empty() && !options->config.empty())
      throw ConfigError("init-model: give --preset or --config, not both");
    check_sizes(*options);
    asks_for_bert(*options) ? init_bert(*options) : init_decoder(*options);
    log_info(fmt::format("wrote {}", options->output));
  });
}

}  // namespace trireme
