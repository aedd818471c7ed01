// `trireme generate` and `trireme chat`: text from a model, on the CPU. The whole context is computed again for every
// token: meant for a look, not for serving.
#include "tools.h"

#include "data/chat/chat_model.h"
#include "models/common/stored.h"
#include "models/decoder/adapter.h"
#include "models/decoder/generation.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

namespace trireme {

namespace {

struct GenerateOptions {
  std::string model, adapter, prompt, system, template_file, template_name;
  std::vector<std::string> variables;  // of the template
  bool has_system = false;             // an empty one too, which stands where a template has a message of its own
  bool chat = false;                   // the prompt is a message
  int64_t max_new_tokens = 50;
  double temperature = 0;
  uint64_t seed = 0;
};

void print_text(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

/// A model on the CPU, and its tokenizer.
class Generator {
 public:
  Generator(const char* tool, const GenerateOptions& options) : tool_(tool), options_(options) {
    if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
      throw ConfigError(
          fmt::format("{}: --temperature is {}; it must be 0 or a positive finite number", tool, options.temperature));
    constexpr int64_t kMostNewTokens = 1 << 30;
    if (options.max_new_tokens < 1 || options.max_new_tokens > kMostNewTokens)
      throw ConfigError(fmt::format("{}: --max-new-tokens is {}; it must be from 1 to {}", tool, options.max_new_tokens,
                                    kMostNewTokens));
    const std::filesystem::path directory = options.model;
    config_ = read_model_config(directory);
    const DecoderConfig stored = config_;
    const std::filesystem::path tokens = tokenizer_directory(directory, options.adapter);
    if (!find_tokenizer(tokens))
      throw ModelError(fmt::format("{} has no tokenizer; put the model's {} there", options.model, kTokenizerFiles));
    ends_ = end_of_text_ids(directory, config_);
    repetition_penalty_ = repetition_penalty(directory);
    if (options.chat)
      chat_.emplace(tokens, template_file(tokens), options.template_name, directory / "config.json");
    else
      tokenizer_.emplace(tokens, directory / "config.json");
    if (const auto eos = tokenizer().eos_id(); eos && tokens != directory && std::ranges::count(ends_, *eos) == 0)
      ends_.push_back(*eos);
    if (options.chat) open_chat();

    std::optional<Adapter> adapter;
    if (!options.adapter.empty()) {
      adapter = read_adapter(options.adapter, stored);
      if (const std::string other = other_base(*adapter, directory, "--model"); !other.empty()) log_warn(other);
    } else if (const std::string beside = ignored_adapter(directory); !beside.empty()) {
      log_warn(beside);
    }
    if (adapter) config_.vocab_size = vocab_with_adapter(stored, *adapter);
    model_ = std::make_unique<DecoderModel>(adapter ? model_for_adapter(config_, *adapter)
                                                    : DecoderModel(config_, std::nullopt));
    const auto weights = open_decoder_weights(directory, stored, config_.vocab_size, 0,
                                              adapter ? adapter->token_rows : std::map<std::string, TokenRows>());
    if (adapter) check_base_tensors(*adapter, *weights);
    // The shapes are compared with the files before memory is taken.
    int64_t parameters = 0;
    for (const StoredTensor& tensor : stored_tensors(DecoderModel(config_, std::nullopt).units(), DType::kF32)) {
      (void)weight_type(*weights, tensor.name, tensor.info.shape);
      parameters += element_count(tensor.info.shape);
    }
    try {
      auto units = load_whole(*model_, *weights, at::kFloat);
      if (adapter) assign_adapter(*model_, import_adapter(*adapter, *model_), units);
      store_ = std::make_unique<WholeUnitStore>(std::move(units));
    } catch (const c10::Error& error) {
      throw ConfigError(fmt::format("{}: the model's {} parameters need {} as fp32 in the memory of this machine: {}",
                                    tool, format_count(parameters), format_bytes(4.0 * static_cast<double>(parameters)),
                                    error.what_without_backtrace()));
    }
  }

  const Tokenizer& tokenizer() const { return chat_ ? chat_->tokenizer() : *tokenizer_; }

  /// Shows the text that follows, and returns it.
  std::string continue_text(const std::vector<int32_t>& ids, StreamingDecoder text) {
    std::string whole;
    const auto add = [&](const std::string& part) {
      print_text(part);
      whole += part;
    };
    GenerationSteps steps;
    steps.token = [&](size_t, int32_t id) { add(text.add(id)); };
    generate(*model_, *store_, at::kCPU, {ids},
             {.max_new_tokens = options_.max_new_tokens,
              .temperature = options_.temperature,
              .seed = options_.seed,
              .ends = ends_,
              .repetition_penalty = repetition_penalty_,
              .vocabulary = tokenizer().vocab_size()},
             steps);
    add(text.finish());
    print_text("\n");
    return whole;
  }

  /// A message of the user and the model's answer to it.
  void turn(const std::string& message) {
    Conversation conversation = messages_;
    conversation.messages.push_back({{"role", "user"}, {"content", message}});
    const std::vector<int32_t> ids = chat_->prompt(conversation);
    check(ids);
    const std::string answer = continue_text(ids, StreamingDecoder(tokenizer()));
    conversation.messages.push_back({{"role", "assistant"}, {"content", answer}});
    messages_ = std::move(conversation);
  }

  /// Whether the model can continue these ids. ConfigError, ModelError.
  void check(const std::vector<int32_t>& ids) const {
    if (ids.empty())
      throw ConfigError(fmt::format("{}: the prompt is empty and the tokenizer puts no token before a text", tool_));
    for (const int32_t id : ids)
      if (id >= config_.vocab_size)
        throw ModelError(
            fmt::format("{}: the tokenizer gives id {}, the model's vocabulary has {}: resize it with trireme "
                        "model resize-vocab",
                        options_.model, id, config_.vocab_size));
    const auto prompt = static_cast<int64_t>(ids.size()), length = prompt + options_.max_new_tokens;
    // Dynamic scaling is made for longer texts: its frequencies follow the length.
    if (length > config_.max_position_embeddings && config_.rope.scaling != RopeFrequencies::Scaling::kDynamic)
      throw ConfigError(
          fmt::format("{}: {} prompt tokens and {} new ones exceed the model's {} positions; "
                      "{}",
                      tool_, prompt, options_.max_new_tokens, config_.max_position_embeddings,
                      prompt < config_.max_position_embeddings ? "lower --max-new-tokens"
                      : options_.chat                          ? "the conversation is too long: begin a new one"
                                                               : "shorten the prompt"));
    check_sequence_length(config_, length, fmt::format("{}: the length of the prompt and --max-new-tokens", tool_));
  }

 private:
  /// Of --template, or of an adapter that has a template and no tokenizer; empty: that beside the tokenizer.
  std::string template_file(const std::filesystem::path& tokenizer) const {
    const auto own = std::filesystem::path(options_.adapter) / "chat_template.jinja";
    const bool alone = !options_.adapter.empty() && tokenizer == options_.model && options_.template_file.empty() &&
                       options_.template_name.empty() && std::filesystem::is_regular_file(own);
    return alone ? own.string() : options_.template_file;
  }

  void open_chat() {
    if (options_.has_system) messages_.messages.push_back({{"role", "system"}, {"content", options_.system}});
    messages_.variables = template_variables(options_.variables);
    chat_->chat().check_variables(messages_.variables);
    chat_->add_end_of_turn(ends_);
    log_info(fmt::format("template {}; {}", chat_->chat().name(), ends_of_answers(tokenizer(), ends_)));
  }

  const char* tool_;
  const GenerateOptions& options_;
  DecoderConfig config_;
  std::vector<int64_t> ends_;
  double repetition_penalty_ = 1;
  std::optional<Tokenizer> tokenizer_;  // without chat_
  std::optional<ChatModel> chat_;
  Conversation messages_;
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<WholeUnitStore> store_;
};

void run_generate(const GenerateOptions& options) {
  if (!options.chat && (options.has_system || !options.template_file.empty() || !options.template_name.empty() ||
                        !options.variables.empty()))
    throw ConfigError("generate: --system, --template, --template-name and --variable are for --chat");
  Generator generator("generate", options);
  if (options.chat) return generator.turn(options.prompt);
  const Tokenizer& tokenizer = generator.tokenizer();
  std::vector<int32_t> ids = tokenizer.leading();
  for (const int32_t id : tokenizer.encode(options.prompt)) ids.push_back(id);
  generator.check(ids);
  StreamingDecoder text(tokenizer);
  for (const int32_t id : ids) print_text(text.add(id));
  generator.continue_text(ids, std::move(text));
}

void run_chat(const GenerateOptions& options) {
  Generator generator("chat", options);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto ask = [&] {
    if (terminal) print_text("> ");
  };
  ask();
  for (std::string line; std::getline(std::cin, line); ask()) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    try {
      generator.turn(line);
    } catch (const Error& refused) {
      if (!terminal) throw;
      log_warn(refused.what());  // the conversation goes on without this message
    }
  }
  if (std::cin.bad() || std::ferror(stdin) != 0) throw DataError("chat: the standard input cannot be read");
  if (terminal) print_text("\n");
}

/// Options of both commands.
void add_options(CLI::App& tool, GenerateOptions& options) {
  tool.add_option("--model", options.model, "Hugging Face model directory")->required();
  tool.add_option("--adapter", options.adapter, "PEFT adapter directory");
  tool.add_option("--system", options.system, "Message of the system")->each([&options](const std::string&) {
    options.has_system = true;
  });
  add_template_options(tool, options.template_file, options.template_name, options.variables);
  tool.add_option("--max-new-tokens", options.max_new_tokens, "Most tokens to add")->capture_default_str();
  tool.add_option("--temperature", options.temperature, "0 = the likeliest token every time")->capture_default_str();
  tool.add_option("--seed", options.seed, "Seed of the sampling")->capture_default_str();
}

}  // namespace

void add_generate_tool(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* tool = app.add_subcommand("generate", "Continue a text with a model, on the CPU");
  add_options(*tool, *options);
  tool->add_option("--prompt", options->prompt, "Text to continue; with --chat the user's message")->required();
  tool->add_flag("--chat", options->chat, "Answer the prompt, by the model's chat template");
  tool->callback([options] { run_generate(*options); });
}

void add_chat_tool(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  options->chat = true;
  options->max_new_tokens = 256;
  CLI::App* tool = app.add_subcommand(
      "chat",
      "Talk with a model by its chat template, on the CPU: each line of stdin is a message, in one conversation");
  add_options(*tool, *options);
  tool->callback([options] { run_chat(*options); });
}

}  // namespace trireme
