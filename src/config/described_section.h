#pragma once
// For the table of keys (description.cpp): how a member of a section's struct is read and written as a Value.

#include "description.h"

#include "trireme/base/text.h"

#include <algorithm>
#include <charconv>

namespace trireme::described {

struct OneShape {
  static constexpr bool kOptional = false, kList = false, kMap = false;
};
template <class Member>
struct Shape : OneShape {
  using Item = Member;
};
template <class Member>
struct Shape<std::optional<Member>> : OneShape {
  using Item = Member;
  static constexpr bool kOptional = true;
};
template <class Member>
struct Shape<std::vector<Member>> : OneShape {
  using Item = Member;
  static constexpr bool kList = true;
};
template <>
struct Shape<ModuleSelector> : OneShape {
  using Item = std::string;
  static constexpr bool kList = true;
};
template <class Member>
struct Shape<std::vector<std::pair<std::string, Member>>> : OneShape {
  using Item = Member;
  static constexpr bool kMap = true;
};

template <class Item>
constexpr Type type_of() {
  if constexpr (std::is_same_v<Item, bool>) return Type::kBool;
  if constexpr (std::is_same_v<Item, int64_t> || std::is_same_v<Item, std::vector<int64_t>>) return Type::kInteger;
  if constexpr (std::is_same_v<Item, double>) return Type::kNumber;
  if constexpr (std::is_same_v<Item, ParallelSection::Recompute>) return Type::kShare;
  return Type::kText;  // texts and choices
}

inline const char* word_for(const Key& key, int64_t value) {
  const auto found =
      std::find_if(key.choices.begin(), key.choices.end(), [&](const KeyChoice& c) { return c.value == value; });
  return found == key.choices.end() ? nullptr : found->word;
}

template <class Number>
Number number_from(const std::string& text) {
  Number number{};
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

inline std::string text_of(const Key&, const std::string& item) { return item; }
inline std::string text_of(const Key&, bool item) { return item ? "true" : "false"; }
inline std::string text_of(const Key&, double item) { return format_exact(item); }
inline std::string text_of(const Key& key, int64_t item) {
  const char* word = word_for(key, item);
  return word == nullptr ? std::to_string(item) : word;
}
inline std::string text_of(const Key&, const std::vector<int64_t>& items) {
  std::vector<std::string> texts;
  for (const int64_t item : items) texts.push_back(std::to_string(item));
  return "[" + join(texts, ", ") + "]";
}
inline std::string text_of(const Key& key, const ParallelSection::Recompute& item) {
  return item.word == item.kShare ? item.share : word_for(key, item.word);
}
template <class Choice>
  requires std::is_enum_v<Choice>
std::string text_of(const Key& key, Choice item) {
  return word_for(key, static_cast<int64_t>(item));
}

inline void take(const Key&, std::string& item, const std::string& text) { item = text; }
inline void take(const Key&, bool& item, const std::string& text) { item = text == "true"; }
inline void take(const Key&, double& item, const std::string& text) { item = number_from<double>(text); }
inline void take(const Key& key, int64_t& item, const std::string& text) {
  const KeyChoice* choice = key.choice(text);
  item = choice == nullptr ? number_from<int64_t>(text) : choice->value;
}
inline void take(const Key&, std::vector<int64_t>& items, const std::string& text) {
  items.clear();
  for (const std::string& item : split(text.substr(1, text.size() - 2), ','))
    if (const size_t begin = item.find_first_not_of(' '); begin != std::string::npos)
      items.push_back(number_from<int64_t>(item.substr(begin)));
}
inline void take(const Key& key, ParallelSection::Recompute& item, const std::string& text) {
  using Recompute = ParallelSection::Recompute;
  const KeyChoice* choice = key.choice(text);
  item = choice == nullptr ? Recompute{Recompute::kShare, text} : Recompute{Recompute::Word(choice->value)};
}
template <class Item>
  requires std::is_enum_v<Item>
void take(const Key& key, Item& item, const std::string& text) {
  item = static_cast<Item>(key.choice(text)->value);
}

template <class Member>
Value get_member(const Key& key, const void* at) {
  const Member& member = *static_cast<const Member*>(at);
  Value value;
  if constexpr (std::is_same_v<Member, ModuleSelector>) {
    value = member.pattern.empty() ? member.names : Value{"", member.pattern};  // no name is empty
  } else if constexpr (Shape<Member>::kMap) {
    for (const auto& [name, item] : member) value.insert(value.end(), {name, text_of(key, item)});
  } else if constexpr (Shape<Member>::kList) {
    for (const auto& item : member) value.push_back(text_of(key, item));
  } else if constexpr (Shape<Member>::kOptional) {
    if (member)
      value.push_back(text_of(key, *member));
    else if (*key.unset != '\0')
      value.emplace_back(key.unset);
  } else {
    value.push_back(text_of(key, member));
  }
  return value;
}

template <class Member>
void set_member(const Key& key, void* at, const Value& value) {
  Member& member = *static_cast<Member*>(at);
  if constexpr (std::is_same_v<Member, ModuleSelector>) {
    member = is_pattern(value) ? ModuleSelector{{}, value.back()} : ModuleSelector{value};
  } else if constexpr (Shape<Member>::kMap) {
    member.resize(value.size() / 2);
    for (size_t i = 0; i < member.size(); ++i) {
      member[i].first = value[2 * i];
      take(key, member[i].second, value[2 * i + 1]);
    }
  } else if constexpr (Shape<Member>::kList) {
    member.resize(value.size());
    for (size_t i = 0; i < value.size(); ++i) take(key, member[i], value[i]);
  } else if constexpr (Shape<Member>::kOptional) {
    member.reset();
    if (!value.empty() && value.front() != key.unset) take(key, member.emplace(), value.front());
  } else {
    take(key, member, value.front());
  }
}

/// A section of the table while its keys are written down.
template <class S>
struct SectionKeys {
  Section section;

  SectionKeys(S Config::* member, const char* name, const char* help, Section about = {}) : section(std::move(about)) {
    section.name = name, section.help = help;
    section.at = [member](Config& config) -> void* { return &(config.*member); };
  }
  SectionKeys(std::optional<S> Config::* member, const char* name, const char* help, Section about = {})
      : section(std::move(about)) {
    section.name = name, section.help = help;
    section.optional = true;
    section.at = [member](Config& config) -> void* { return config.*member ? &*(config.*member) : nullptr; };
    section.exist = [member](Config& config, bool exists) {
      if (exists)
        (config.*member).emplace();
      else
        (config.*member).reset();
    };
  }

  /// `Owner`: S or its base.
  template <class Member, class Owner>
  void key(const char* name, Member Owner::* member, const char* help, Key about = {}) {
    about.name = name, about.help = help;
    using Item = typename Shape<Member>::Item;
    const S sample{};
    about.offset =
        static_cast<size_t>(reinterpret_cast<const char*>(&(sample.*member)) - reinterpret_cast<const char*>(&sample));
    about.type = type_of<Item>();
    about.member = &typeid(Item);
    about.list = Shape<Member>::kList;
    about.map = Shape<Member>::kMap;
    about.lists = std::is_same_v<Item, std::vector<int64_t>>;
    about.selector = std::is_same_v<Member, ModuleSelector>;
    about.optional = Shape<Member>::kOptional && *about.unset == '\0';
    about.get = get_member<Member>;
    about.set = set_member<Member>;
    if ((about.data & kRowData) == 0)  // programs that read no such files lack the key
      about.feature = (about.data & kDocumentData) != 0 ? Feature::kDocumentStreams : Feature::kMegatronData;
    section.keys.push_back(std::move(about));
  }
};

}  // namespace trireme::described
