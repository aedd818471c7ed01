#include "trireme/cli/interface.h"

#include "trireme/base/text.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr size_t kWidth = 100, kLeft = 30;

std::string line(const std::string& left, const std::string& right) {
  const std::string text = wrap(right, kWidth, kLeft);
  if (left.size() + 2 > kLeft) return fmt::format("{}\n{:{}}{}\n", left, "", kLeft, text);
  return fmt::format("{:<{}}{}\n", left, kLeft, text);
}

/// "N" of CLI11's "INT:INT in [1 - 8]"; empty for a flag.
std::string placeholder(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = split(option.get_type_name(), ':').front();
  return type == "INT" || type == "UINT" ? "N" : type == "FLOAT" ? "X" : type;
}

/// The limits that CLI11 appends to the type: "TEXT:{a,b}", "INT:INT in [1 - 8]", "FLOAT:POSITIVE".
std::string limits(const std::string& type) {
  const auto inside = [&](const char* open, char close) -> std::string {
    const size_t begin = type.find(open), end = type.rfind(close);
    if (begin == std::string::npos || end == std::string::npos) return "";
    const size_t from = begin + std::string_view(open).size();
    return from < end ? type.substr(from, end - from) : "";
  };
  if (const std::string words = inside("{", '}'); !words.empty()) return join(split(words, ','), ", ");
  if (std::string range = inside(" in [", ']'); !range.empty()) {
    if (const size_t dash = range.find(" - "); dash != std::string::npos) range.replace(dash, 3, " to ");
    return range;
  }
  return type.find(":POSITIVE") != std::string::npos ? "> 0" : "";
}

std::string notes(const CLI::Option& option) {
  std::vector<std::string> all;
  if (const std::string text = limits(option.get_type_name()); !text.empty()) all.push_back(text);
  if (option.get_required()) all.emplace_back("required");
  if (const std::string value = option.get_default_str(); !value.empty()) all.push_back("default " + value);
  std::vector<std::string> others;
  for (const CLI::Option* other : option.get_excludes()) others.push_back(other->get_name());
  if (!others.empty()) all.push_back("not with " + join(others, ", "));
  return all.empty() ? "" : fmt::format(" ({})", join(all, "; "));
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string left = "  " + option->get_name(positional, !positional);
    if (const std::string value = placeholder(*option); !value.empty() && !positional) left += " " + value;
    if (option->get_expected_max() > 1) left += " …";
    return line(left, option->get_description() + notes(*option));
  }
  std::string make_description(const CLI::App* app) const override {
    std::string text;
    for (const std::string& paragraph : split(app->get_description(), '\n')) text += wrap(paragraph, kWidth, 0) + "\n";
    return text;
  }
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string text = command->get_description();
    return line("  " + command->get_name(), text.substr(0, text.find('\n')));
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

}  // namespace trireme
