#include "data/stream/dataset_card.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "yaml_tree.h"

#include <algorithm>
#include <regex>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// The YAML between the first line "---" and the next one.
std::string head_of_card(const fs::path& card) {
  constexpr size_t kMaxHead = 256 << 10;
  std::string text = file_head(card, kMaxHead);
  std::erase(text, '\r');
  if (!text.starts_with("---\n")) return "";
  const size_t end = text.find("\n---", 3);
  return end == std::string::npos ? "" : text.substr(4, end + 1 - 4);
}

std::string text_at(const YamlNode& map, const char* key) {
  const YamlEntry* entry = map.find(key);
  return entry == nullptr ? "" : entry->value.text;
}

/// A text, or a list of texts.
std::vector<std::string> texts_of(const YamlNode& node) {
  std::vector<std::string> texts;
  if (node.kind == YamlNode::Kind::kScalar) texts.push_back(node.text);
  for (const YamlNode& item : node.items)
    if (item.kind == YamlNode::Kind::kScalar) texts.push_back(item.text);
  return texts;
}

void add_configuration(const YamlNode& configuration, std::vector<CardSplit>& splits) {
  const std::string name = text_at(configuration, "config_name"), folder = text_at(configuration, "data_dir");
  const auto add = [&](const std::string& split, std::vector<std::string> patterns) {
    for (std::string& pattern : patterns)
      if (!folder.empty()) pattern.insert(0, folder + "/");
    if (!patterns.empty()) splits.push_back({name + ": " + split, std::move(patterns)});
  };
  const YamlEntry* files = configuration.find("data_files");
  if (files == nullptr) {
    if (!folder.empty()) add("all", {"**"});
    return;
  }
  add("train", texts_of(files->value));
  for (const YamlNode& item : files->value.items)
    if (const YamlEntry* path = item.find("path"); path != nullptr) add(text_at(item, "split"), texts_of(path->value));
}

/// Of a pattern of fsspec: * and ? stay within a folder, ** does not.
bool matches(const std::string& pattern, const std::string& file) {
  std::string expression;
  for (size_t at = pattern.starts_with("./") ? 2 : 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (pattern.compare(at, 3, "**/") == 0) {
      expression += "(?:.*/)?";
      at += 2;
    } else if (pattern.compare(at, 2, "**") == 0) {
      expression += ".*";
      ++at;
    } else if (c == '*' || c == '?') {
      expression += c == '*' ? "[^/]*" : "[^/]";
    } else {
      if (std::string_view(".^$|()+{}\\").find(c) != std::string_view::npos) expression += '\\';
      expression += c;
    }
  }
  try {
    return std::regex_match(file, std::regex(expression));
  } catch (const std::regex_error&) {  // brackets that are no set
    return false;
  }
}

}  // namespace

std::vector<CardSplit> read_dataset_card(const fs::path& directory) {
  const std::string text = head_of_card(directory / "README.md");
  Problems problems("README.md", {});
  check_raw_text(text, {}, problems);
  if (text.empty() || !problems.empty()) return {};
  const YamlNode card = parse_yaml(text, {}, problems);
  const YamlEntry* configs = problems.empty() ? card.find("configs") : nullptr;
  if (configs == nullptr) return {};
  std::vector<YamlNode> configurations = configs->value.items;
  std::ranges::stable_partition(configurations, [](const YamlNode& configuration) {
    return text_at(configuration, "config_name") == "default" || text_at(configuration, "default") == "true";
  });
  std::vector<CardSplit> splits;
  for (const YamlNode& configuration : configurations) add_configuration(configuration, splits);
  return splits;
}

const CardSplit* split_on_card(const std::vector<CardSplit>& splits, const fs::path& file) {
  for (const CardSplit& split : splits)
    for (const std::string& pattern : split.patterns)
      if (matches(pattern, file.generic_string())) return &split;
  return nullptr;
}

}  // namespace trireme
