#include "reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "retired_keys.h"
#include "scalar.h"
#include "synonyms.h"
#include "trireme/base/file.h"
#include "trireme/base/fraction.h"
#include "trireme/base/text.h"

namespace trireme {

namespace {

constexpr size_t kMaxPath = 4096;

// Collects names only.
struct KeyCollector {
  const FeatureSet& features;
  std::vector<std::pair<std::string, std::vector<std::string>>> keys = {};

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    if (!features.has(info.feature)) return;
    keys.emplace_back(info.name, std::vector<std::string>());
    if constexpr (OptionalOf<Section>::value) {
      typename OptionalOf<Section>::Inner inner;
      describe(*this, inner);
    } else {
      describe(*this, section);
    }
  }
  template <class Value>
  void field(const Field& field, Value&) {
    if (features.has(field.feature)) keys.back().second.emplace_back(field.key);
  }
};

/// Keys of its own section that begin with the words of `key`, as keep_last for keep, or count the same in another
/// unit, as every_samples for every_steps.
std::string same_beginning(const std::string& key, const std::vector<std::string>& keys) {
  const auto without_unit = [](const std::string& name) {
    for (const char* unit : {"_steps", "_samples", "_minutes", "_epochs", "_tokens", "_iters"})
      if (name.ends_with(unit)) return name.substr(0, name.size() - std::string_view(unit).size());
    return std::string();
  };
  const std::string words = without_unit(key);
  std::vector<std::string> found;
  for (const std::string& candidate : keys)
    if (candidate.starts_with(key + "_") || (!words.empty() && without_unit(candidate) == words))
      found.push_back(candidate);
  return found.empty() ? "" : fmt::format(" Did you mean '{}'?", join(found, "' or '"));
}

std::string sentence(const std::string& hint) { return hint == " " ? "" : "." + hint; }

bool in_range(const Field& field, double value) {
  return std::isfinite(value) && (field.above_min ? value > field.min : value >= field.min) &&
         (field.below_max ? value < field.max : value <= field.max);
}

}  // namespace

std::vector<std::pair<std::string, std::vector<std::string>>> keys_with(const FeatureSet& features) {
  KeyCollector collector{features};
  Config config;
  describe(collector, config);
  return collector.keys;
}

void Reader::read(Config& config) {
  if (root_.kind == YamlNode::Kind::kMap) {
    for (const YamlEntry& entry : root_.entries) {
      const bool known =
          std::any_of(keys_.begin(), keys_.end(), [&](const auto& section) { return section.first == entry.key; });
      if (!known)
        problems_.add(entry.place, fmt::format("unknown section '{}'.{}", shown(entry.key), suggest("", entry.key)));
    }
  }
  describe(*this, config);
}

bool Reader::readable(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return unreadable_.contains(key); });
}

Place Reader::place_of(const std::string& qualified) const {
  if (const auto found = places_.find(qualified); found != places_.end()) return found->second;
  const auto section = places_.find(qualified.substr(0, qualified.find('.')));
  return section != places_.end() ? section->second : Place{};
}

template <class Section>
void Reader::section(const SectionInfo& info, Section& section) {
  section_ = info.name;
  node_ = section_node(info.name);
  describe(*this, section);
  if (node_ != nullptr) check_keys(*node_);
}

template <class Section>
void Reader::section(const SectionInfo& info, std::optional<Section>& section) {
  const char* name = info.name;
  const YamlEntry* entry = root_.find(name);
  if (entry == nullptr || (entry->value.kind == YamlNode::Kind::kNull && !entry->value.empty)) {
    section.reset();
    return;
  }
  if (!family_.features.has(info.feature)) {
    refuse_for_family(entry->place, fmt::format("section '{}'", name), info.feature, info.instead);
    return;
  }
  if (entry->value.kind == YamlNode::Kind::kNull) {
    problems_.add(entry->place, fmt::format("section '{}' is empty: write '{}: {{}}' for its defaults, or "
                                            "leave it out",
                                            name, name));
    return;
  }
  this->section(info, section.emplace());
}

const YamlNode* Reader::section_node(const char* name) {
  const YamlEntry* entry = root_.find(name);
  broken_ = false;
  if (entry == nullptr) return nullptr;
  places_[name] = entry->place;
  if (entry->value.kind == YamlNode::Kind::kMap) return &entry->value;
  broken_ = entry->value.kind != YamlNode::Kind::kNull;
  if (broken_)
    problems_.add(entry->value.place,
                  fmt::format("section '{}' must hold keys and values, not {}", name, node_text(entry->value)));
  return nullptr;
}

void Reader::check_keys(const YamlNode& node) {
  const auto section =
      std::find_if(keys_.begin(), keys_.end(), [&](const auto& candidate) { return candidate.first == section_; });
  for (const YamlEntry& entry : node.entries) {
    if (std::find(section->second.begin(), section->second.end(), entry.key) != section->second.end()) continue;
    const auto advice = retired_key_advice(section_, entry);
    problems_.add(entry.place, advice ? *advice
                                      : fmt::format("unknown key '{}' in section '{}'.{}", shown(entry.key), section_,
                                                    suggest(section_, entry.key)));
  }
}

