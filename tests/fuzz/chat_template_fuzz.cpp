// Chat templates: the input is a template, rendered for a conversation.
#include "data/chat/chat_template.h"
#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  fuzz::expect_only({ExitCode::kData}, [&] {
    const ChatTemplate chat(std::string(fuzz::as_text(data, size)), "template",
                            {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    Conversation conversation;
    conversation.messages = nlohmann::ordered_json::parse(
        R"([{"role": "system", "content": "s"}, {"role": "user", "content": " Gr\u00fc\u00dfe \n"}, {"role": "assistant", "content": "yes"}])");
    conversation.tools =
        nlohmann::ordered_json::parse(R"([{"function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}])");
    chat.render(conversation, true);
    const ChatText text = chat.training_text(conversation);
    size_t end = 0;
    for (const auto& [begin, last] : text.assistant) {
      fuzz::require(begin >= end && last > begin && last <= text.text.size(), "ascending parts inside of the text");
      end = last;
    }
  });
  return 0;
}
