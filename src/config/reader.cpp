#include "reader.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace trireme {

namespace {

constexpr size_t kMaxPath = 4096;

std::string qualified(const Section& section, const Key& key) { return fmt::format("{}.{}", section.name, key.name); }

std::string did_you_mean_all(const std::vector<std::string>& names) {
  return names.empty() ? "" : fmt::format(" Did you mean '{}'?", join(names, "' or '"));
}

/// Keys that begin with the words of `key`, as keep_last for keep, or count the same in another unit, as every_samples
/// for every_steps.
std::vector<std::string> same_beginning(const std::string& key, const std::vector<std::string>& keys) {
  const auto without_unit = [](const std::string& name) {
    for (const std::string_view unit : {"_steps", "_samples", "_minutes", "_epochs", "_tokens", "_iters"})
      if (name.ends_with(unit)) return name.substr(0, name.size() - unit.size());
    return std::string();
  };
  const std::string words = without_unit(key);
  std::vector<std::string> found;
  for (const std::string& candidate : keys)
    if (candidate.starts_with(key + "_") || (!words.empty() && without_unit(candidate) == words))
      found.push_back(candidate);
  return found;
}

/// What to write for a word that is none of the key's choices.
std::string word_hint(const Key& key, const std::string& word) {
  const auto found = std::find_if(key.words_elsewhere.begin(), key.words_elsewhere.end(),
                                  [&](const auto& pair) { return pair.first == word; });
  if (found != key.words_elsewhere.end()) return did_you_mean_all({found->second});
  std::vector<std::string> words;
  for (const KeyChoice& choice : key.choices) words.emplace_back(choice.word);
  return did_you_mean(word, words);
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && (key.above_min ? value > key.min : value >= key.min) &&
         (key.below_max ? value < key.max : value <= key.max);
}

/// What to write in place of a key that has another name now; "": it never was a key.
std::string retired_advice(const Section& section, const YamlEntry& entry) {
  for (const Key& key : section.keys)
    for (const RetiredKey& retired : key.retired) {
      if (entry.key != retired.name) continue;
      const std::string renamed = fmt::format("{0}.{1} is now {0}.{2}", section.name, retired.name, key.name);
      const char* word = retired.word_now(entry.value.text);
      return word == nullptr ? renamed : fmt::format("{}: write '{}: {}'", renamed, key.name, word);
    }
  return "";
}

}  // namespace

void Reader::read(Config& config) {
  for (const YamlEntry& entry : root_.entries)
    if (find_section(entry.key) == nullptr)
      problems_.add(entry.place, fmt::format("unknown section '{}'.{}", shown(entry.key), suggest(nullptr, entry.key)));
  for (const Section& section : sections()) read_section(section, config);
}

bool Reader::readable(const std::vector<std::string>& keys) const {
  return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) { return unreadable_.contains(key); });
}

Place Reader::place_of(const std::string& qualified) const {
  if (const auto found = places_.find(qualified); found != places_.end()) return found->second;
  const auto section = places_.find(qualified.substr(0, qualified.find('.')));
  return section != places_.end() ? section->second : Place{};
}

void Reader::read_section(const Section& section, Config& config) {
  const YamlEntry* entry = root_.find(section.name);
  const bool is_null = entry != nullptr && entry->value.kind == YamlNode::Kind::kNull;
  if (section.optional) {
    if (entry == nullptr || (is_null && !entry->value.empty)) return section.exist(config, false);
    if (!has(section))
      return refuse_for_family(entry->place, fmt::format("section '{}'", section.name), section.feature,
                               section.instead);
    if (is_null)
      return problems_.add(
          entry->place,
          fmt::format("section '{0}' is empty: write '{0}: {{}}' for its defaults, or leave it out", section.name));
    section.exist(config, true);
  }
  if (entry != nullptr) places_[section.name] = entry->place;
  const bool is_map = entry != nullptr && entry->value.kind == YamlNode::Kind::kMap;
  const bool broken = entry != nullptr && !is_map && !is_null;
  if (broken)
    problems_.add(entry->value.place,
                  fmt::format("section '{}' must hold keys and values, not {}", section.name, node_text(entry->value)));
  for (const Key& key : section.keys) {
    if (const YamlEntry* given = is_map ? entry->value.find(key.name) : nullptr) {
      read_key(section, key, given->value, config);
    } else if (broken || key.required) {
      const std::string expected = expectation(key.offered(program_.features));
      if (!broken)
        problems_.add(place_of(section.name), fmt::format("{} is missing: {}", qualified(section, key), expected));
      unreadable_.insert(qualified(section, key));
    }
  }
  if (is_map) check_keys(section, entry->value);
}

