// `trireme init-model`: a Hugging Face model directory with random weights.
#include "init_model.h"
#include "tools.h"

#include "data/tokenizer/tokenizer.h"
#include "models/decoder/decoder.h"
#include "models/decoder/family.h"
#include "models/decoder/model_directory.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

namespace trireme {

namespace {

DecoderConfig shape_of(const InitModelOptions& options) {
  if (!options.preset.empty() && !options.config.empty())
    throw ConfigError("init-model: give --preset or --config, not both");
  DecoderConfig config;
  if (!options.preset.empty()) {
    config = decoder_preset(options.preset);
  } else if (!options.config.empty()) {
    config = read_decoder_config(options.config);
  } else {
    std::vector<std::string> missing;
    const auto need = [&](const std::optional<int64_t>& value, const char* name) {
      if (!value) missing.emplace_back(name);
    };
    need(options.hidden_size, "--hidden-size");
    need(options.layers, "--layers");
    need(options.heads, "--heads");
    need(options.intermediate_size, "--intermediate-size");
    need(options.vocab_size, "--vocab-size");
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
          fmt::format("init-model: --hidden-size {} and the shape's ratio {} / {} of MLP to hidden size give "
                      "no whole number: add --intermediate-size",
                      *options.hidden_size, config.intermediate_size, config.hidden_size));
    config.intermediate_size = scaled / config.hidden_size;
  }
  config.hidden_size = options.hidden_size.value_or(config.hidden_size);
  config.intermediate_size = options.intermediate_size.value_or(config.intermediate_size);
  set_layers(config, options.layers.value_or(config.num_hidden_layers));
  config.num_attention_heads = options.heads.value_or(config.num_attention_heads);
  config.num_key_value_heads = options.kv_heads.value_or(
      options.heads && (old_heads == 0 || old_heads == config.num_key_value_heads) ? *options.heads
                                                                                   : config.num_key_value_heads);
  if (options.head_dim)
    config.head_dim = *options.head_dim;
  else if ((options.heads || options.hidden_size) && config.num_attention_heads > 0)
    config.head_dim = config.hidden_size / config.num_attention_heads;
  config.vocab_size = options.vocab_size.value_or(config.vocab_size);
  config.max_position_embeddings = options.max_positions.value_or(config.max_position_embeddings);
  if (options.tie) config.tie_word_embeddings = true;

  if (config.head_dim < 1)
    throw ConfigError(
        fmt::format("init-model: a hidden size of {} has no room for {} heads; change one or give "
                    "--head-dim",
                    config.hidden_size, config.num_attention_heads));
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    throw ConfigError(
        fmt::format("init-model: {} query heads cannot share {} key/value heads evenly; --heads "
                    "must be a multiple of "
                    "--kv-heads",
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

void init_model(const InitModelOptions& options) {
  DecoderConfig config = shape_of(options);
  const DType dtype = dtype_option("init-model", options.dtype.empty() ? config.dtype : options.dtype);
  config.dtype = torch_dtype_name(dtype);
  const std::filesystem::path output = options.output;
  if (!options.force && holds_model(output))
    throw WriteError(
        fmt::format("init-model: {} already holds a model; choose another directory or add --force", options.output));

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

  const DecoderModel model(config, std::nullopt);
  log_info(
      fmt::format("{} parameters, {} as {}", format_count(model.num_parameters()),
                  format_bytes(static_cast<double>(model.num_parameters()) * static_cast<double>(dtype_size(dtype))),
                  config.dtype));
  ModelDirectoryWriter writer(output,
                              options.config_only ? std::vector<StoredTensor>() : stored_tensors(model.units(), dtype));
  if (!options.config_only) writer.append_initial(model.units(), options.seed);
  if (tokenizer) writer.copy_tokenizer(options.tokenizer);
  writer.write_companion("generation_config.json", generation_config_json(config));
  writer.finish(config);
  log_info(fmt::format("wrote {}", options.output));
}

}  // namespace

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

void add_init_model_tool(CLI::App& app) {
  auto options = std::make_shared<InitModelOptions>();
  CLI::App* tool = app.add_subcommand("init-model", "A Hugging Face model directory with random weights");
  tool->add_option("--preset", options->preset,
                   "Shape: " + join(decoder_preset_names(), ", ") + ", " + join(bert_preset_names(), ", "));
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
  tool->add_option(
      "--tokenizer", options->tokenizer,
      "Tokenizer to copy into the directory: tokenizer.model, tokenizer.json, or a directory with one; for "
      "BERT a directory with vocab.txt");
  tool->add_option("--seed", options->seed, "Seed of the weights")->capture_default_str();
  tool->add_option("--dtype", options->dtype, "fp32, bf16 or fp16 (default: that of the shape)");
  tool->add_flag("--force", options->force, "Replace the model in --output");
  tool->add_flag("--config-only", options->config_only, "No weights: for runs with model.init: random");
  tool->add_option("--output", options->output, "Directory to write")->required();
  tool->callback([options] {
    check_sizes(*options);
    asks_for_bert(*options) ? init_bert(*options) : init_model(*options);
  });
}

}  // namespace trireme
