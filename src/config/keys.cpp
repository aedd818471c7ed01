// What is said of the keys: in messages, --help, the key reference, and the resolved configuration.
#include "description.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

constexpr size_t kHelpWidth = 100;

std::string limit(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value) ? fmt::format("{:.0f}", value) : format_exact(value);
}

std::string range(const Key& key) {
  const bool low = std::isfinite(key.min), high = std::isfinite(key.max);
  if (low && high && !key.above_min && !key.below_max)
    return fmt::format(" from {} to {}", limit(key.min), limit(key.max));
  std::string text;
  if (low) text += fmt::format(" {} {}", key.above_min ? ">" : ">=", limit(key.min));
  if (high) text += fmt::format("{} {} {}", low ? " and" : "", key.below_max ? "<" : "<=", limit(key.max));
  return text;
}

/// "adamw or lamb"; `last`: what may stand instead of a word.
std::string alternatives(const Key& key, const std::string& last = "") {
  std::vector<std::string> words;
  for (const KeyChoice& choice : key.choices) words.emplace_back(choice.word);
  if (!last.empty()) words.push_back(last);
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string scalar_expectation(const Key& key) {
  const bool words = !key.choices.empty();
  switch (key.type) {
    case Type::kBool: return "true or false";
    case Type::kNumber: return "a number" + range(key);
    case Type::kInteger: return words ? alternatives(key, "an integer" + range(key)) : "an integer" + range(key);
    case Type::kShare: return alternatives(key, "a share from 0 to 1 such as 1/3");
    case Type::kText: break;
  }
  return words ? alternatives(key) : key.path ? "a path" : *key.form != '\0' ? key.form : "a string";
}

std::string list_expectation(const Key& key) {
  const bool words = !key.choices.empty();
  if (key.selector)
    return fmt::format("a list of {}, a regular expression, or {}", alternatives(key), ModuleSelector::kAllLinear);
  switch (key.type) {
    case Type::kNumber:
      return fmt::format("a list of {}numbers{}", key.length > 0 ? fmt::format("{} ", key.length) : "", range(key));
    case Type::kInteger:
      return words ? fmt::format("{}, or a list of integers{}", alternatives(key), range(key))
                   : "a list of integers" + range(key);
    default: break;
  }
  if (words) return "a list of " + alternatives(key);
  return key.one_or_more ? "a path or a list of paths" : "a list of strings";
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + '"';
}

/// The key whose member has this type.
const Key& key_of(const std::type_info& type) {
  for (const Section& section : sections())
    for (const Key& key : section.keys)
      if (*key.member == type) return key;
  throw InternalError(fmt::format("no key has the type {}", type.name()));
}

/// What --help says of a key: its own text and those of the words that the program takes.
std::string help_text(const Key& key, const ProgramKeys& program) {
  std::string text = key.help;
  for (const KeyChoice& choice : key.choices)
    if (program.features.has(choice.feature)) text += choice.help;
  const std::string variable = "{vocab_multiple}";
  if (const size_t at = text.find(variable); at != std::string::npos)
    text.replace(at, variable.size(), std::to_string(program.vocab_multiple));
  return text;
}

/// A key as one program takes it, in the words of help and reference.
struct KeyEntry {
  std::string accepts, otherwise, help;
};

/// nullopt: the program lacks the key. `defaults` has all sections.
std::optional<KeyEntry> entry_of(const Section& section, const Key& key, const ProgramKeys& program,
                                 const Config& defaults) {
  if (!program.features.has(section.feature) || !program.features.has(key.feature)) return std::nullopt;
  return KeyEntry{expectation(key.offered(program.features)),
                  key.required ? "required" : value_text(key, section.get(defaults, key)), help_text(key, program)};
}

/// Text in a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '\\' || c == '[' || c == ']') result += '\\';
    if (c == '<')
      result += "&lt;";
    else
      result += c;
  }
  return result;
}

/// What the programs have in one column: once where all agree, else each text with the programs that have it.
std::string column(const std::vector<std::pair<std::string, KeyEntry>>& programs, std::string KeyEntry::* member) {
  std::vector<std::pair<std::string, std::string>> texts;  // text, its programs
  for (const auto& [program, entry] : programs) {
    const std::string& own = entry.*member;
    const auto same = std::find_if(texts.begin(), texts.end(), [&own](const auto& t) { return t.first == own; });
    if (same == texts.end())
      texts.emplace_back(own, program);
    else
      same->second += ", " + program;
  }
  if (texts.size() == 1) return cell(texts.front().first);
  std::vector<std::string> parts;
  for (const auto& [text, names] : texts) parts.push_back(fmt::format("{}: {}", names, cell(text)));
  return join(parts, "<br>");
}

}  // namespace