void Reader::read_key(const Section& section, const Key& key, const YamlNode& node, Config& config) {
  const std::string name = qualified(section, key);
  const Key offered = key.offered(program_.features);
  places_[name] = node.place;
  const KeyChoice* choice = key.choice(node.text);
  if (choice != nullptr && !program_.features.has(choice->feature)) {
    refuse_for_family(node.place, fmt::format("{} {}", name, choice->word), choice->feature,
                      "use " + expectation(offered));
    unreadable_.insert(name);
    return;
  }
  const std::optional<Value> read = value(name, offered, node);
  // A resolved configuration names every key: those that this program lacks have their defaults.
  const bool foreign = read && !program_.features.has(key.feature) && *read != section.get(config, key);
  if (foreign) refuse_for_family(node.place, name, key.feature, key.instead);
  if (!read || foreign)
    unreadable_.insert(name);
  else
    section.set(config, key, *read);
}

void Reader::check_keys(const Section& section, const YamlNode& node) {
  for (const YamlEntry& entry : node.entries) {
    if (section.find(entry.key) != nullptr) continue;
    const std::string advice = retired_advice(section, entry);
    problems_.add(entry.place, !advice.empty() ? advice
                                               : fmt::format("unknown key '{}' in section '{}'.{}", shown(entry.key),
                                                             section.name, suggest(&section, entry.key)));
  }
}

std::string Reader::name_elsewhere(const Section* section, const std::string& key) const {
  for (const std::string& name : {fmt::format("{}.{}", section == nullptr ? "" : section->name, key), key}) {
    std::vector<std::string> ours;
    bool known = false;
    const char* note = "";
    for (const Section& one : sections())
      for (const Key& candidate : one.keys) {
        if (!candidate.is_called(name)) continue;
        known = true;
        note = candidate.note;
        if (has(one, candidate)) ours.push_back(&one == section ? candidate.name : qualified(one, candidate));
      }
    if (known) return ours.empty() ? "" : did_you_mean_all(ours) + note;
  }
  return instead_of(key);
}

std::string Reader::suggest(const Section* section, const std::string& key) const {
  if (!problems_.wants_suggestions()) return "";
  if (const std::string text = name_elsewhere(section, key); !text.empty()) return text;
  std::vector<std::string> near, elsewhere;
  for (const Section& one : sections()) {
    if (!has(one)) continue;
    if (key == one.name) return fmt::format(" '{}' is a section of its own: indent it less.", one.name);
    if (key.starts_with(std::string(one.name) + "."))
      return fmt::format(" Write '{}:' and its keys indented under it.", one.name);
    if (section == nullptr) near.emplace_back(one.name);
    for (const Key& candidate : one.keys) {
      if (!has(one, candidate)) continue;
      if (&one == section) near.emplace_back(candidate.name);
      if (candidate.name == key) elsewhere.push_back(qualified(one, candidate));
    }
  }
  // A key that counts something else in its own section is nearer than one of the same name elsewhere.
  const auto own = section == nullptr ? std::vector<std::string>() : same_beginning(key, near);
  if (!elsewhere.empty() && own.empty()) return did_you_mean_all(elsewhere);
  if (const std::string text = did_you_mean(key, near); !text.empty()) return text;
  if (!own.empty()) return did_you_mean_all(own);
  for (const Section& one : sections()) {
    std::vector<std::string> names;
    for (const Key& candidate : one.keys)
      if (has(one, candidate)) names.emplace_back(candidate.name);
    const auto found = nearest_word(key, names);
    if (found && edit_distance(key, *found) * 4 <= static_cast<int>(found->size()))
      return did_you_mean_all({fmt::format("{}.{}", one.name, *found)});
  }
  return "";
}

std::nullopt_t Reader::refuse(const std::string& name, const YamlNode& node, const std::string& expected,
                              const std::string& hint) {
  problems_.add(node.place, fmt::format("{} must be {}, not {}{}{}", name, expected, node_text(node),
                                        hint.empty() ? "" : ".", hint));
  return std::nullopt;
}

