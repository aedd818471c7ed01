#pragma once
// Composes configurations as Hydra 1.3 and OmegaConf 2.3 do: a primary file with a defaults list, groups of files
// beside it, overrides from the command line, interpolation. Every value has its place; problems are collected. YAML is
// read by yaml-cpp with OmegaConf's types of YAML 1.1, but a number with colons (1:30) is a text.

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Where a value was written.
struct ConfPlace {
  std::shared_ptr<const std::string> source;  // a file's name, or an override as given
  size_t line = 0, column = 0;                // from 1; 0: an override
  std::string text() const;                   // "conf/config.yaml:3:7", "override 'a.b=c'"
};

struct ConfEntry;

/// A value of the tree. A text may hold interpolations (${…}) until ConfResolver has seen it.
struct ConfNode {
  enum class Kind { kNull, kBool, kInteger, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  ConfPlace place;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;                // kText
  std::vector<ConfNode> items;     // kList
  std::vector<ConfEntry> entries;  // kMap, in the order of the file

  ConfNode() = default;
  /// An empty list or map.
  explicit ConfNode(Kind of, ConfPlace at = {}) : kind(of), place(std::move(at)) {}
  template <std::same_as<bool> Bool>
  explicit ConfNode(Bool value, ConfPlace at = {}) : kind(Kind::kBool), place(std::move(at)), boolean(value) {}
  explicit ConfNode(int64_t value, ConfPlace at = {}) : kind(Kind::kInteger), place(std::move(at)), integer(value) {}
  explicit ConfNode(double value, ConfPlace at = {}) : kind(Kind::kNumber), place(std::move(at)), number(value) {}
  explicit ConfNode(std::string value, ConfPlace at = {})
      : kind(Kind::kText), place(std::move(at)), text(std::move(value)) {}

  bool is(Kind wanted) const { return kind == wanted; }
  const ConfNode* find(std::string_view key) const;
  ConfNode* find(std::string_view key);
  ConfNode& at_or_add(const std::string& key);  // makes this node a map if necessary
  void erase(std::string_view key);
  std::vector<std::string> keys() const;
  /// As Python's str() gives it: True, None, 0.0006, 1e-05; a list or a map in one line.
  std::string str() const;
};

struct ConfEntry {
  std::string key;
  ConfPlace place;
  ConfNode value;
};

/// Collects all problems for one ConfigError.
class ConfProblems {
 public:
  void add(const ConfPlace& place, const std::string& text) { add(place.text() + ": " + text); }
  void add(const std::string& line);  // an equal line is kept once
  bool empty() const { return lines_.empty(); }
  /// ConfigError with one line per problem and a last line that counts the problems of `what`.
  void throw_if_any(const std::string& what) const;

 private:
  std::vector<std::string> lines_;
};

/// The tree after defaults and overrides, before interpolation.
struct Composition {
  ConfNode root;
  std::string section;  // where interpolations find a first key that the root lacks; empty: nowhere
  std::map<std::string, std::optional<std::string>> choices;  // of every group: "training" -> "gpt3/126m"
  std::vector<std::string> notes;                             // values that were read and have no meaning here
};

/// Whether keys with the dots of this text may nest deeper than a tree can be, which is freed recursively.
bool is_too_deep(std::string_view keys);

/// One YAML file without composition. A syntax error is added to `problems`, and a null is returned.
ConfNode read_conf_file(const std::filesystem::path& file, ConfProblems& problems);

/// `primary`: the file with the defaults list; groups are the directories beside it. `overrides`: Hydra's grammar
/// without sweeps and functions: a.b=c, +new=v, ++a=b, ~key, group=choice, +group=choice, ~group.
Composition compose(const std::filesystem::path& primary, const std::vector<std::string>& overrides,
                    ConfProblems& problems);

/// Overrides of values (no groups) on a tree.
void apply_overrides(ConfNode& root, const std::vector<std::string>& overrides, ConfProblems& problems);

/// OmegaConf's interpolation: ${a.b}, ${.sibling}, ${..uncle}, ${list[0]}, ${oc.env:NAME,default},
/// ${multiply:a,b}, ${divide_ceil:a,b}, ${divide_floor:a,b}, ${hydra:runtime.choices.group}; nested; \${ is a text.
class ConfResolver {
 public:
  /// Keeps references to `composition` and `problems`.
  ConfResolver(const Composition& composition, ConfProblems& problems)
      : composition_(composition), problems_(problems) {}

  /// The value at "a.b" with all interpolations resolved; nullopt if there is no such value. A value of ??? is a
  /// problem.
  std::optional<ConfNode> at(const std::string& path);

 private:
  using Path = std::vector<std::string>;
  ConfNode resolve(const ConfNode& node, const Path& path);
  ConfNode resolve_text(const ConfNode& node, const Path& path);
  ConfNode resolve_placed(const ConfNode& node, const Path& path);
  ConfNode interpolate(std::string_view expression, const ConfNode& node, const Path& path);
  ConfNode call(const std::string& name, std::string_view arguments, const ConfNode& node, const Path& path);
  ConfNode select(const std::string& key, const Path& path);
  ConfNode lookup(const Path& path, const std::string& shown);
  ConfNode expand(std::string_view text, const ConfNode& node, const Path& path);
  std::string expand_nested(std::string_view text, const ConfNode& node, const Path& path);

  const Composition& composition_;
  ConfProblems& problems_;
  std::vector<std::string> active_;  // paths being resolved, to find cycles
};

/// Block-style YAML as OmegaConf.save() writes it, without folding long lines.
std::string conf_yaml(const ConfNode& node);

}  // namespace trireme
