#pragma once
// Options of a configuration file by dotted name ("quantize.linear.float8.recipe_name"), against a table of the keys
// that its trainer knows.

#include "draft.h"
#include "trireme/config/compose.h"

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme {

struct Key;

/// Keys of a trainer, and why those that an importer does not read have no meaning here. An empty reason: the importer
/// reads it.
using KnownKeys = std::map<std::string, std::string>;

/// One line of such a table: `names` of one section, separated by blanks.
struct KnownNames {
  const char* section;
  const char* names;
  const char* why = "";
};
KnownKeys known_keys(std::initializer_list<KnownNames> lines);

struct TreeOption {
  ConfNode value;
  std::string text;   // as the file writes it
  std::string place;  // "file:line:column"
};

class TreeOptions {
 public:
  /// Both are kept as references.
  TreeOptions(const KnownKeys& known, ImportDraft& draft) : known_(known), draft_(draft) {}

  /// Unknown keys get a line of the report instead of a problem.
  void ignore_unknown() { ignore_unknown_ = true; }
  bool is_section(const std::string& name) const;
  /// An unknown key, or a section that holds none of the known ones, goes to the draft as a problem. `place`:
  /// "file:line:column".
  void add(const std::string& name, TreeOption option);
  void unknown_section(const std::string& name, const std::string& place);

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

  // A value of another type is a problem of the draft, and `otherwise` comes back.
  std::string text(const std::string& name, const std::string& otherwise);
  std::string word(const std::string& name, const std::string& otherwise, const std::vector<std::string>& words);
  int64_t integer(const std::string& name, int64_t otherwise);
  /// An integer from `least` to 2147483647, so that the product of two counts is an int64_t.
  int64_t count(const std::string& name, int64_t otherwise, int64_t least);
  double number(const std::string& name, double otherwise);
  bool flag(const std::string& name, bool otherwise);
  std::vector<std::string> list(const std::string& name);

  // The value of an option that becomes `key`.
  std::string read(const std::string& name, const std::string& otherwise, const Key&) { return text(name, otherwise); }
  int64_t read(const std::string& name, int64_t otherwise, const Key&) { return integer(name, otherwise); }
  double read(const std::string& name, double otherwise, const Key&) { return number(name, otherwise); }
  bool read(const std::string& name, bool otherwise, const Key&) { return flag(name, otherwise); }

  /// "place: name = value: what", as a problem of the draft.
  void problem(const std::string& name, const std::string& what);
  /// Reports an option without a key of its own, where it was given.
  void no_key(const std::string& name, const std::string& why);
  /// Reports the options that have no line yet, with the reason that the table has for them.
  void rest();

 private:
  const ConfNode* find(const std::string& name);

  const KnownKeys& known_;
  ImportDraft& draft_;
  bool ignore_unknown_ = false;
  std::map<std::string, TreeOption> values_;
  std::set<std::string> read_;
  mutable std::set<std::string> shown_;  // have a line, or are named in a problem
};

}  // namespace trireme
