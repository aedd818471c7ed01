// Defaults lists.
#include "conf_parts.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

using Kind = ConfNode::Kind;
constexpr int kMaxNested = 16;

/// One entry of a defaults list.
struct DefaultsItem {
  bool self = false, optional = false, overrides = false;
  std::string group, package;        // as written; no group: a file beside this one
  std::vector<std::string> options;  // empty: null
  ConfPlace place;
};

/// What the command line, or an "override" entry, chose for a group.
struct GroupChoice {
  std::vector<std::string> options;
  bool deleted = false, used = false;
  ConfPlace place;
};

std::vector<std::string> options_of(const ConfNode& value, ConfProblems& problems) {
  if (value.is(Kind::kNull)) return {};
  if (!value.is(Kind::kList)) return {value.str()};
  std::vector<std::string> all;
  for (const ConfNode& item : value.items) {
    if (item.is(Kind::kMap) || item.is(Kind::kList))
      problems.add(item.place, "a choice is a name");
    else
      all.push_back(item.str());
  }
  return all;
}

std::string joined_path(const std::string& base, const std::string& name) {
  if (name.starts_with("/")) return name.substr(1);
  return base.empty() ? name : base + "/" + name;
}

std::string joined_package(const std::string& base, const std::string& name) {
  if (name.empty() || base.empty()) return base + name;
  return base + "." + name;
}

std::string package_of_group(std::string group) {
  if (group.starts_with("/")) group.erase(0, 1);
  std::replace(group.begin(), group.end(), '/', '.');
  return group;
}

class Composer {
 public:
  Composer(const std::filesystem::path& primary, ConfProblems& problems)
      : folder_(primary.parent_path()), problems_(problems) {
    composed_.root = ConfNode(Kind::kMap);
  }

  Composition run(const std::filesystem::path& primary, const std::vector<std::string>& overrides) {
    std::vector<ConfOverride> values;
    for (ConfOverride& one : parse_overrides(overrides, problems_)) {
      if (one.key == "hydra" || one.key.starts_with("hydra.") || one.key.starts_with("hydra/"))
        composed_.notes.push_back(fmt::format("'{}' means nothing here: Hydra's own settings", *one.place.source));
      else if (!one.package.empty() || is_group(one.key))
        group_override(one);
      else
        values.push_back(std::move(one));
    }
    expand(primary, "", "", true, 0);
    for (const auto& [group, choice] : chosen_)
      if (!choice.used)
        problems_.add(choice.place, fmt::format("the defaults list has no group '{0}'.{1} A new one is written +{0}=…",
                                                group, did_you_mean(group, seen_groups_)));
    for (const ConfOverride& one : values)
      if (!is_absent(one.key)) apply_override(composed_.root, one, problems_);
    return std::move(composed_);
  }

 private:
  /// Values of a package of which a file could not be read: overrides of them say nothing about themselves.
  bool is_absent(const std::string& key) const {
    return std::any_of(absent_.begin(), absent_.end(), [&](const std::string& package) {
      return package.empty() || key == package || key.starts_with(package + ".");
    });
  }

  bool is_group(const std::string& key) const {
    std::error_code error;
    return key.find('.') == std::string::npos && std::filesystem::is_directory(folder_ / key, error);
  }

  void group_override(const ConfOverride& one) {
    const std::string key = one.package.empty() ? one.key : one.key + "@" + one.package;
    if (one.value && (one.value->is(Kind::kMap))) {
      problems_.add(one.place, "a group takes the name of a file, or null");
    } else if (one.kind == ConfOverride::Kind::kDelete) {
      chosen_[key] = {one.value ? options_of(*one.value, problems_) : std::vector<std::string>{}, true, false,
                      one.place};
    } else if (one.kind == ConfOverride::Kind::kChange) {
      chosen_[key] = {options_of(*one.value, problems_), false, false, one.place};
    } else {
      DefaultsItem item;
      item.group = one.key;
      item.package = one.package;
      item.options = options_of(*one.value, problems_);
      item.place = one.place;
      appended_.push_back(item);
    }
  }

  /// Takes the defaults list out of `body`.
  std::vector<DefaultsItem> defaults_of(ConfNode& body) {
    const ConfNode* list = body.find("defaults");
    if (list == nullptr) return {};
    std::vector<DefaultsItem> items;
    if (!list->is(Kind::kList)) problems_.add(list->place, "defaults must be a list");
    for (const ConfNode& node : list->items) {
      DefaultsItem item;
      item.place = node.place;
      std::string name;
      if (node.is(Kind::kMap) && node.entries.size() == 1) {
        name = node.entries.front().key;
        item.options = options_of(node.entries.front().value, problems_);
        for (bool more = true; more;) {
          more = false;
          for (const auto& [word, flag] :
               {std::pair("optional ", &DefaultsItem::optional), {"override ", &DefaultsItem::overrides}})
            if (name.starts_with(word)) {
              item.*flag = more = true;
              name.erase(0, std::string_view(word).size());
            }
        }
        while (name.ends_with(' ')) name.pop_back();
        item.group = name;
      } else if (node.is(Kind::kText)) {
        name = node.text;
        item.self = name == "_self_";
        item.options = {name};
      } else {
        problems_.add(node.place, "an entry of defaults is a name, _self_, or group: name");
        continue;
      }
      std::string& with_package = item.group.empty() ? item.options.front() : item.group;
      if (const size_t at = with_package.find('@'); at != std::string::npos) {
        item.package = with_package.substr(at + 1);
        with_package.resize(at);
      }
      items.push_back(std::move(item));
    }
    body.erase("defaults");
    return items;
  }

