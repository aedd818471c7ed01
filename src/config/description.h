#pragma once
// The description of the configuration: every section and key with its place, type, limits and meaning. Reader,
// printer, help, key reference, resume check, refusals, hints, did-you-mean and importers read it and know no key by
// themselves. The table is description.cpp: a new key is one member in config.h and one entry there.

#include "trireme/config/config.h"
#include "trireme/config/keys.h"

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// What a key holds, in canonical texts: one of a scalar, none of a null, as many as a list has items.
using Value = std::vector<std::string>;
/// Of a ModuleSelector: its pattern, behind an empty text, in place of names.
inline bool is_pattern(const Value& value) { return value.size() == 2 && value.front().empty(); }

enum class Type { kText, kInteger, kNumber, kBool, kShare };

/// A word that a key takes: all that it takes, or what stands beside its integers or shares.
struct KeyChoice {
  KeyChoice(const char* w) : word(w) {}  // NOLINT(google-explicit-constructor): one of the names that a text may be
  template <class Number>
  KeyChoice(const char* w, Number number, Feature f = Feature::kAlways, const char* h = "")
      : word(w), value(static_cast<int64_t>(number)), feature(f), help(h) {}

  const char* word;
  int64_t value = 0;                   // of the enum, or the number that the word stands for
  Feature feature = Feature::kAlways;  // programs without it lack the word
  const char* help = "";               // goes on from the key's own help
};

/// A name that the key had in earlier versions, with the words of then and what they are now.
struct RetiredKey {
  const char* name;
  std::vector<std::pair<const char*, const char*>> words;

  const char* word_now(std::string_view word) const;  // null: it never had that value
};

/// What the key is called in the trainers whose configurations are imported; "": an importer decides otherwise, or it
/// has no such option. did-you-mean knows the last part of each.
struct OptionNames {
  const char *fms = "", *torchtitan = "", *nemo = "";
};

struct Key {
  const char* name = "";
  const char* help = "";
  std::vector<KeyChoice> choices = {};
  const char* unset = "";  // one of `choices` that an optional key has in place of null
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the limit itself is excluded
  size_t length = 0;                          // exact length of a list; 0: any
  bool required = false;
  bool path = false;           // made absolute against the file's directory; may differ between hosts and starts
  bool may_change = false;     // a run that goes on may have another value: it does not decide what is computed
  bool one_or_more = false;    // lists: a scalar is a list of one
  bool may_be_absent = false;  // lists: null is the empty list
  const char* not_path = "";   // with `path`: a word that is kept as it is
  const char* form = "";       // of a text: what it says
  bool (*has_form)(std::string_view text) = nullptr;
  Feature feature = Feature::kAlways;  // programs without it lack the key
  const char* instead = "";            // what they are told to do
  DataKinds data = kAnyData;           // what data.train may hold for the key to have a meaning
  std::vector<RetiredKey> retired = {};
  OptionNames option = {};
  std::vector<const char*> elsewhere = {};  // names in other trainers: "max_lr", or of one section: "lora.rank"
  std::vector<std::pair<const char*, const char*>> words_elsewhere = {};  // another trainer's word, ours
  const char* note = "";  // a sentence after the key where one of these is corrected

  // The table fills in what follows from the member.
  Type type = Type::kText;
  const std::type_info* member = nullptr;  // of a value, or of an item of a list
  bool list = false, optional = false;
  bool selector = false;  // of a list of module names: a text in its place is a pattern (ModuleSelector)
  /// Names or patterns of modules with a value each; in a Value they alternate. With choices: the names. `lists`: the
  /// values are lists; one without a name is a map, too, whose name is empty.
  bool map = false, lists = false;
  size_t offset = 0;  // in the section's struct
  Value (*get)(const Key&, const void* member) = nullptr;
  void (*set)(const Key&, void* member, const Value&) = nullptr;

  /// The choices that a program of these features has.
  Key offered(const FeatureSet& features) const;
  const KeyChoice* choice(std::string_view word) const;
  /// Whether other trainers have `name` for it.
  bool is_called(std::string_view name) const;
};

struct Section {
  const char* name = "";
  const char* help = "";
  Feature feature = Feature::kAlways;
  const char* instead = "";  // what a program without the feature is told to do
  bool may_change = false;   // as Key::may_change, of every key

  bool optional = false;
  std::function<void*(Config&)> at = {};          // null where it is left out
  std::function<void(Config&, bool)> exist = {};  // optional ones: makes it with its defaults, or leaves it out
  std::vector<Key> keys = {};

  const Key* find(std::string_view key) const;
  /// `config` has the section.
  Value get(const Config& config, const Key& key) const;
  void set(Config& config, const Key& key, const Value& value) const;
};

const std::vector<Section>& sections();
const Section* find_section(std::string_view name);
/// "section.key"; null: there is none.
const Key* find_key(std::string_view name);
/// Sentences, with a space before them, on what takes the place of another trainer's key that is none here; "": it is
/// unknown.
const char* instead_of(std::string_view key);

/// `config` with all optional sections, those that it lacks with their defaults.
Config with_all_sections(Config config);

/// "an integer from 1 to 65536", "adamw or lamb", "a path, or null", …
std::string expectation(const Key& key);
/// The same of one item of a list.
std::string item_expectation(const Key& key);
/// YAML text of a value.
std::string value_text(const Key& key, const Value& value);

}  // namespace trireme