void Reader::refuse_for_family(const Place& place, const std::string& what, Feature feature,
                               const std::string& instead) {
  problems_.add(place, fmt::format("{} is not for {}, which {}{}{}", what, program_.name, without_feature(feature),
                                   instead.empty() ? "" : ": ", instead));
}

std::optional<Value> Reader::value(const std::string& name, const Key& key, const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull && (key.optional || key.may_be_absent)) return Value{};
  if (key.map) return mapping(name, key, node);
  if (key.list) return list(name, key, node);
  const auto one = item(name, key, node, expectation(key));
  return one ? std::optional(Value{*one}) : std::nullopt;
}

bool Reader::check_pattern(const std::string& name, const Place& place, const std::string& pattern) {
  const std::string problem = pattern_problem(pattern);
  if (!problem.empty()) problems_.add(place, fmt::format("{}: the pattern '{}' {}", name, shown(pattern), problem));
  return problem.empty();
}

std::optional<Value> Reader::mapping(const std::string& name, const Key& key, const YamlNode& node) {
  Key values = key;
  values.choices.clear();
  values.map = values.may_be_absent = false;
  values.list = key.lists;
  const auto value_of = [&](const std::string& of, const YamlNode& at) -> std::optional<std::string> {
    if (!key.lists) return item(of, values, at, item_expectation(values));
    const auto items = list(of, values, at);
    return items ? std::optional("[" + join(*items, ", ") + "]") : std::nullopt;
  };
  if (key.lists && node.kind == YamlNode::Kind::kList) {
    if (node.items.empty()) return Value{};
    const auto items = value_of(name, node);
    return items ? std::optional(Value{"", *items}) : std::nullopt;
  }
  if (node.kind != YamlNode::Kind::kMap) return refuse(name, node, expectation(key));
  Value read;
  bool good = true;
  for (const YamlEntry& entry : node.entries) {
    const auto one = value_of(fmt::format("{} {}", name, shown(entry.key)), entry.value);
    if (key.choices.empty()) {
      good &= check_pattern(name, entry.place, entry.key);
    } else if (key.choice(std::string_view(entry.key).substr(entry.key.rfind('.') + 1)) == nullptr) {
      problems_.add(entry.place, fmt::format("{} must be {}.{}", name, expectation(key), word_hint(key, entry.key)));
      good = false;
    }
    good &= one.has_value();
    read.insert(read.end(), {entry.key, one.value_or("")});
  }
  return good ? std::optional(std::move(read)) : std::nullopt;
}

std::optional<Value> Reader::list(const std::string& name, const Key& key, const YamlNode& node) {
  const std::string expected = expectation(key);
  if (key.selector && node.kind == YamlNode::Kind::kScalar) {
    const Value pattern = {"", node.text};
    if (ModuleSelector{{}, node.text}.all_linear()) return pattern;
    if (node.text.find_first_of("\\.^$*+?()[]{}|") != std::string::npos)  // otherwise it matches no path
      return check_pattern(name, node.place, node.text) ? std::optional(pattern) : std::nullopt;
  }
  const bool names = key.type == Type::kText || !key.choices.empty();
  if (key.one_or_more && node.kind == YamlNode::Kind::kScalar) {
    const auto one = item(name, key, node, expected);
    return one ? std::optional(Value{*one}) : std::nullopt;
  }
  if (node.kind != YamlNode::Kind::kList) {
    if (!names || node.kind != YamlNode::Kind::kScalar) return refuse(name, node, expected);
    const bool is_item = key.choices.empty() || key.choice(node.text) != nullptr;
    return refuse(name, node, expected,
                  is_item ? fmt::format(" Did you mean '[{}]'?", shown(node.text)) : word_hint(key, node.text));
  }
  if (names && node.items.empty() && !key.may_be_absent) {
    problems_.add(node.place, fmt::format("{} must be {}, not an empty list", name, expected));
    return std::nullopt;
  }
  if (key.length > 0 && node.items.size() != key.length) {
    problems_.add(node.place, fmt::format("{} must be {}, not {} of them", name, expected, node.items.size()));
    return std::nullopt;
  }
  Value read;
  bool good = true;
  for (const YamlNode& one : node.items) {
    const auto text = item(name, key, one, item_expectation(key));
    good &= text.has_value();
    read.push_back(text.value_or(""));
  }
  if (!good) return std::nullopt;
  for (size_t i = 0; names && i < read.size(); ++i) {
    const auto end = read.begin() + static_cast<long>(i);
    if (std::find(read.begin(), end, read[i]) == end) continue;
    problems_.add(node.items[i].place, fmt::format("{} has '{}' twice", name, shown(read[i])));
    good = false;
  }
  return good ? std::optional(std::move(read)) : std::nullopt;
}

