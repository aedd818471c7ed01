#include "tree_options.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

using Kind = ConfNode::Kind;

KnownKeys known_keys(std::initializer_list<KnownNames> lines) {
  KnownKeys all;
  for (const KnownNames& line : lines)
    for (const std::string& name : split(line.names, ' ')) all[fmt::format("{}.{}", line.section, name)] = line.why;
  return all;
}

bool TreeOptions::is_section(const std::string& name) const {
  const auto next = known_.lower_bound(name + ".");
  return next != known_.end() && next->first.starts_with(name + ".");
}

void TreeOptions::unknown_section(const std::string& name, const std::string& place) {
  if (ignore_unknown_) return draft_.say(name, "ignored: an unknown section");
  std::vector<std::string> sections;
  for (const auto& [key, why] : known_) sections.push_back(key.substr(0, key.rfind('.')));
  draft_.problem(fmt::format("{}: unknown section [{}].{}", place, name, did_you_mean(name, sections)));
}

void TreeOptions::add(const std::string& name, TreeOption option) {
  if (known_.contains(name)) {
    values_[name] = std::move(option);
    return;
  }
  if (ignore_unknown_) return draft_.say(fmt::format("{} = {}", name, option.text), "ignored: an unknown key");
  std::vector<std::string> known;
  for (const auto& [key, why] : known_) known.push_back(key);
  std::string hint = did_you_mean(name, known);
  const std::string last = name.substr(name.rfind('.') + 1);
  for (const std::string& candidate : known)
    if (hint.empty() && candidate.ends_with("." + last)) hint = fmt::format(" Did you mean '{}'?", candidate);
  draft_.problem(fmt::format("{}: unknown key '{}'.{}", option.place, name, hint));
}

bool TreeOptions::given(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() && !found->second.value.is(Kind::kNull);
}

bool TreeOptions::is_fraction(const std::string& name) const {
  const auto found = values_.find(name);
  return found != values_.end() && found->second.value.is(Kind::kNumber);
}

bool TreeOptions::equal(const std::string& name, const std::string& other) const {
  const auto a = values_.find(name), b = values_.find(other);
  return a != values_.end() && b != values_.end() && a->second.text == b->second.text;
}

bool TreeOptions::has_section(const std::string& name) const {
  const auto found = values_.lower_bound(name + ".");
  return found != values_.end() && found->first.starts_with(name + ".");
}

const ConfNode* TreeOptions::find(const std::string& name) {
  TRIREME_CHECK(known_.contains(name), "'", name, "' is not in the table of known keys");
  read_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() || found->second.value.is(Kind::kNull) ? nullptr : &found->second.value;
}

std::string TreeOptions::shown(const std::string& name) const {
  shown_.insert(name);
  const auto found = values_.find(name);
  return found == values_.end() ? name + " (default)" : fmt::format("{} = {}", name, found->second.text);
}

std::string TreeOptions::origin(const std::string& name) const {
  const auto found = values_.find(name);
  return (found == values_.end() ? "" : found->second.place + ": ") + shown(name);
}

void TreeOptions::problem(const std::string& name, const std::string& what) {
  draft_.problem(fmt::format("{}: {}", origin(name), what));
}

std::string TreeOptions::text(const std::string& name, const std::string& otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kText)) return value->text;
  if (value->is(Kind::kInteger)) return std::to_string(value->integer);  // selective_ac_option = 2, precision: 16
  problem(name, "must be a string");
  return otherwise;
}

std::string TreeOptions::word(const std::string& name, const std::string& otherwise,
                              const std::vector<std::string>& words) {
  const std::string value = text(name, otherwise);
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  problem(name, fmt::format("one of {}.{}", join(words, ", "), did_you_mean(value, words)));
  return otherwise;
}

int64_t TreeOptions::integer(const std::string& name, int64_t otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kInteger)) return value->integer;
  problem(name, "must be an integer");
  return otherwise;
}

int64_t TreeOptions::count(const std::string& name, int64_t otherwise, int64_t least) {
  const int64_t value = integer(name, otherwise);
  if (value >= least && value <= 2147483647) return value;
  problem(name, fmt::format("must be from {} to 2147483647", least));
  return std::max<int64_t>(1, least);
}

double TreeOptions::number(const std::string& name, double otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kInteger)) return static_cast<double>(value->integer);
  if (value->is(Kind::kNumber)) return value->number;
  problem(name, "must be a number");
  return otherwise;
}

bool TreeOptions::flag(const std::string& name, bool otherwise) {
  const ConfNode* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is(Kind::kBool)) return value->boolean;
  problem(name, "must be true or false");
  return otherwise;
}

std::vector<std::string> TreeOptions::list(const std::string& name) {
  const ConfNode* value = find(name);
  if (value == nullptr) return {};
  if (value->is(Kind::kText)) return value->text.empty() ? std::vector<std::string>{} : split(value->text, ',');
  std::vector<std::string> items;
  for (const ConfNode& item : value->items) items.push_back(item.str());
  if (value->is(Kind::kList)) return items;
  problem(name, "must be a list of strings");
  return {};
}

void TreeOptions::no_key(const std::string& name, const std::string& why) {
  if (find(name) != nullptr) draft_.say(shown(name), why);
}

void TreeOptions::rest() {
  for (const auto& [name, option] : values_) {
    const std::string& why = known_.at(name);
    if (option.value.is(Kind::kNull)) {
      if (!shown_.contains(name)) draft_.say(shown(name), "not set there");
    } else if (!why.empty())
      draft_.say(shown(name), why);
    else if (!shown_.contains(name))
      draft_.say(shown(name), read_.contains(name) ? "counted in the lines of its section above"
                                                   : "nothing: the option that it belongs to is off");
  }
}

}  // namespace trireme
