// The visitors that write: the resolved configuration, the help, and the key reference.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "schema_text.h"
#include "trireme/base/text.h"
#include "trireme/base/wrap.h"
#include "trireme/config/keys.h"

namespace trireme {

namespace {

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

std::string value_text(const Field& field, const std::string& value) {
  const bool word = std::find(field.words.begin(), field.words.end(), value) != field.words.end();
  const bool count = field.or_count && !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
  const bool share =
      field.or_fraction && !value.empty() && value.find_first_not_of("0123456789./") == std::string::npos;
  return word || count || share ? value : quoted(value);
}
std::string value_text(const Field&, int64_t value) { return std::to_string(value); }
std::string value_text(const Field&, double value) { return format_exact(value); }
std::string value_text(const Field&, bool value) { return value ? "true" : "false"; }

template <class Item>
std::string value_text(const Field& field, const std::vector<Item>& values) {
  if (values.empty()) return field.may_be_absent ? "null" : "[]";
  std::vector<std::string> parts;
  for (const Item& value : values) parts.push_back(value_text(field, value));
  return fmt::format("[{}]", join(parts, ", "));
}
template <class Value>
std::string value_text(const Field& field, const std::optional<Value>& value) {
  return value ? value_text(field, *value) : "null";
}

struct Printer {
  std::string text;

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    text += fmt::format("{}:\n", info.name);
    describe(*this, section);
  }
  template <class Section>
  void section(const SectionInfo& info, std::optional<Section>& section) {
    if (section)
      this->section(info, *section);
    else
      text += fmt::format("{}: null\n", info.name);
  }
  template <class Value>
  void field(const Field& field, const Value& value) {
    if (&value == static_cast<const void*>(unknown)) return;
    text += fmt::format("  {}: {}\n", field.key, value_text(field, value));
  }
  const void* unknown = nullptr;  // a value that is not known yet, which is not written
};

struct Flattener {
  std::vector<std::pair<std::string, std::string>> values;
  std::string prefix;

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    prefix = std::string(info.name) + ".";
    describe(*this, section);
  }
  template <class Section>
  void section(const SectionInfo& info, std::optional<Section>& section) {
    if (section)
      this->section(info, *section);
    else
      values.emplace_back(info.name, "null");
  }
  template <class Value>
  void field(const Field& field, const Value& value) {
    values.emplace_back(prefix + field.key, value_text(field, value));
  }
};

/// What --help says of a field: its own text and those of the words that the family takes.
std::string help_text(const Field& field, const ConfigFamily& family) {
  std::string text = field.help;
  for (const TaggedWord& word : field.tagged)
    if (family.features.has(word.feature)) text += word.help;
  const std::string variable = "{vocab_multiple}";
  if (const size_t at = text.find(variable); at != std::string::npos)
    text.replace(at, variable.size(), std::to_string(family.vocab_multiple));
  return text;
}

constexpr size_t kHelpWidth = 100;

/// The fields of a section; of one that is optional, also where it is left out.
template <class Visitor, class Section>
void describe_fields(Visitor& visitor, Section& section) {
  if constexpr (OptionalOf<Section>::value) {
    typename OptionalOf<Section>::Inner inner;
    describe(visitor, inner);
  } else {
    describe(visitor, section);
  }
}

struct Helper {
  const ConfigFamily& family;
  std::string text = {};

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    if (!family.features.has(info.feature)) return;
    text += fmt::format("{}:{:<{}} # {}\n", info.name, "",
                        std::max<int>(0, 22 - static_cast<int>(std::string_view(info.name).size())), info.help);
    describe_fields(*this, section);
  }
  template <class Value>
  void field(const Field& field, const Value& value) {
    if (!family.features.has(field.feature)) return;
    const std::string accepts =
        expectation(offered(field, family.features), type_of<Value>(), OptionalOf<Value>::value);
    const std::string otherwise = field.required ? "required" : "default " + value_text(field, value);
    text += fmt::format("  {:<20}   {}\n", field.key, wrap(help_text(field, family), kHelpWidth, 25));
    text += fmt::format("{:27}{}\n", "", wrap(accepts + "; " + otherwise, kHelpWidth, 27));
  }
};

struct KeyLister {
  const ConfigFamily& family;
  std::vector<std::string> keys = {};
  std::string prefix = {};

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    if (!family.features.has(info.feature)) return;
    prefix = std::string(info.name) + ".";
    describe_fields(*this, section);
  }
  template <class Value>
  void field(const Field& field, const Value&) {
    if (family.features.has(field.feature)) keys.push_back(prefix + field.key);
  }
};