  /// "# @package NAME" in the comments at the top of a file.
  static std::optional<std::string> package_line(const std::filesystem::path& file) {
    const std::string text = read_text_file(file, ExitCode::kConfig, 4 << 20);
    for (const std::string& line : split(text, '\n')) {
      if (line.empty()) continue;
      if (line[0] != '#') return std::nullopt;
      const size_t at = line.find("@package ");
      if (at == std::string::npos) continue;
      std::string name = line.substr(at + 9);
      while (!name.empty() && (name.back() == ' ' || name.back() == '\r')) name.pop_back();
      return name;
    }
    return std::nullopt;
  }

  /// `group`: the group's path, "" for the primary file; `package`: where its values go.
  void expand(const std::filesystem::path& file, const std::string& group, std::string package, bool primary,
              int depth) {
    ConfNode body = read_conf_file(file, problems_);
    if (!body.is(Kind::kMap)) {
      absent_.push_back(package);
      if (!body.is(Kind::kNull)) problems_.add(body.place, "a configuration is a mapping of keys");
      return;
    }
    if (const auto named = package_line(file); named && *named != "_group_")
      package = *named == "_global_" ? "" : *named;
    std::vector<DefaultsItem> items = defaults_of(body);
    if (primary) body.erase("hydra");
    for (const DefaultsItem& item : items)
      if (item.overrides && !joined_path(group, item.group).starts_with("hydra/")) {
        const std::string key = joined_path(group, item.group) + (item.package.empty() ? "" : "@" + item.package);
        chosen_.try_emplace(key, GroupChoice{item.options, false, false, item.place});
      }
    bool has_self = false;
    for (const DefaultsItem& item : items) {
      if (item.overrides) continue;
      if (item.self) {
        has_self = true;
        add(body, package);
      } else if (depth == kMaxNested) {
        problems_.add(item.place, fmt::format("defaults nested more than {} deep", kMaxNested));
      } else {
        include(item, group, package, depth);
      }
    }
    if (!has_self) add(body, package);
    if (primary)
      for (const DefaultsItem& item : appended_) include(item, group, package, depth);
  }

  void include(const DefaultsItem& item, const std::string& group, const std::string& package, int depth) {
    if (item.group.empty()) {
      for (const std::string& name : item.options) {
        // The folders in a file's name are its group.
        const size_t slash = name.rfind('/');
        const std::string folders = slash == std::string::npos ? "" : name.substr(0, slash);
        load(joined_path(group, name), folders.empty() ? group : joined_path(group, folders),
             package_for(item, package, package_of_group(folders)), item, depth);
      }
      return;
    }
    const std::string path = joined_path(group, item.group);
    const std::string target = package_for(item, package, package_of_group(item.group));
    const std::string key = target == package_of_group(path) ? path : path + "@" + target;
    seen_groups_.push_back(key);
    std::vector<std::string> options = item.options;
    ConfPlace place = item.place;
    if (const auto given = chosen_.find(key); given != chosen_.end()) {
      given->second.used = true;
      place = given->second.place;
      if (given->second.deleted) {
        if (!given->second.options.empty() && given->second.options != item.options)
          problems_.add(place, fmt::format("the group '{}' has {}", key, join(item.options, ", ")));
        return;
      }
      options = given->second.options;
    }
    composed_.choices[key] = options.empty() ? std::nullopt : std::optional(join(options, ","));
    DefaultsItem here = item;
    here.place = place;
    for (const std::string& name : options) load(path + "/" + name, path, target, here, depth);
  }

  static std::string package_for(const DefaultsItem& item, const std::string& parent, const std::string& otherwise) {
    if (item.package.empty()) return joined_package(parent, otherwise);
    if (item.package == "_global_") return "";
    if (item.package.starts_with("_global_.")) return item.package.substr(9);
    if (item.package == "_here_") return parent;
    if (item.package == "_group_") return joined_package(parent, otherwise);
    return joined_package(parent, item.package);
  }

  void load(std::string name, const std::string& group, const std::string& package, const DefaultsItem& item,
            int depth) {
    if (!name.ends_with(".yaml")) name += ".yaml";
    const std::filesystem::path file = folder_ / name;
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error)) return expand(file, group, package, false, depth + 1);
    if (item.optional) return;
    absent_.push_back(package);
    std::vector<std::string> there;
    const std::filesystem::path around = group.empty() ? folder_ : folder_ / group;
    if (std::filesystem::is_directory(around, error))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(around, error))
        if (entry.path().extension() == ".yaml")
          there.push_back(entry.path().lexically_relative(around).replace_extension().string());
    std::sort(there.begin(), there.end());
    const std::string option =
        std::filesystem::path(name).lexically_relative(group.empty() ? "." : group).replace_extension().string();
    problems_.add(item.place, fmt::format("{} is missing.{}", file.string(), did_you_mean(option, there)));
  }

  void add(const ConfNode& body, const std::string& package) {
    if (is_too_deep(package)) return problems_.add(body.place, "a @package of more than 1000 parts");
    ConfNode* at = &composed_.root;
    if (!package.empty())
      for (const std::string& part : split(package, '.')) {
        at = &at->at_or_add(part);
        if (!at->is(Kind::kMap)) {
          at->kind = Kind::kMap;
          at->place = body.place;
        }
      }
    merge_conf(*at, body);
  }

  std::filesystem::path folder_;
  ConfProblems& problems_;
  Composition composed_;
  std::map<std::string, GroupChoice> chosen_;
  std::vector<DefaultsItem> appended_;
  std::vector<std::string> seen_groups_;
  std::vector<std::string> absent_;  // packages of files that are missing or no mapping
};

}  // namespace

Composition compose(const std::filesystem::path& primary, const std::vector<std::string>& overrides,
                    ConfProblems& problems) {
  return Composer(primary, problems).run(primary, overrides);
}

}  // namespace trireme
