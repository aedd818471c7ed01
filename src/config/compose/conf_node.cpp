#include "trireme/compose/compose.h"

#include "conf_scalar.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

std::string ConfPlace::text() const {
  const std::string name = source ? *source : "";
  return line == 0 ? fmt::format("override '{}'", name) : fmt::format("{}:{}:{}", name, line, column);
}

const ConfNode* ConfNode::find(std::string_view key) const { return const_cast<ConfNode*>(this)->find(key); }

ConfNode* ConfNode::find(std::string_view key) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const ConfEntry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &found->value;
}

ConfNode& ConfNode::at_or_add(const std::string& key) {
  if (kind != Kind::kMap) {
    const ConfPlace before = place;
    *this = ConfNode{};
    kind = Kind::kMap;
    place = before;
  }
  if (ConfNode* known = find(key)) return *known;
  entries.push_back({key, place, {}});
  return entries.back().value;
}

void ConfNode::erase(std::string_view key) {
  std::erase_if(entries, [&](const ConfEntry& entry) { return entry.key == key; });
}

std::vector<std::string> ConfNode::keys() const {
  std::vector<std::string> names;
  for (const ConfEntry& entry : entries) names.push_back(entry.key);
  return names;
}

std::string ConfNode::str() const {
  const auto quoted = [](const ConfNode& node) {
    return node.is(Kind::kText) ? fmt::format("'{}'", node.text) : node.str();
  };
  switch (kind) {
    case Kind::kNull: return "None";
    case Kind::kBool: return boolean ? "True" : "False";
    case Kind::kInteger: return std::to_string(integer);
    case Kind::kNumber: return python_number(number);
    case Kind::kText: return text;
    case Kind::kList: {
      std::vector<std::string> parts;
      for (const ConfNode& item : items) parts.push_back(quoted(item));
      return fmt::format("[{}]", join(parts, ", "));
    }
    case Kind::kMap: break;
  }
  std::vector<std::string> parts;
  for (const ConfEntry& entry : entries) parts.push_back(fmt::format("'{}': {}", entry.key, quoted(entry.value)));
  return fmt::format("{{{}}}", join(parts, ", "));
}

void ConfProblems::add(const std::string& line) {
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(line);
}

void ConfProblems::throw_if_any(const std::string& what) const {
  if (lines_.empty()) return;
  throw ConfigError(fmt::format("{}\n{} has {}: correct {} and run again", join(lines_, "\n"), what,
                                lines_.size() == 1 ? "one problem" : fmt::format("{} problems", lines_.size()),
                                lines_.size() == 1 ? "it" : "them"));
}

}  // namespace trireme
