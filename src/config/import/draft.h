#pragma once
// The configuration that an import makes, and what it says about each option.

#include "trireme/config/import.h"

#include <string>
#include <vector>

namespace trireme {

/// YAML texts of values.
std::string yaml_text(const std::string& value);  // in quotes
std::string yaml_text(double value);
std::string yaml_text(int64_t value);
std::string yaml_text(bool value);

class ImportDraft {
 public:
  /// `source`: what is imported, for the first line of the YAML and for errors.
  explicit ImportDraft(std::string source) : source_(std::move(source)) {}

  /// `key`: "section.key"; `value`: YAML text; `origin`: the option that it comes from, with its place, for errors.
  void set(const std::string& key, const std::string& value, const std::string& origin = "");
  /// A line of the report.
  void say(const std::string& option, const std::string& became);
  void problem(const std::string& text);  // an equal one is kept once
  void model(ImportedModel model) { model_ = std::move(model); }

  /// ConfigError with all problems, or with those that load_config() has with the result, each at its origin.
  ImportedConfig finish();

 private:
  struct Entry {
    std::string section, key, value, origin;
    size_t line = 0;  // in the YAML, from 1; yaml() counts
  };
  Entry& entry(const std::string& key);
  std::string yaml();
  /// What load_config() says of `text`, in terms of the options; empty: nothing.
  std::vector<std::string> refusals(const std::string& text) const;

  std::string source_;
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> report_;
  std::vector<std::string> problems_;
  std::optional<ImportedModel> model_;
};

}  // namespace trireme
