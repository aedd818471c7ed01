#include "retired_keys.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace trireme {

namespace {

struct RetiredKey {
  const char* section;
  const char* key;
  const char* now;                                         // key of the same section
  const char* off;                                         // its word that changes nothing
  std::vector<std::pair<const char*, const char*>> words;  // old word -> new one
};

const std::vector<RetiredKey>& retired_keys() {
  static const std::vector<RetiredKey> keys = {
      {"precision", "frozen", "linear", "compute", {{"fp8", "fp8"}, {"bf16", "compute"}}},
      {"precision", "encoder", "linear", "compute", {{"fp8", "fp8"}, {"compute", "compute"}}},
  };
  return keys;
}

/// The word that stands for the value of `entry` now; null: it never had that value.
const char* word_now(const RetiredKey& key, const YamlEntry& entry) {
  if (entry.value.kind != YamlNode::Kind::kScalar) return nullptr;
  for (const auto& [before, now] : key.words)
    if (entry.value.text == before) return now;
  return nullptr;
}

}  // namespace

std::optional<std::string> retired_key_advice(const std::string& section, const YamlEntry& entry) {
  for (const RetiredKey& key : retired_keys()) {
    if (section != key.section || entry.key != key.key) continue;
    const char* word = word_now(key, entry);
    const std::string renamed = fmt::format("{0}.{1} is now {0}.{2}", section, key.key, key.now);
    return word == nullptr ? renamed : fmt::format("{}: write '{}: {}'", renamed, key.now, word);
  }
  return std::nullopt;
}

void replace_retired_keys(YamlNode& root) {
  for (const RetiredKey& key : retired_keys()) {
    YamlEntry* section = root.find(key.section);
    YamlEntry* entry = section == nullptr ? nullptr : section->value.find(key.key);
    const char* word = entry == nullptr ? nullptr : word_now(key, *entry);
    if (word == nullptr) continue;  // a value that never was one is the reader's to report
    YamlEntry replaced = *entry;
    replaced.key = key.now;
    replaced.value.text = word;
    std::erase_if(section->value.entries, [&](const YamlEntry& old) { return old.key == key.key; });
    // Two old keys may have become one: the word of the one that was on counts.
    YamlEntry* before = section->value.find(key.now);
    if (before == nullptr)
      section->value.entries.push_back(std::move(replaced));
    else if (before->value.text == key.off)
      *before = std::move(replaced);
  }
}

}  // namespace trireme