std::string Reader::synonym_hint(const std::string& section, const std::string& key) const {
  const Synonym* synonym = find_synonym(section, key);
  if (synonym == nullptr) return "";
  std::vector<std::string> has;
  for (const std::string& qualified : synonym->keys) {
    if (synonym->first_only && !has.empty()) break;
    for (const auto& [name, keys] : offered_keys_) {
      if (!qualified.starts_with(name + ".")) continue;
      const std::string own = qualified.substr(name.size() + 1);
      if (std::find(keys.begin(), keys.end(), own) != keys.end()) has.push_back(name == section ? own : qualified);
    }
  }
  if (has.empty()) return synonym->keys.empty() ? synonym->note : "";
  return fmt::format(" Did you mean '{}'?{}", join(has, "' or '"), synonym->note);
}

std::string Reader::suggest(const std::string& section, const std::string& key) const {
  if (!problems_.wants_suggestions()) return "";
  if (const std::string text = synonym_hint(section, key); !text.empty()) return text;
  std::vector<std::string> near, elsewhere;
  for (const auto& [name, keys] : offered_keys_) {
    if (key == name) return fmt::format(" '{}' is a section of its own: indent it less.", name);
    if (key.starts_with(name + ".")) return fmt::format(" Write '{}:' and its keys indented under it.", name);
    if (section.empty()) near.push_back(name);
    if (name == section) near = keys;
    for (const std::string& candidate : keys)
      if (candidate == key) elsewhere.push_back(name + "." + candidate);
  }
  // A key that counts something else in its own section is nearer than one of the same name elsewhere.
  const std::string own = section.empty() ? "" : same_beginning(key, near);
  if (!elsewhere.empty() && own.empty()) return fmt::format(" Did you mean '{}'?", join(elsewhere, "' or '"));
  if (const std::string text = did_you_mean(key, near); !text.empty()) return text;
  if (!own.empty()) return own;
  for (const auto& [name, keys] : offered_keys_) {
    const auto found = nearest_word(key, keys);
    if (found && edit_distance(key, *found) * 4 <= static_cast<int>(found->size()))
      return fmt::format(" Did you mean '{}.{}'?", name, *found);
  }
  return "";
}

void Reader::refuse(const Field& field, const YamlNode& node, const std::string& expected, const std::string& hint) {
  problems_.add(node.place,
                fmt::format("{} must be {}, not {}{}", qualified(field), expected, node_text(node), sentence(hint)));
}

void Reader::refuse_for_family(const Place& place, const std::string& what, Feature feature,
                               const std::string& instead) {
  problems_.add(place, fmt::format("{} is not for {}, which {}{}{}", what, family_.program, without_feature(feature),
                                   instead.empty() ? "" : ": ", instead));
}

template <class Value>
void Reader::field(const Field& field, Value& value) {
  const std::string name = qualified(field);
  const Field family_field = offered(field, family_.features);
  const std::string expected = expectation(family_field, type_of<Value>(), OptionalOf<Value>::value);
  const YamlEntry* entry = node_ == nullptr ? nullptr : node_->find(field.key);
  if (entry == nullptr) {
    if (broken_) unreadable_.insert(name);
    if (field.required && !broken_) {
      problems_.add(place_of(section_), fmt::format("{} is missing: {}", name, expected));
      unreadable_.insert(name);
    }
    return;
  }
  places_[name] = entry->value.place;
  for (const TaggedWord& tagged : field.tagged) {
    if (family_.features.has(tagged.feature) || entry->value.text != tagged.word) continue;
    refuse_for_family(entry->value.place, fmt::format("{} {}", name, tagged.word), tagged.feature, "use " + expected);
    unreadable_.insert(name);
    return;
  }
  const Value before = value;
  bool good = true;
  if constexpr (OptionalOf<Value>::value) {
    if (entry->value.kind == YamlNode::Kind::kNull)
      value.reset();
    else
      good = convert(family_field, entry->value, expected, value.emplace());
  } else {
    good = convert(family_field, entry->value, expected, value);
  }
  if (!good) unreadable_.insert(name);
  // A resolved configuration names every key: those that this family lacks have their defaults.
  if (good && value != before && !family_.features.has(field.feature)) {
    refuse_for_family(entry->value.place, name, field.feature, field.instead);
    unreadable_.insert(name);
  }
}

bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected, std::string& value) {
  if (node.kind != YamlNode::Kind::kScalar) {
    refuse(field, node, expected, " ");
    return false;
  }
  if (field.or_count && plain_type(node) == Plain::kInteger) {
    int64_t count = 0;
    const std::string hint = read_integer(node, count);
    if (!hint.empty() || !in_range(field, static_cast<double>(count))) {
      refuse(field, node, expected, hint.empty() ? " " : hint);
      return false;
    }
    value = std::to_string(count);
    return true;
  }
  if (field.or_fraction && !node.text.empty() && node.text.find_first_not_of("0123456789./") == std::string::npos) {
    const auto share = parse_fraction(node.text);
    if (!share || *share < 0 || *share > 1) {
      refuse(field, node, expected, " ");
      return false;
    }
    value = node.text;
    return true;
  }
  if (!field.words.empty()) {
    if (std::find(field.words.begin(), field.words.end(), node.text) == field.words.end()) {
      const std::string hint = word_hint(node.text, field.words);
      refuse(field, node, expected, hint.empty() ? " " : hint);
      return false;
    }
    value = node.text;
    return true;
  }
  if (plain_type(node) != Plain::kString) {
    refuse(field, node, expected, fmt::format(" If it is one, write it in quotes: \"{}\"", shown(node.text)));
    return false;
  }
  value = node.text;
  return !field.path || (value == field.not_path && !value.empty()) || resolve_path(field, node, value);
}

bool Reader::resolve_path(const Field& field, const YamlNode& node, std::string& value) {
  const auto fail = [&](const std::string& why) {
    problems_.add(node.place, fmt::format("{} must be a path, but {} {}", qualified(field), node_text(node), why));
    return false;
  };
  if (value.empty()) return fail("is empty");
  if (value.find('\0') != std::string::npos) return fail("holds a NUL byte");
  std::filesystem::path path = tidy_path(base_ / value);
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  value = path.string();
  if (value.size() > kMaxPath) return fail(fmt::format("is longer than {} bytes", kMaxPath));
  if (!is_valid_utf8(value)) return fail("lies in a directory whose name is not UTF-8");
  return true;
}

bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected, int64_t& value) {
  int64_t read = 0;
  const std::string hint = read_integer(node, read);
  if (!hint.empty() || !in_range(field, static_cast<double>(read))) {
    refuse(field, node, expected, hint.empty() ? " " : hint);
    return false;
  }
  value = read;
  return true;
}

bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected, double& value) {
  double read = 0;
  const std::string hint = read_number(node, read);
  if (!hint.empty() || !in_range(field, read)) {
    refuse(field, node, expected, hint.empty() ? " " : hint);
    return false;
  }
  value = read;
  return true;
}

bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected, bool& value) {
  const std::string hint = read_bool(node, value);
  if (!hint.empty()) refuse(field, node, expected, hint);
  return hint.empty();
}

bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected,
                     std::vector<std::string>& value) {
  value.clear();
  if (node.kind == YamlNode::Kind::kNull && field.may_be_absent) return true;
  Field one = field;
  one.may_be_absent = false;
  if (field.one_or_more && node.kind == YamlNode::Kind::kScalar)
    return convert(field, node, expected, value.emplace_back());
  if (node.kind != YamlNode::Kind::kList) {
    std::string hint = " ";
    if (node.kind == YamlNode::Kind::kScalar) {
      const bool item =
          field.words.empty() || std::find(field.words.begin(), field.words.end(), node.text) != field.words.end();
      hint = item ? fmt::format(" Did you mean '[{}]'?", shown(node.text)) : word_hint(node.text, field.words);
    }
    refuse(field, node, expected, hint.empty() ? " " : hint);
    return false;
  }
  if (node.items.empty() && !field.may_be_absent) {
    problems_.add(node.place, fmt::format("{} must be {}, not an empty list", qualified(field), expected));
    return false;
  }
  const std::string of_one = expectation(one, Type::kString, false);
  bool good = true;
  for (const YamlNode& item : node.items) good &= convert(one, item, of_one, value.emplace_back());
  if (!good) return false;
  for (size_t i = 0; i < value.size(); ++i) {
    if (std::find(value.begin(), value.begin() + static_cast<long>(i), value[i]) ==
        value.begin() + static_cast<long>(i))
      continue;
    problems_.add(node.items[i].place, fmt::format("{} has '{}' twice", qualified(field), shown(value[i])));
    good = false;
  }
  return good;
}

template <class Item>
bool Reader::convert(const Field& field, const YamlNode& node, const std::string& expected, std::vector<Item>& value) {
  if (node.kind == YamlNode::Kind::kNull && field.may_be_absent) {
    value.clear();
    return true;
  }
  if (node.kind != YamlNode::Kind::kList) {
    refuse(field, node, expected, " ");
    return false;
  }
  if (field.length > 0 && node.items.size() != field.length) {
    problems_.add(node.place,
                  fmt::format("{} must be {}, not {} of them", qualified(field), expected, node.items.size()));
    return false;
  }
  std::vector<Item> read(node.items.size());
  Field one = field;
  one.may_be_absent = false;
  const std::string of_one = expectation(one, type_of<Item>(), false);
  bool good = true;
  for (size_t i = 0; i < read.size(); ++i) good &= convert(one, node.items[i], of_one, read[i]);
  if (good) value = read;
  return good;
}

}  // namespace trireme
