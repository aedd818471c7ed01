#pragma once
// What importers share: options of another trainer, by name, become keys, and each gets a line of the report.

#include "description.h"
#include "trireme/base/error.h"
#include "trireme/compose/compose.h"
#include "trireme/config_import/import.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme {

/// YAML texts of values.
std::string yaml_text(const std::string& value);  // in quotes
std::string yaml_text(double value);
std::string yaml_text(int64_t value);
std::string yaml_text(bool value);

/// Options of a trainer by name ("quantize.linear.float8.recipe_name"), and why those that its importer does not read
/// have no meaning here. An empty reason: the importer reads it.
using KnownOptions = std::map<std::string, std::string>;
const KnownOptions& fms_options();         // as fms-fsdp's HEAD names them
const KnownOptions& torchtitan_options();  // of 0.2.0 to 0.2.2 and a little before
const KnownOptions& nemo_options();        // of the launcher's tags 23.07 to 24.05 and HEAD

/// BOS and EOS of a model: the tokenizer's; without one those of GPT-2 or Llama 3 where the model has that vocabulary.
void set_ends(ImportedModel& model, const std::optional<ImportedTokenizer>& tokenizer);

class Importer {
 protected:
  struct Option {
    ConfNode value;
    std::string shown;  // name and value as given
    std::string place;  // "file:line:column"; empty for a command line
  };

  /// `source`: what is imported, for the first line of the YAML and for errors; `names`: the trainer's column of the
  /// description; `base`: as NemoImport's. `known` is kept as a reference.
  Importer(std::string source, const char* OptionNames::* names, const KnownOptions& known, std::filesystem::path base)
      : source_(std::move(source)), names_(names), known_(known), base_(std::move(base)) {}
  virtual ~Importer() = default;

  /// Unknown options get a line of the report instead of a problem.
  void ignore_unknown() { ignore_unknown_ = true; }
  /// Whether known options begin with "name."; if not, the section goes to the problems.
  bool enter_section(const std::string& name, const std::string& place);
  /// `text`: the value as the file writes it. An unknown option is a problem.
  void add(const std::string& name, ConfNode value, const std::string& text, const std::string& place);

  /// A value that is null counts as not given.
  bool given(const std::string& name) const;
  bool has_section(const std::string& name) const;
  /// Whether both are written with the same value.
  bool equal(const std::string& name, const std::string& other) const;
  /// Whether it is written as a fraction: 1.0, and not 1.
  bool is_fraction(const std::string& name) const;
  /// `name = value` as in the file, or "name (default)".
  std::string shown(const std::string& name) const;
  /// The same with the place, where the file gives it.
  std::string origin(const std::string& name) const;

  // A value of another type is a problem, and `otherwise` comes back.
  virtual std::string text(const std::string& name, const std::string& otherwise);
  std::string word(const std::string& name, const std::string& otherwise, const std::vector<std::string>& words);
  int64_t integer(const std::string& name, int64_t otherwise);
  /// An integer from `least` to 2147483647, so that the product of two counts is an int64_t.
  virtual int64_t count(const std::string& name, int64_t otherwise, int64_t least);
  virtual double number(const std::string& name, double otherwise);
  virtual bool flag(const std::string& name, bool otherwise);
  std::vector<std::string> list(const std::string& name);

  /// A path as the other trainer means it, relative to where it is started. URLs, ~ and variables stay as they are.
  std::string absolute(const std::string& path) const;
  /// That of an option. `otherwise` stays as it is: our own, beside the configuration.
  std::string path(const std::string& option, const std::string& otherwise) {
    return given(option) ? absolute(text(option, otherwise)) : otherwise;
  }

  /// `key`: "section.key"; `value`: YAML text; `from`: the option that it comes from, with its place, for errors.
  void put(const std::string& key, const std::string& value, const std::string& from = "");
  void put_all(std::initializer_list<std::pair<const char*, std::string>> values) {
    for (const auto& [key, value] : values) put(key, value);
  }
  /// Sets a key from an option and reports it.
  void set(const std::string& option, const std::string& key, const std::string& value, const std::string& why = "");
  /// The option that the description names for `key`.
  std::string option_of(const std::string& key) const;
  /// Sets `key` from its option, or from `otherwise` where that is not given, and reports it.
  template <class Value>
  void take(const std::string& key, const Value& otherwise, const std::string& why = "") {
    const std::string option = option_of(key);
    set(option, key, yaml_text(read(option, otherwise, *find_key(key))), why);
  }

  /// A line of the report.
  void say(const std::string& what, const std::string& became) { report_.emplace_back(what, became); }
  void became(const std::string& option, const std::string& what) { say(shown(option), what); }
  /// Reports an option without a key of its own, where it was given.
  void no_key(const std::string& option, const std::string& why);
  /// Reports an option without a key of its own, or refuses it with `why`.
  void expect(const std::string& option, bool good, const std::string& why, const std::string& reason) {
    good ? no_key(option, reason) : refuse(option, why);
  }
  void problem(const std::string& text);  // an equal one is kept once
  /// An option and its place with what is wrong there, as a problem.
  virtual void refuse(const std::string& option, const std::string& why);

  /// Reports the options that have no line yet, with the reason that the table has for them.
  void rest();
  /// ConfigError with all problems, or with those that load_config() has with the result, each at its origin.
  ImportedConfig finish();

  const ConfNode* find(const std::string& name);  // null: not given

  std::optional<ImportedModel> model_;
  std::map<std::string, Option> options_;

 private:
  // The value of an option that becomes `key`.
  std::string read(const std::string& name, const std::string& otherwise, const Key&) { return text(name, otherwise); }
  virtual int64_t read(const std::string& name, int64_t otherwise, const Key&) { return integer(name, otherwise); }
  double read(const std::string& name, double otherwise, const Key&) { return number(name, otherwise); }
  bool read(const std::string& name, bool otherwise, const Key&) { return flag(name, otherwise); }

  /// A key of the result.
  struct Entry {
    std::string section, key, value, origin;
    size_t line = 0;  // in the YAML, from 1; yaml() counts
  };
  std::string yaml();
  /// What load_config() says of `text`, in terms of the options; empty: nothing.
  std::vector<std::string> refusals(const std::string& text) const;

  std::string source_;
  const char* OptionNames::* names_;
  const KnownOptions& known_;
  std::filesystem::path base_;
  bool ignore_unknown_ = false;
  std::set<std::string> read_;
  mutable std::set<std::string> shown_;  // have a line, or are named in a problem
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> report_;
  std::vector<std::string> problems_;
};

}  // namespace trireme