std::optional<std::string> Reader::item(const std::string& name, const Key& key, const YamlNode& node,
                                        const std::string& expected) {
  const bool scalar = node.kind == YamlNode::Kind::kScalar;
  const size_t last = key.selector ? node.text.rfind('.') + 1 : 0;
  if (scalar && key.choice(std::string_view(node.text).substr(last)) != nullptr) return node.text;
  const bool words = !key.choices.empty();
  if (!scalar && (words || key.type == Type::kText)) return refuse(name, node, expected);
  std::string hint;
  switch (key.type) {
    case Type::kBool:
      if (const auto read = read_bool(node, hint)) return *read ? "true" : "false";
      return refuse(name, node, expected, hint);
    case Type::kInteger: {
      if (words && plain_type(node) != Plain::kInteger) break;
      const auto read = read_integer(node, hint);
      // Once more as an integer: 2^53 + 1 as a double is 2^53.
      if (read && in_range(key, static_cast<double>(*read)) &&
          (std::isinf(key.max) || *read <= static_cast<int64_t>(key.max)))
        return std::to_string(*read);
      return refuse(name, node, expected, hint);
    }
    case Type::kNumber: {
      const auto read = read_number(node, hint);
      if (read && in_range(key, *read)) return format_exact(*read);
      return refuse(name, node, expected, hint);
    }
    case Type::kShare: {
      if (node.text.empty() || node.text.find_first_not_of("0123456789./") != std::string::npos) break;
      if (const auto share = parse_fraction(node.text); share && *share >= 0 && *share <= 1) return node.text;
      return refuse(name, node, expected);
    }
    case Type::kText:
      if (words) break;
      if (key.has_form != nullptr && !key.has_form(node.text)) return refuse(name, node, expected);
      if (plain_type(node) != Plain::kString)
        return refuse(name, node, expected,
                      fmt::format(" If it is one, write it in quotes: \"{}\"{}", shown(node.text),
                                  key.path && name.starts_with("data.") && node.text.find('.') != std::string::npos
                                      ? ". The weight of a file is written {path: …, weight: 0.5}"
                                      : ""));
      if (!key.path || (node.text == key.not_path && !node.text.empty())) return node.text;
      return path(name, node);
  }
  return refuse(name, node, expected, word_hint(key, node.text));
}

std::optional<std::string> Reader::path(const std::string& name, const YamlNode& node) {
  const auto fail = [&](const std::string& why) {
    problems_.add(node.place, fmt::format("{} must be a path, but {} {}", name, node_text(node), why));
    return std::nullopt;
  };
  if (node.text.empty()) return fail("is empty");
  if (node.text.find('\0') != std::string::npos) return fail("holds a NUL byte");
  if (node.text == "~" || node.text.starts_with("~/"))
    return fail("begins with ~, which a shell expands and this file does not: write the whole path");
  std::filesystem::path path = tidy_path(base_ / node.text);
  // A folder may have such a name.
  std::error_code error;
  if (node.text.find("://") != std::string::npos && !std::filesystem::exists(path.parent_path(), error))
    return fail("is the address of a service: write a path of a file system");
  std::filesystem::path whole;
  for (const auto& part : path) {
    if (base_ == "/") break;  // of saved configurations, whose names were accepted
    whole /= part;
    const std::string folder = part.string();
    const size_t mark = folder.find('$');
    if (mark < folder.size() - 1 && !is_digit(folder[mark + 1]) && !std::filesystem::exists(whole, error))
      return fail("holds $, which a shell expands and this file does not: write the whole path");
  }
  if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  const std::string text = path.string();
  if (text.size() > kMaxPath) return fail(fmt::format("is longer than {} bytes", kMaxPath));
  if (!is_valid_utf8(text)) return fail("lies in a directory whose name is not UTF-8");
  return text;
}

}  // namespace trireme
