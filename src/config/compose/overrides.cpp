#include "conf_parts.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace trireme {

namespace {

bool is_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_./-@").find(c) != std::string_view::npos;
  });
}

/// The maps on the way to the last part of `key`, made where `make`; null with a problem where there is none.
ConfNode* parent_of(ConfNode& root, const ConfOverride& given, bool make, ConfProblems& problems) {
  const std::vector<std::string> parts = split(given.key, '.');
  ConfNode* at = &root;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    ConfNode* next = at->find(parts[i]);
    if (next == nullptr || !next->is(ConfNode::Kind::kMap)) {
      if (make && (next == nullptr || next->is(ConfNode::Kind::kNull))) {
        next = &at->at_or_add(parts[i]);
        if (!next->is(ConfNode::Kind::kMap)) {
          next->kind = ConfNode::Kind::kMap;
          next->place = given.place;
        }
      } else {
        const std::string shown = join({parts.begin(), parts.begin() + static_cast<long>(i) + 1}, ".");
        problems.add(given.place, next == nullptr
                                      ? fmt::format("there is no '{}'.{}", shown, did_you_mean(parts[i], at->keys()))
                                      : fmt::format("'{}' is no section but {}", shown, next->str()));
        return nullptr;
      }
    }
    at = next;
  }
  return at;
}

}  // namespace

std::vector<ConfOverride> parse_overrides(const std::vector<std::string>& overrides, ConfProblems& problems) {
  std::vector<ConfOverride> all;
  for (const std::string& text : overrides) {
    ConfOverride one;
    one.place.source = std::make_shared<const std::string>(text);
    std::string_view rest = text;
    if (rest.starts_with("++")) {
      one.kind = ConfOverride::Kind::kForce;
      rest.remove_prefix(2);
    } else if (rest.starts_with("+")) {
      one.kind = ConfOverride::Kind::kAdd;
      rest.remove_prefix(1);
    } else if (rest.starts_with("~")) {
      one.kind = ConfOverride::Kind::kDelete;
      rest.remove_prefix(1);
    }
    const size_t equals = rest.find('=');
    one.key = std::string(rest.substr(0, equals));
    while (one.key.ends_with(' ')) one.key.pop_back();
    if (!is_key(one.key) || is_too_deep(one.key)) {
      problems.add(one.place, is_too_deep(one.key) ? "more than 1000 parts" : fmt::format("'{}' is no key", one.key));
      continue;
    }
    if (equals == std::string_view::npos && one.kind != ConfOverride::Kind::kDelete) {
      problems.add(one.place, "has no '=': write key=value, +key=value for a new key, ~key to delete one");
      continue;
    }
    if (const size_t at = one.key.find('@'); at != std::string::npos) {
      one.package = one.key.substr(at + 1);
      one.key.resize(at);
    }
    if (equals != std::string_view::npos) {
      try {
        one.value = parse_element(rest.substr(equals + 1), one.place);
      } catch (const ElementError& error) {
        problems.add(one.place, error.text);
        continue;
      }
    }
    all.push_back(std::move(one));
  }
  return all;
}

void merge_conf(ConfNode& into, const ConfNode& from) {
  if (!into.is(ConfNode::Kind::kMap) || !from.is(ConfNode::Kind::kMap)) {
    into = from;
    return;
  }
  for (const ConfEntry& entry : from.entries) {
    if (ConfNode* known = into.find(entry.key))
      merge_conf(*known, entry.value);
    else
      into.entries.push_back(entry);
  }
}

void apply_override(ConfNode& root, const ConfOverride& given, ConfProblems& problems) {
  using Kind = ConfOverride::Kind;
  const bool adds = given.kind == Kind::kAdd || given.kind == Kind::kForce;
  ConfNode* parent = parent_of(root, given, adds, problems);
  if (parent == nullptr) return;
  const std::string name = given.key.substr(given.key.rfind('.') + 1);
  ConfNode* known = parent->find(name);
  if (given.kind == Kind::kDelete) {
    if (known == nullptr)
      problems.add(given.place,
                   fmt::format("there is no '{}' to delete.{}", given.key, did_you_mean(name, parent->keys())));
    else if (given.value && given.value->str() != known->str())
      problems.add(given.place, fmt::format("'{}' is {}, not {}", given.key, known->str(), given.value->str()));
    else
      parent->erase(name);
    return;
  }
  if (known == nullptr && !adds) {
    const std::string hint = did_you_mean(name, parent->keys());
    problems.add(given.place,
                 fmt::format("there is no '{}'.{} A new key is written +{}", given.key, hint, *given.place.source));
    return;
  }
  const bool is_container = given.value->is(ConfNode::Kind::kMap) || given.value->is(ConfNode::Kind::kList);
  if (given.kind == Kind::kAdd && known != nullptr && !known->is(ConfNode::Kind::kNull) && !is_container) {
    problems.add(given.place, fmt::format("'{0}' is there already, with {1}: leave the + out to change it", given.key,
                                          known->str()));
    return;
  }
  ConfNode& target = parent->at_or_add(name);
  if (known == nullptr) parent->entries.back().place = given.place;
  merge_conf(target, *given.value);
}

void apply_overrides(ConfNode& root, const std::vector<std::string>& overrides, ConfProblems& problems) {
  for (const ConfOverride& one : parse_overrides(overrides, problems)) apply_override(root, one, problems);
}

}  // namespace trireme
