#pragma once
// The configuration that an import makes, and what it says about each option.

#include "trireme/config/import.h"

#include <string>
#include <vector>

namespace trireme {

/// YAML texts of values.
std::string yaml_text(const std::string& value);  // in quotes
std::string yaml_number(double value);

class ImportDraft {
 public:
  /// `source`: what is imported, for the first line of the YAML and for errors.
  explicit ImportDraft(std::string source) : source_(std::move(source)) {}

  /// `key`: "section.key"; `value`: YAML text. A key of newer_keys() that this version refuses becomes a comment.
  void set(const std::string& key, const std::string& value);
  /// The same; a version that refuses `value` takes `otherwise`, and `value` becomes a comment.
  void set(const std::string& key, const std::string& value, const std::string& otherwise);
  /// A line of the report.
  void say(const std::string& option, const std::string& became);
  void problem(const std::string& text);  // an equal one is kept once
  void model(ImportedModel model) { model_ = std::move(model); }

  /// ConfigError with all problems, or with those that load_config() has with the result.
  ImportedConfig finish();

 private:
  struct Entry {
    std::string section, key, value, otherwise;
    bool newer = false;   // may be refused
    std::string refused;  // the value that was, "": none
    bool live = true;
  };
  Entry& entry(const std::string& key);
  std::string yaml() const;

  std::string source_;
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> report_;
  std::vector<std::string> problems_;
  std::optional<ImportedModel> model_;
};

}  // namespace trireme
