#pragma once
// torchtitan's TOML file: its keys and values.

#include "draft.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace trireme {

/// The file's values by dotted name ("quantize.linear.float8.recipe_name").
class TitanOptions {
 public:
  /// A file that is no TOML is a ConfigError with line and column. Keys that torchtitan v0.2 does not know go to the
  /// draft as problems.
  TitanOptions(const std::filesystem::path& file, ImportDraft& draft);
  ~TitanOptions();

  bool given(const std::string& name) const { return values_.contains(name); }
  bool has_section(const std::string& name) const;
  /// `name = value` as in the file, or "name (default)".
  std::string shown(const std::string& name) const;

  // A value of another type is a problem of the draft, and `otherwise` comes back.
  std::string text(const std::string& name, const std::string& otherwise);
  std::string word(const std::string& name, const std::string& otherwise, const std::vector<std::string>& words);
  int64_t integer(const std::string& name, int64_t otherwise);
  double number(const std::string& name, double otherwise);
  bool flag(const std::string& name, bool otherwise);
  std::vector<std::string> list(const std::string& name);

  /// Reports an option without a key of its own, where it was given.
  void no_key(const std::string& name, const std::string& why);
  /// Reports the options that have no line yet, with the reason that the table has for them.
  void rest();

 private:
  struct Value;
  const Value* find(const std::string& name);
  void refuse(const std::string& name, const std::string& expected);

  ImportDraft& draft_;
  std::map<std::string, std::unique_ptr<Value>> values_;
  std::set<std::string> read_;
  mutable std::set<std::string> shown_;  // have a line, or are named in a problem
};

}  // namespace trireme
