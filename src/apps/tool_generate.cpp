// `trireme generate`: text from a model, on the CPU. The whole context is computed again for every
// token: meant for a look, not for serving.
#include "tools.h"

#include "data/tokenizer/tokenizer.h"
#include "models/decoder/adapter.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/rng.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

namespace trireme {

namespace {

struct GenerateOptions {
  std::string model, adapter, prompt;
  int64_t max_new_tokens = 50;
  double temperature = 0;
  uint64_t seed = 0;
};

int64_t choose(const at::Tensor& logits_V, double temperature, uint64_t seed, int64_t position) {
  if (temperature == 0) return logits_V.argmax().item<int64_t>();
  const at::Tensor cumulative = at::softmax(logits_V.to(at::kDouble) / temperature, -1).cumsum(0);
  const double u = static_cast<double>(derive_seed(seed, "generate", static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
  const int64_t id = cumulative.le(u * cumulative[-1].item<double>()).sum().item<int64_t>();
  return std::min(id, logits_V.size(0) - 1);
}

void generate(const GenerateOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw ConfigError(
        fmt::format("generate: --temperature is {}; it must be 0 or a positive finite number", options.temperature));
  if (options.max_new_tokens < 1)
    throw ConfigError(fmt::format("generate: --max-new-tokens is {}; it must be at least 1", options.max_new_tokens));
  const std::filesystem::path directory = options.model;
  DecoderConfig config = read_model_config(directory);
  const DecoderConfig stored = config;
  if (!find_tokenizer(directory))
    throw ModelError(fmt::format("{} has no tokenizer; put the model's {} there", options.model, kTokenizerFiles));
  const Tokenizer tokenizer(directory);

  std::optional<Adapter> adapter;
  if (!options.adapter.empty()) {
    adapter = read_adapter(options.adapter);
    if (const std::string other = other_base(*adapter, directory, "--model"); !other.empty()) log_warn(other);
  }
  if (adapter) config.vocab_size = vocab_with_adapter(stored, *adapter);
  const DecoderModel model = adapter ? model_for_adapter(config, *adapter) : DecoderModel(config, std::nullopt);
  const auto weights = open_decoder_weights(directory, stored, config.vocab_size, 0,
                                            adapter ? adapter->token_rows : std::map<std::string, TokenRows>());
  if (adapter) check_base_tensors(*adapter, *weights);
  auto units = load_whole(model, *weights, at::kFloat, at::kCPU);
  if (adapter) assign_adapter(model, import_adapter(*adapter, model), units);
  WholeUnitStore store(std::move(units));

  std::vector<int32_t> ids = tokenizer.leading();
  for (const int32_t id : tokenizer.encode(options.prompt)) ids.push_back(id);
  if (ids.empty()) throw ConfigError("generate: the prompt is empty and the tokenizer puts no token before a text");
  for (const int32_t id : ids)
    if (id >= config.vocab_size)
      throw ModelError(fmt::format(
          "{}: the tokenizer gives id {}, the model's vocabulary has {}: resize it with trireme model resize-vocab",
          options.model, id, config.vocab_size));
  if (static_cast<int64_t>(ids.size()) + options.max_new_tokens > config.max_position_embeddings)
    throw ConfigError(fmt::format(
        "generate: {} prompt tokens and {} new ones exceed the model's {} positions; lower --max-new-tokens",
        ids.size(), options.max_new_tokens, config.max_position_embeddings));

  check_sequence_length(config, static_cast<int64_t>(ids.size()) + options.max_new_tokens,
                        "generate: the length of the prompt and --max-new-tokens");

  const std::vector<int64_t> ends = end_of_text_ids(directory, config);
  StreamingDecoder text(tokenizer);
  const auto show = [](const std::string& part) {
    fmt::print("{}", part);
    std::fflush(stdout);
  };
  for (const int32_t id : ids) show(text.add(id));
  ForwardOptions forward;
  forward.train = false;
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const auto length = static_cast<int64_t>(ids.size());
    TokenBatch batch;
    batch.tokens_BS = at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).view({1, length});
    batch.positions_BS = at::arange(length, at::TensorOptions(at::kLong)).view({1, length});
    batch.loss_weight_BS = at::zeros({1, length}, at::kFloat);
    batch.cu_seqlens = {0, static_cast<int32_t>(length)};
    const at::Tensor logits = model.logits(store, batch, forward);
    // A padded vocabulary has rows without a token.
    const int64_t pieces = std::min(config.vocab_size, tokenizer.vocab_size());
    const int64_t next = choose(logits[0][length - 1].narrow(0, 0, pieces), options.temperature, options.seed, length);
    if (std::find(ends.begin(), ends.end(), next) != ends.end()) break;
    ids.push_back(static_cast<int32_t>(next));
    show(text.add(ids.back()));
  }
  show(text.finish() + "\n");
}

}  // namespace

void add_generate_tool(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* tool = app.add_subcommand("generate", "Continue a text with a model, on the CPU");
  tool->add_option("--model", options->model, "Hugging Face model directory")->required();
  tool->add_option("--adapter", options->adapter, "PEFT adapter directory");
  tool->add_option("--prompt", options->prompt, "Text to continue")->required();
  tool->add_option("--max-new-tokens", options->max_new_tokens, "Most tokens to add")->capture_default_str();
  tool->add_option("--temperature", options->temperature, "0 = the likeliest token every time")->capture_default_str();
  tool->add_option("--seed", options->seed, "Seed of the sampling")->capture_default_str();
  tool->callback([options] { generate(*options); });
}

}  // namespace trireme
