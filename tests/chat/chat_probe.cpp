// Chat templates for tests in other languages. stdin: JSON lines {template, messages, tools, prompt, variables};
// stdout: for each {text}, or {error}; with "spans": {text, spans}.
#include "data/chat/chat_template.h"
#include "trireme/base/error.h"

#include <fmt/format.h>
#include <iostream>
#include <map>
#include <string>

using namespace trireme;

int main() {
  std::map<std::string, ChatTemplate> templates;
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::ordered_json::parse(line);
    nlohmann::ordered_json answer;
    try {
      const auto source = request.at("template").get<std::string>();
      auto found = templates.find(source);
      if (found == templates.end()) found = templates.emplace(source, ChatTemplate(source, "template")).first;
      const Conversation conversation{request.at("messages"), request.value("tools", nlohmann::ordered_json()),
                                      request.at("variables")};
      if (request.contains("spans")) {
        const ChatText text = found->second.training_text(conversation);
        answer["text"] = text.text;
        answer["spans"] = text.assistant;
      } else {
        answer["text"] = found->second.render(conversation, request.at("prompt").get<bool>());
      }
    } catch (const Error& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump() << '\n';
  }
}
