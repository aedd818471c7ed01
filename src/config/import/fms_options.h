#pragma once
// fms-fsdp's command line: names, spellings and values.

#include "description.h"
#include "draft.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The options by the name that fms-fsdp's HEAD gives them; `text`: the value as given, `shown`: name and value as
/// given, for the report.
class FmsOptions {
 public:
  /// Problems (an unknown option, one given twice, an argument that is none) go to the draft.
  FmsOptions(const std::vector<std::string>& arguments, ImportDraft& draft);

  /// Whether a name of this spelling was given: "ckpt_save_path" and "save_ckpt_path" are different spellings of one.
  bool spelled(const std::string& name) const { return spellings_.contains(name); }
  bool given(const std::string& name) const { return values_.contains(name); }
  std::string text(const std::string& name, const std::string& otherwise) const;
  /// "--name=value", or "default" where it was not given.
  std::string shown(const std::string& name) const;
  std::string origin(const std::string& name) const { return shown(name); }

  // Values; where they are no such value a problem goes to the draft and `otherwise` comes back.
  int64_t integer(const std::string& name, int64_t otherwise, int64_t least);
  double number(const std::string& name, double otherwise);
  /// true, false, yes, no, on, off, 1, 0 in any case, and None as false.
  bool flag(const std::string& name, bool otherwise);
  /// nullopt: None.
  std::optional<int64_t> token(const std::string& name, std::optional<int64_t> otherwise);
  // The value of an option that becomes `key`.
  int64_t read(const std::string& name, int64_t otherwise, const Key& key) {
    return integer(name, otherwise, static_cast<int64_t>(key.min));
  }
  double read(const std::string& name, double otherwise, const Key&) { return number(name, otherwise); }
  std::string read(const std::string& name, const std::string& otherwise, const Key&) { return text(name, otherwise); }

  /// "1,2", "(1, 2)", "[1,2]": the items, without blanks and quotes.
  std::vector<std::string> items(const std::string& name, const std::string& otherwise) const;

 private:
  struct Value {
    std::string text, shown;
  };
  void take(const std::string& spelling, const std::optional<std::string>& value, const std::string& argument);

  ImportDraft& draft_;
  std::map<std::string, Value> values_;
  std::map<std::string, std::string> spellings_;  // as given, underscores -> canonical
};

}  // namespace trireme