const char* without_feature(Feature feature) {
  switch (feature) {
    case Feature::kAlways: return "has everything";
    case Feature::kAdapters: return "trains all parameters";
    case Feature::kVocabularySize: return "keeps the model's vocabulary";
    case Feature::kPackedRows: return "reads rows of one sample each";
    case Feature::kRankMeans: return "averages and clips over all ranks";
    case Feature::kAccuracy: return "measures no accuracy";
    case Feature::kRecomputeMlp: return "recomputes whole blocks";
    case Feature::kMlperfSkip: return "has no rule of MLPerf for it";
    case Feature::kFp8Training: return "multiplies trained matrices in the compute type";
    case Feature::kPairs: return "has one objective";
    case Feature::kFp8Attention: return "multiplies attention in the compute type";
    case Feature::kContext: return "gives each rank rows of its own";
    case Feature::kMlperfLog: return "is of no benchmark of MLPerf";
    case Feature::kMegatronData: return "reads no indexed files of Megatron";
    case Feature::kDocumentStreams: return "reads rows that are packed already";
  }
  return "";
}

const Section* find_section(std::string_view name) {
  const auto& all = sections();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Section& section) { return section.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const Key* find_key(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  const Section* section = find_section(name.substr(0, dot));
  return section == nullptr || dot == name.size() ? nullptr : section->find(name.substr(dot + 1));
}

bool Key::is_called(std::string_view other) const {
  const auto last_part = [&](std::string_view of) { return of.substr(of.rfind('.') + 1) == other; };
  return std::find(elsewhere.begin(), elsewhere.end(), other) != elsewhere.end() || last_part(option.fms) ||
         last_part(option.torchtitan) || last_part(option.nemo);
}

const Key* Section::find(std::string_view key) const {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& candidate) { return candidate.name == key; });
  return found == keys.end() ? nullptr : &*found;
}

Value Section::get(const Config& config, const Key& key) const {
  return key.get(key, static_cast<const char*>(at(const_cast<Config&>(config))) + key.offset);
}

void Section::set(Config& config, const Key& key, const Value& value) const {
  key.set(key, static_cast<char*>(at(config)) + key.offset, value);
}

Key Key::offered(const FeatureSet& features) const {
  Key result = *this;
  std::erase_if(result.choices, [&](const KeyChoice& choice) { return !features.has(choice.feature); });
  return result;
}

const char* RetiredKey::word_now(std::string_view word) const {
  const auto found = std::find_if(words.begin(), words.end(), [&](const auto& pair) { return pair.first == word; });
  return found == words.end() ? nullptr : found->second;
}

const KeyChoice* Key::choice(std::string_view word) const {
  const auto found = std::find_if(choices.begin(), choices.end(), [&](const KeyChoice& c) { return c.word == word; });
  return found == choices.end() ? nullptr : &*found;
}

const char* choice_word(const std::type_info& type, int64_t value) {
  const Key& key = key_of(type);
  const auto found = std::find_if(key.choices.begin(), key.choices.end(),
                                  [&](const KeyChoice& choice) { return choice.value == value; });
  TRIREME_CHECK(found != key.choices.end(), key.name, " has no choice ", value);
  return found->word;
}

std::optional<int64_t> choice_value(const std::type_info& type, std::string_view word) {
  const KeyChoice* choice = key_of(type).choice(word);
  return choice == nullptr ? std::nullopt : std::optional(choice->value);
}

Config with_all_sections(Config config) {
  for (const Section& section : sections())
    if (section.optional && section.at(config) == nullptr) section.exist(config, true);
  return config;
}

std::string item_expectation(const Key& key) { return scalar_expectation(key); }

std::string expectation(const Key& key) {
  const auto plain = [](const Key& of) { return of.list ? list_expectation(of) : scalar_expectation(of); };
  const auto mapping = [](Key of) {
    const std::string names = of.choices.empty() ? "modules" : alternatives(of);
    of.choices.clear();
    const std::string values = list_expectation(of);
    return of.lists ? fmt::format("{}, or a mapping of {} to such lists", values, names)
                    : fmt::format("a mapping of {} to {}", names, values.substr(sizeof "a list of " - 1));
  };
  return (key.map ? mapping(key) : plain(key)) + (key.optional || key.may_be_absent ? ", or null" : "");
}

std::string value_text(const Key& key, const Value& value) {
  if (key.selector && is_pattern(value)) return quoted(value.back());
  std::vector<std::string> items;
  if (key.map) {
    if (!value.empty() && value.front().empty()) return value.back();
    for (size_t i = 0; i < value.size(); i += 2) items.push_back(fmt::format("{}: {}", quoted(value[i]), value[i + 1]));
    return items.empty() ? "null" : fmt::format("{{{}}}", join(items, ", "));
  }
  for (const std::string& item : value)
    items.push_back(key.type == Type::kText && key.choices.empty() ? quoted(item) : item);
  if (items.empty() && !(key.list && !key.may_be_absent)) return "null";
  return key.list ? fmt::format("[{}]", join(items, ", ")) : items.front();
}

