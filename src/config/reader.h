#pragma once
// Fills a Config from a tree by the description, and remembers what it learnt on the way.

#include "description.h"
#include "problems.h"
#include "yaml_tree.h"

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {

class Reader {
 public:
  /// `base`: absolute directory that relative paths count from.
  Reader(const YamlNode& root, std::filesystem::path base, const ProgramKeys& program, Problems& problems)
      : root_(root), base_(std::move(base)), program_(program), problems_(problems) {}

  void read(Config& config);

  /// False if any of these "section.key" could not be read: then no rule over them makes sense.
  bool readable(const std::vector<std::string>& keys) const;
  /// True if the file or an override has "section.key".
  bool given(const std::string& key) const { return places_.contains(key); }
  /// From now on `key` counts as unreadable: its value is not known yet.
  void forget(const std::string& key) { unreadable_.insert(key); }
  /// Where "section.key" stands, else its section, else the top of the file.
  Place place_of(const std::string& qualified) const;

 private:
  bool has(const Section& section) const { return program_.features.has(section.feature); }
  bool has(const Section& section, const Key& key) const { return has(section) && program_.features.has(key.feature); }
  void read_section(const Section& section, Config& config);
  void read_key(const Section& section, const Key& key, const YamlNode& node, Config& config);
  void check_keys(const Section& section, const YamlNode& node);
  /// " Did you mean 'x'?" for a key of `section` (null: for a section), or "".
  std::string suggest(const Section* section, const std::string& key) const;
  std::string name_elsewhere(const Section* section, const std::string& key) const;

  // nullopt: refused and reported. `key` has the choices of the program.
  std::optional<Value> value(const std::string& name, const Key& key, const YamlNode& node);
  std::optional<Value> list(const std::string& name, const Key& key, const YamlNode& node);
  std::optional<Value> mapping(const std::string& name, const Key& key, const YamlNode& node);
  /// Whether the regular expression is supported; otherwise reports why it is not.
  bool check_pattern(const std::string& name, const Place& place, const std::string& pattern);
  std::optional<std::string> item(const std::string& name, const Key& key, const YamlNode& node,
                                  const std::string& expected);
  std::optional<std::string> path(const std::string& name, const YamlNode& node);

  /// "NAME must be EXPECTED, not NODE." and a hint.
  std::nullopt_t refuse(const std::string& name, const YamlNode& node, const std::string& expected,
                        const std::string& hint = "");
  /// Reports that the program has no `what`, a key, a word of one or a section.
  void refuse_for_family(const Place& place, const std::string& what, Feature feature, const std::string& instead);

  const YamlNode& root_;
  std::filesystem::path base_;
  const ProgramKeys& program_;
  Problems& problems_;
  std::map<std::string, Place> places_;
  std::set<std::string> unreadable_;
};

}  // namespace trireme
