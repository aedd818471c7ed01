#include "data/stream/dataset_card.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "yaml_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPath = 4096;
constexpr size_t kMaxValues = 200'000;  // in `configs`, of thousands of languages

/// Whether the line from `at` on begins with this key: bare or quoted, then a colon.
bool is_key(const std::string& text, size_t at, std::string_view key) {
  const char quote = text[at] == '"' || text[at] == '\'' ? text[at] : '\0';
  if (quote != '\0') ++at;
  if (text.compare(at, key.size(), key) != 0) return false;
  at += key.size();
  if (quote != '\0' && text[at++] != quote) return false;
  at = text.find_first_not_of(' ', at);
  return at != std::string::npos && text[at] == ':';
}

/// text[begin, end) behind an empty line for each line before it, so that errors name the card's lines.
std::string in_place(const std::string& text, size_t begin, size_t end) {
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(begin), '\n'));
  return std::string(lines, '\n') + text.substr(begin, end - begin);
}

/// The YAML between the first line "---" and the next one.
std::string head_of_card(const fs::path& card) {
  constexpr size_t kMaxHead = 16 << 20;
  std::string text = file_head(card, kMaxHead);
  std::erase(text, '\r');
  const size_t head = text.find_first_not_of(" \t\n", text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  if (head == std::string::npos || text.compare(head, 4, "---\n") != 0) return "";
  const size_t close = text.find("\n---", head + 4);
  return close == std::string::npos ? "" : in_place(text, head + 4, close + 1);
}

/// The block "configs" of a card's head; empty without one.
std::string configs_of(const std::string& head) {
  size_t begin = 0;
  while (begin < head.size() && !is_key(head, begin, "configs")) begin = head.find('\n', begin) + 1;
  if (begin == head.size()) return "";
  size_t end = begin;
  do {
    end = head.find('\n', end) + 1;
  } while (end < head.size() && std::string_view(" -#\n]}").find(head[end]) != std::string_view::npos);
  return in_place(head, begin, end);
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
  const std::string name = text_at(configuration, "config_name");
  std::string folder = text_at(configuration, "data_dir");
  while (folder.ends_with('/')) folder.pop_back();
  const auto add = [&](const std::string& split, std::vector<std::string> patterns) {
    for (std::string& pattern : patterns) {
      if (!folder.empty()) pattern.insert(0, folder + "/");
      if (pattern.starts_with("./")) pattern.erase(0, 2);
    }
    std::erase_if(patterns, [](const std::string& pattern) { return pattern.size() > kMaxPath; });
    if (!patterns.empty()) splits.push_back({name + ": " + split, std::move(patterns)});
  };
  const YamlEntry* files = configuration.find("data_files");
  if (files == nullptr) {
    if (!folder.empty()) add("all", {"**"});
    return;
  }
  add("train", texts_of(files->value));
  for (const YamlEntry& split : files->value.entries) add(split.key, texts_of(split.value));
  for (const YamlNode& item : files->value.items)
    if (const YamlEntry* path = item.find("path"); path != nullptr) add(text_at(item, "split"), texts_of(path->value));
}

/// By the rules of fsspec, which are those of PCRE2's globs: * and ? stay within a name, ** does not. A pattern that is
/// none lists nothing.
bool matches(const std::string& pattern, const std::string& file) {
  const size_t plain = std::min(pattern.find_first_of("*?["), pattern.size());
  if (file.compare(0, plain, pattern, 0, plain) != 0) return false;
  const auto free_text = [](PCRE2_UCHAR* text) { pcre2_converted_pattern_free(text); };
  PCRE2_UCHAR* converted = nullptr;
  size_t length = 0;
  if (pcre2_pattern_convert(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_CONVERT_GLOB,
                            &converted, &length, nullptr) != 0)
    return false;
  const std::unique_ptr<PCRE2_UCHAR, decltype(free_text)> expression(converted, free_text);
  int error = 0;
  size_t place = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(converted, length, 0, &error, &place, nullptr), pcre2_code_free);
  if (code == nullptr) return false;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> found(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(file.data()), file.size(), 0, 0, found.get(), nullptr) >=
         0;
}

}  // namespace

std::vector<CardSplit> read_dataset_card(const fs::path& directory) {
  const std::string head = head_of_card(directory / "README.md");
  if (head.empty()) return {};
  const std::string name = (directory / "README.md").string();
  std::string problem;
  const auto parsed = [&](const std::string& text) {
    Problems problems(name, {});
    check_raw_text(text, {}, problems, kMaxValues);
    YamlNode node = problems.empty() ? parse_yaml(text, {}, problems, kMaxValues, /*aliases=*/true) : YamlNode();
    problem = problems.empty() ? "" : problems.lines()[0];
    return node;
  };
  YamlNode card = parsed(head);
  // The rest of a card may be long, and hold what no configuration may.
  if (!problem.empty()) {
    const std::string configs = configs_of(head);
    if (configs.empty() && head.find("configs") == std::string::npos) return {};
    if (!configs.empty()) card = parsed(configs);
  }
  if (!problem.empty())
    throw DataError(
        fmt::format("{}: `configs` of this card cannot be read, so which of the files belong together is "
                    "unknown: name the files, or the folder of one part",
                    problem));
  const YamlEntry* configs = card.find("configs");
  if (configs == nullptr) return {};
  std::vector<YamlNode> configurations = configs->value.items;
  std::ranges::stable_partition(configurations, [](const YamlNode& configuration) {
    const std::string is_default = text_at(configuration, "default");
    return text_at(configuration, "config_name") == "default" || is_default == "true" || is_default == "True";
  });
  std::vector<CardSplit> splits;
  for (const YamlNode& configuration : configurations) add_configuration(configuration, splits);
  return splits;
}

bool lists_file(const CardSplit& split, const fs::path& file) {
  return std::ranges::any_of(split.patterns,
                             [&](const auto& pattern) { return matches(pattern, file.generic_string()); });
}

}  // namespace trireme
