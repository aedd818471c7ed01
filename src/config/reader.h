#pragma once
// The visitor that fills a Config from a tree, and what it learnt on the way.

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "problems.h"
#include "schema_text.h"
#include "yaml_tree.h"

namespace trireme {

/// Section -> its keys that a program of these features has, in the order of the description.
std::vector<std::pair<std::string, std::vector<std::string>>> keys_with(const FeatureSet& features);

class Reader {
 public:
  /// `base`: absolute directory that relative paths count from.
  Reader(const YamlNode& root, std::filesystem::path base, const ConfigFamily& family, Problems& problems)
      : root_(root),
        base_(std::move(base)),
        family_(family),
        problems_(problems),
        keys_(keys_with(FeatureSet::all())),
        offered_keys_(keys_with(family.features)) {}

  void read(Config& config);

  /// False if any of these "section.key" could not be read: then no rule over them makes sense.
  bool readable(const std::vector<std::string>& keys) const;
  /// True if the file or an override has "section.key".
  bool given(const std::string& key) const { return places_.contains(key); }
  /// From now on `key` counts as unreadable: its value is not known yet.
  void forget(const std::string& key) { unreadable_.insert(key); }
  /// Where "section.key" stands, else its section, else the top of the file.
  Place place_of(const std::string& qualified) const;

  // The visitor's side.
  template <class Section>
  void section(const SectionInfo& info, Section& section);
  template <class Section>
  void section(const SectionInfo& info, std::optional<Section>& section);
  template <class Value>
  void field(const Field& field, Value& value);

 private:
  const YamlNode* section_node(const char* name);
  void check_keys(const YamlNode& node);
  std::string suggest(const std::string& section, const std::string& key) const;
  /// The hint for a key that other trainers have; "" if the program has none for it.
  std::string synonym_hint(const std::string& section, const std::string& key) const;
  std::string qualified(const Field& field) const { return section_ + "." + field.key; }
  void refuse(const Field& field, const YamlNode& node, const std::string& expected, const std::string& hint);

  // Each reads one value; false: refused and reported.
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, std::string& value);
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, int64_t& value);
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, double& value);
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, bool& value);
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, std::vector<std::string>& value);
  /// Item is double or int64_t.
  template <class Item>
  bool convert(const Field& field, const YamlNode& node, const std::string& expected, std::vector<Item>& value);
  bool resolve_path(const Field& field, const YamlNode& node, std::string& value);

  /// Reports that the family has no `what`, a key, a word of one or a section.
  void refuse_for_family(const Place& place, const std::string& what, Feature feature, const std::string& instead);

  const YamlNode& root_;
  std::filesystem::path base_;
  const ConfigFamily& family_;
  Problems& problems_;
  std::vector<std::pair<std::string, std::vector<std::string>>> keys_, offered_keys_;  // all; the family's
  std::string section_;                                                                // being read
  const YamlNode* node_ = nullptr;  // its mapping; null: all defaults
  bool broken_ = false;             // it is something else than a mapping
  std::map<std::string, Place> places_;
  std::set<std::string> unreadable_;
};

}  // namespace trireme
