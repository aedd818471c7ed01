#include "data/stream/dataset_card.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "yaml_tree.h"

#include <algorithm>
#include <bitset>
#include <string_view>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPath = 4096;

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
  for (const YamlNode& item : files->value.items)
    if (const YamlEntry* path = item.find("path"); path != nullptr) add(text_at(item, "split"), texts_of(path->value));
}

/// A part of a pattern of fsspec. kStar: any characters of one name; kFolders: any folders, the "**/" of a pattern.
struct PatternPart {
  enum Kind { kOne, kStar, kAll, kFolders } kind = kOne;
  std::bitset<256> one = {};  // characters
};

std::vector<PatternPart> parts_of(std::string_view pattern) {
  std::vector<PatternPart> parts;
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(pattern[at]); };
  for (size_t at = 0; at < pattern.size(); ++at) {
    PatternPart part;
    if (pattern.substr(at).starts_with("**")) {
      const bool folders = pattern.substr(at).starts_with("**/");
      part.kind = folders ? PatternPart::kFolders : PatternPart::kAll;
      at += folders ? 2 : 1;
    } else if (const size_t close = pattern.find(']', at + 2); pattern[at] == '[' && close != std::string_view::npos) {
      const bool others = pattern[at + 1] == '!';
      for (size_t i = at + (others ? 2 : 1); i < close; ++i)
        if (i + 2 < close && pattern[i + 1] == '-')
          for (int c = byte(i); c <= byte(i + 2); ++c) part.one.set(static_cast<size_t>(c));
        else
          part.one.set(byte(i));
      if (others) part.one.flip().reset('/');
      at = close;
    } else if (pattern[at] == '*') {
      part.kind = PatternPart::kStar;
    } else if (pattern[at] == '?') {
      part.one.set().reset('/');
    } else {
      part.one.set(byte(at));
    }
    parts.push_back(part);
  }
  return parts;
}

/// Follows all ways through the pattern at once, so that the time is at most the product of both lengths.
bool matches(const std::string& pattern, std::string_view file) {
  const size_t plain = std::min(pattern.find_first_of("*?["), pattern.size());
  if (!file.starts_with(std::string_view(pattern).substr(0, plain))) return false;
  file.remove_prefix(plain);
  const std::vector<PatternPart> parts = parts_of(std::string_view(pattern).substr(plain));
  std::vector<char> here(parts.size() + 1, 0);  // [p]: the parts before p can have matched what is read
  here[0] = 1;
  for (size_t i = 0;; ++i) {
    const bool name_begins = i == 0 ? plain == 0 || pattern[plain - 1] == '/' : file[i - 1] == '/';
    for (size_t p = 0; p < parts.size(); ++p)
      if (here[p] != 0 && (parts[p].kind == PatternPart::kFolders ? name_begins : parts[p].kind != PatternPart::kOne))
        here[p + 1] = 1;
    if (i == file.size()) return here.back() != 0;
    std::vector<char> next(parts.size() + 1, 0);
    for (size_t p = 0; p < parts.size(); ++p) {
      if (here[p] == 0) continue;
      if (parts[p].kind == PatternPart::kOne)
        next[p + 1] |= parts[p].one[static_cast<unsigned char>(file[i])] ? 1 : 0;
      else
        next[p] = parts[p].kind != PatternPart::kStar || file[i] != '/' ? 1 : 0;
    }
    here = std::move(next);
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
