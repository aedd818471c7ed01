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
      const auto variables = request.at("variables").get<std::map<std::string, std::string>>();
      const std::string key = source + request.at("variables").dump();
      auto found = templates.find(key);
      if (found == templates.end()) found = templates.emplace(key, ChatTemplate(source, "template", variables)).first;
      const Conversation conversation{request.at("messages"), request.value("tools", nlohmann::ordered_json())};
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