struct TraitsLister {
  std::map<std::string, KeyTraits> traits = {};
  SectionInfo in = {};

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    in = info;
    if constexpr (OptionalOf<Section>::value) traits[info.name].may_change = info.may_change;
    describe_fields(*this, section);
  }
  template <class Value>
  void field(const Field& field, const Value&) {
    traits[fmt::format("{}.{}", in.name, field.key)] = {field.path, in.may_change || field.may_change || field.path};
  }
};

/// A key as one program takes it, in the words of the reference.
struct KeyEntry {
  std::string section, key, accepts, otherwise, help;
};

struct EntryLister {
  const ConfigFamily& family;
  std::vector<KeyEntry> entries = {};
  std::vector<SectionInfo> sections = {};

  template <class Section>
  void section(const SectionInfo& info, Section& section) {
    if (!family.features.has(info.feature)) return;
    sections.push_back(info);
    describe_fields(*this, section);
  }
  template <class Value>
  void field(const Field& field, const Value& value) {
    if (!family.features.has(field.feature)) return;
    entries.push_back({sections.back().name, field.key,
                       expectation(offered(field, family.features), type_of<Value>(), OptionalOf<Value>::value),
                       field.required ? "required" : value_text(field, value), help_text(field, family)});
  }
};

EntryLister list_entries(const ConfigFamily& family) {
  EntryLister lister{family};
  Config config = family.defaults;
  describe(lister, config);
  return lister;
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

std::string key_reference(const std::vector<ConfigFamily>& families) {
  ConfigFamily every;
  every.features = FeatureSet::all();
  const EntryLister order = list_entries(every);
  std::vector<std::pair<std::string, std::vector<KeyEntry>>> lists;
  for (const ConfigFamily& family : families) lists.emplace_back(family.program, list_entries(family).entries);

  std::string page =
      "# Configuration keys\n\nEvery key of the programs that train. The programs write this page themselves; a test "
      "compares it with what they write.\nThe file is YAML. A relative path counts from its directory, in `--set` "
      "too. `--set SECTION.KEY=VALUE` overrides one key, and\n`--set SECTION=null` leaves an optional section out. "
      "Unknown keys are errors.\n";
  for (const SectionInfo& section : order.sections) {
    page += fmt::format("\n## {}\n\n{}\n\n| key | accepts | default | programs | meaning |\n|---|---|---|---|---|\n",
                        section.name, cell(section.help));
    for (const KeyEntry& wanted : order.entries) {
      if (wanted.section != section.name) continue;
      std::vector<std::pair<std::string, KeyEntry>> programs;
      std::vector<std::string> names;
      for (const auto& [program, entries] : lists)
        for (const KeyEntry& entry : entries)
          if (entry.section == wanted.section && entry.key == wanted.key) {
            programs.emplace_back(program, entry);
            names.push_back(program);
          }
      if (programs.empty()) continue;
      page +=
          fmt::format("| `{}.{}` | {} | {} | {} | {} |\n", wanted.section, wanted.key,
                      column(programs, &KeyEntry::accepts), column(programs, &KeyEntry::otherwise),
                      names.size() == families.size() ? "all" : join(names, ", "), column(programs, &KeyEntry::help));
    }
  }
  return page;
}

std::string print_config(const Config& config) {
  Printer printer;
  Config copy = config;
  if (copy.train.epochs) printer.unknown = &copy.train.max_steps;
  describe(printer, copy);
  return printer.text;
}

std::vector<std::pair<std::string, std::string>> flatten_config(const Config& config) {
  Flattener flattener;
  Config copy = config;
  describe(flattener, copy);
  return std::move(flattener.values);
}

KeyTraits key_traits(const std::string& key) {
  static const auto all = [] {
    TraitsLister lister;
    Config config;
    describe(lister, config);
    return lister.traits;
  }();
  const auto found = all.find(key);
  return found == all.end() ? KeyTraits{} : found->second;
}

std::string describe_config(const ConfigFamily& family) {
  Helper helper{family};
  Config config = family.defaults;
  describe(helper, config);
  return helper.text +
         "\nA relative path counts from the directory of the configuration file, in --set too.\n"
         "--set SECTION.KEY=VALUE takes a YAML scalar or a list in brackets: --set "
         "optimizer.lr=3e-4\n" +
         (family.features.has(Feature::kAdapters)
              ? "--set lora.target_modules='[q_proj, v_proj]'; --set lora=null removes the section.\n"
              : "");
}

std::vector<std::string> config_keys(const ConfigFamily& family) {
  KeyLister lister{family};
  Config config = family.defaults;
  describe(lister, config);
  return std::move(lister.keys);
}

}  // namespace trireme
