#include "prompts.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace trireme {

namespace {

namespace fs = std::filesystem;

fs::path directory_of(const Config& config) {
  fs::path directory = config.model.path;
  if (fs::is_regular_file(directory)) directory = directory.parent_path();  // config.json alone
  if (!find_tokenizer(directory))
    throw ConfigError(fmt::format("eval.prompts: {} has no tokenizer: put the model's {} there", directory.string(),
                                  kTokenizerFiles));
  return directory;
}

}  // namespace

Prompts::Prompts(const Config& config, const DecoderConfig& shape, int64_t room)
    : model_(directory_of(config)), chat_(has_chat_template(directory_of(config))), prompts_(config.eval.prompts) {
  options_ = {.max_new_tokens = config.eval.max_new_tokens,
              .temperature = config.eval.temperature,
              .seed = static_cast<uint64_t>(config.train.seed),
              .ends = end_of_text_ids(directory_of(config), shape),
              .repetition_penalty = repetition_penalty(directory_of(config)),
              .vocabulary = model_.tokenizer().vocab_size(),
              .pass_tokens = room};
  if (chat_) model_.add_end_of_turn(options_.ends);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    std::vector<int32_t>& ids = ids_.emplace_back();
    if (chat_) {
      Conversation conversation;
      conversation.messages = {{{"role", "user"}, {"content", prompts_[i]}}};
      ids = model_.prompt(conversation);
    } else {
      ids = model_.tokenizer().leading();
      for (const int32_t id : model_.tokenizer().encode(prompts_[i])) ids.push_back(id);
    }
    const auto fail = [&](const std::string& what) {
      throw ConfigError(fmt::format("eval.prompts: text {}: {}", i + 1, what));
    };
    if (ids.empty()) fail("it is empty, and the tokenizer puts no token before a text");
    if (const int32_t most = *std::max_element(ids.begin(), ids.end()); most >= shape.vocab_size)
      fail(fmt::format("the tokenizer gives id {}, the model's vocabulary has {}", most, shape.vocab_size));
    if (static_cast<int64_t>(ids.size()) + options_.max_new_tokens > room)
      fail(fmt::format("its {} tokens and eval.max_new_tokens {} are more than the {} tokens of a rank's row",
                       ids.size(), options_.max_new_tokens, room));
  }
}

std::vector<SampledText> Prompts::texts(const std::vector<Continuation>& answers) const {
  std::vector<SampledText> texts;
  for (size_t i = 0; i < answers.size(); ++i)
    texts.push_back({prompts_[i], model_.tokenizer().decode(answers[i].ids), answers[i].ended});
  return texts;
}

std::string Prompts::description() const {
  return fmt::format("eval.prompts: {}, {}; {}", counted(prompts_.size(), "prompt"),
                     chat_ ? "template " + model_.chat().name() : "as they are, as the model has no chat template",
                     ends_of_answers(model_.tokenizer(), options_.ends));
}

}  // namespace trireme
