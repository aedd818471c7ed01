#pragma once
// The strict YAML layer: one document, plain scalars, lists and mappings, each with its place. yaml-cpp scans; what
// it lets pass (duplicate keys, aliases, merge keys, tags, several documents, tabs, control bytes, any depth) is
// refused here.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "problems.h"

namespace trireme {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  Place place;
  std::string text;     // of a scalar
  bool quoted = false;  // a quoted or block scalar is always a string
  bool empty = false;   // a null that nobody wrote: "key:" and no more
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;

  YamlEntry* find(std::string_view key);
  const YamlEntry* find(std::string_view key) const { return const_cast<YamlNode*>(this)->find(key); }
};

struct YamlEntry {
  std::string key;
  Place place;
  YamlNode value;
};

enum class Plain { kString, kInteger, kNumber, kBool, kNull };

/// What a plain scalar means in YAML 1.2's core schema; a quoted one is a string.
Plain plain_type(const YamlNode& node);

/// YAML 1.2 scalars, read strictly: no octal, no 1e3 for an integer, no yes/no, no inf or nan. nullopt where the node
/// is no such value; `hint` may then say what to write: " Did you mean 'x'?".
std::optional<int64_t> read_integer(const YamlNode& node, std::string& hint);
std::optional<double> read_number(const YamlNode& node, std::string& hint);
std::optional<bool> read_bool(const YamlNode& node, std::string& hint);

/// A node as part of "… must be x, not <this>".
std::string node_text(const YamlNode& node);

/// Of a configuration.
inline constexpr size_t kMaxYamlValues = 10'000;

/// Refuses what no configuration may hold, before the parser sees it: invalid UTF-8, NUL and other control bytes,
/// tabs as indentation, more brackets than `max_values`. Adds one problem for each kind.
void check_raw_text(std::string_view text, const Place& origin, Problems& problems, size_t max_values = kMaxYamlValues);

/// Parses one document. Syntax errors end the parse; other problems are collected. `origin` is the place of override
/// values (override_index >= 0), else line and column come from the text. An empty document is a null. Its
/// values, keys among them, are at most `max_values`. `aliases`: they are copies of what their anchors name.
YamlNode parse_yaml(const std::string& text, const Place& origin, Problems& problems,
                    size_t max_values = kMaxYamlValues, bool aliases = false);

}  // namespace trireme