std::string key_reference(const std::vector<ProgramKeys>& every) {
  std::string page =
      "# Configuration keys\n\nEvery key of the programs that train. The programs write this page themselves; a test "
      "compares it with what they write.\nThe file is YAML. A relative path counts from its directory, in `--set` "
      "too. `--set SECTION.KEY=VALUE` overrides one key, and\n`--set SECTION=null` leaves an optional section out. "
      "Unknown keys are errors.\n";
  for (const Section& section : sections()) {
    page += fmt::format("\n## {}\n\n{}\n\n| key | accepts | default | programs | meaning |\n|---|---|---|---|---|\n",
                        section.name, cell(section.help));
    for (const Key& key : section.keys) {
      std::vector<std::pair<std::string, KeyEntry>> programs;
      std::vector<std::string> names;
      for (const ProgramKeys& program : every) {
        const auto entry = entry_of(section, key, program, with_all_sections(program.defaults));
        if (!entry) continue;
        programs.emplace_back(program.name, *entry);
        names.push_back(program.name);
      }
      if (programs.empty()) continue;
      page += fmt::format("| `{}.{}` | {} | {} | {} | {} |\n", section.name, key.name,
                          column(programs, &KeyEntry::accepts), column(programs, &KeyEntry::otherwise),
                          names.size() == every.size() ? "all" : join(names, ", "), column(programs, &KeyEntry::help));
    }
  }
  return page;
}

std::string print_config(const Config& config) {
  std::string text;
  for (const Section& section : sections()) {
    const bool there = section.at(const_cast<Config&>(config)) != nullptr;
    text += fmt::format("{}:{}\n", section.name, there ? "" : " null");
    if (!there) continue;
    for (const Key& key : section.keys) {
      const bool unknown = config.train.epochs && key.name == std::string_view("max_steps");
      if (!unknown) text += fmt::format("  {}: {}\n", key.name, value_text(key, section.get(config, key)));
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> flatten_config(const Config& config) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Section& section : sections()) {
    if (section.at(const_cast<Config&>(config)) == nullptr) {
      values.emplace_back(section.name, "null");
      continue;
    }
    for (const Key& key : section.keys)
      values.emplace_back(fmt::format("{}.{}", section.name, key.name), value_text(key, section.get(config, key)));
  }
  return values;
}

void set_key(Config& config, const std::string& name, const std::string& text) {
  const Section* section = find_section(name.substr(0, name.find('.')));
  const Key* key = find_key(name);
  TRIREME_CHECK(key != nullptr, "no key ", name);
  Value value;
  if (!key->list)
    value = {text};
  else
    for (std::string_view rest = std::string_view(text).substr(1, text.size() - 2); !rest.empty();) {
      const size_t end = std::min(rest.find(", "), rest.size());
      value.emplace_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
  for (const std::string& item : value)
    TRIREME_CHECK(key->type != Type::kText || key->choices.empty() || key->choice(item) != nullptr, name, " ", item);
  if (section->at(config) == nullptr) section->exist(config, true);
  section->set(config, *key, value);
}

KeyTraits key_traits(const std::string& key) {
  const size_t dot = key.find('.');
  const Section* section = find_section(key.substr(0, dot));
  if (section == nullptr) return {};
  if (dot == std::string::npos) return {.may_change = section->may_change};
  const Key* found = find_key(key);
  if (found == nullptr) return {};
  return {found->path, section->may_change || found->may_change || found->path};
}

std::string keys_without_meaning(const Config& config, DataKinds kind, DataKinds others) {
  const Config defaults = with_all_sections({});
  std::vector<std::string> keys;
  for (const Section& section : sections())
    for (const Key& key : section.keys)
      if ((key.data & kind) == 0 && (key.data & others) != 0 && section.get(config, key) != section.get(defaults, key))
        keys.push_back(fmt::format("{}.{}", section.name, key.name));
  return join(keys, ", ");
}

std::string describe_config(const ProgramKeys& program) {
  const Config defaults = with_all_sections(program.defaults);
  std::string text;
  for (const Section& section : sections()) {
    if (!program.features.has(section.feature)) continue;
    text += fmt::format("{:<23} # {}\n", std::string(section.name) + ":", section.help);
    for (const Key& key : section.keys) {
      const auto entry = entry_of(section, key, program, defaults);
      if (!entry) continue;
      const std::string otherwise = key.required ? "required" : "default " + entry->otherwise;
      text += fmt::format("  {:<20}   {}\n", key.name, wrap(entry->help, kHelpWidth, 25));
      text += fmt::format("{:27}{}\n", "", wrap(entry->accepts + "; " + otherwise, kHelpWidth, 27));
    }
  }
  return text +
         "\nA relative path counts from the directory of the configuration file, in --set too.\n"
         "--set SECTION.KEY=VALUE takes a YAML scalar or a list in brackets: --set "
         "optimizer.lr=3e-4\n" +
         (program.features.has(Feature::kAdapters)
              ? "--set lora.target_modules='[q_proj, v_proj]'; --set lora=null removes the section.\n"
              : "");
}

std::vector<std::string> config_keys(const ProgramKeys& program) {
  std::vector<std::string> names;
  for (const Section& section : sections())
    for (const Key& key : section.keys)
      if (program.features.has(section.feature) && program.features.has(key.feature))
        names.push_back(fmt::format("{}.{}", section.name, key.name));
  return names;
}

}  // namespace trireme
