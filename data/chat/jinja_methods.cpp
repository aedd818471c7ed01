// Methods of Python's str, list and dict.
#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <unordered_set>

namespace trireme::jinja {
namespace {

using Bound = std::vector<const Value*>;

/// Letters beyond ASCII change their case by Unicode's rules, which are not here: refused instead of left as they are.
std::string with_case(std::string_view text, const char* what, int (*change)(int)) {
  std::string result(text);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) >= 0x80)
      throw ValueError{fmt::format("{} of text beyond ASCII is not supported", what)};
    c = static_cast<char>(change(static_cast<unsigned char>(c)));
  }
  return result;
}

std::vector<Value> split(std::string_view text, const Value* separator, int64_t most, bool from_right) {
  std::vector<std::string> parts;
  const bool limited = most >= 0;
  const auto full = [&] { return limited && static_cast<int64_t>(parts.size()) >= most; };
  if (separator == nullptr || separator->is_none()) {
    const auto space_at = [&](std::string_view rest) { return strip_left(rest).size() < rest.size(); };
    std::string_view rest = from_right ? strip_right(text) : strip_left(text);
    while (!rest.empty() && !full()) {
      size_t at = 0, begin = rest.size();
      if (!from_right) {
        while (at < rest.size() && !space_at(rest.substr(at))) at += byte_offset(rest.substr(at), 1);
        parts.emplace_back(rest.substr(0, at));
        rest = strip_left(rest.substr(at));
      } else {
        while (begin > 0 && strip_right(rest.substr(0, begin)).size() == begin) begin = character_begin(rest, begin);
        parts.emplace_back(rest.substr(begin));
        rest = strip_right(rest.substr(0, begin));
      }
    }
    if (!rest.empty()) parts.emplace_back(from_right ? strip_right(rest) : limited ? rest : strip_right(rest));
  } else {
    const std::string& by = text_of("split()", *separator);
    if (by.empty()) throw ValueError{"split() by an empty text"};
    std::string_view rest = text;
    for (;;) {
      const size_t found = full() ? std::string_view::npos : from_right ? rest.rfind(by) : rest.find(by);
      if (found == std::string_view::npos) break;
      parts.emplace_back(from_right ? rest.substr(found + by.size()) : rest.substr(0, found));
      rest = from_right ? rest.substr(0, found) : rest.substr(found + by.size());
    }
    parts.emplace_back(rest);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  std::vector<Value> values;
  for (std::string& part : parts) values.emplace_back(std::move(part));
  return values;
}

bool has_end(const std::string& what, std::string_view text, const Value& ends, bool at_start) {
  const auto one = [&](const Value& end) {
    const std::string& each = text_of(what, end);
    return at_start ? text.starts_with(each) : text.ends_with(each);
  };
  if (ends.list() != nullptr && ends.list()->is_tuple)
    return std::any_of(ends.list()->items.begin(), ends.list()->items.end(), one);
  return one(ends);
}

/// The number of the character at byte `offset`; -1 for npos.
int64_t character_number(std::string_view text, size_t offset) {
  return offset == std::string_view::npos ? -1 : static_cast<int64_t>(character_count(text.substr(0, offset)));
}

int64_t occurrences(std::string_view text, std::string_view part) {
  if (part.empty()) return static_cast<int64_t>(character_count(text)) + 1;
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

std::vector<Value> lines_of(std::string_view text, bool keep) {
  std::vector<Value> lines;
  for (size_t at = 0, begin = 0; at < text.size(); begin = at) {
    size_t end = at;
    while (end < text.size()) {
      // \n \v \f \r and the separators U+1C to U+1E, U+85, U+2028, U+2029
      const std::string_view rest = text.substr(end);
      const auto c = static_cast<unsigned char>(rest[0]);
      const size_t length = rest.starts_with("\r\n") || rest.starts_with("\xC2\x85")               ? 2
                            : rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9") ? 3
                            : (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E)                 ? 1
                                                                                                   : 0;
      if (length > 0) {
        at = end + length;
        break;
      }
      at = ++end;
    }
    lines.emplace_back(text.substr(begin, (keep ? at : end) - begin));
  }
  return lines;
}

Value text_method(const std::string& text, const std::string& name, const Arguments& arguments, Budget& budget) {
  const std::string what = name + "()";
  budget.text(text.size());
  const auto none = [&] { bind(what, arguments, {}); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound bound = bind(what, arguments, {"chars"});
    return Value(strip(text, bound[0], name != "rstrip", name != "lstrip"));
  }
  if (name == "startswith" || name == "endswith")
    return Value(has_end(what, text, *bind(what, arguments, {"prefix"}, 1)[0], name == "startswith"));
  if (name == "split" || name == "rsplit") {
    const Bound bound = bind(what, arguments, {"sep", "maxsplit"});
    auto parts = split(text, bound[0], bound[1] == nullptr ? -1 : integer_of(what, *bound[1]), name == "rsplit");
    budget.list(parts.size());
    return Value::list(std::move(parts));
  }
  if (name == "splitlines") {
    const Bound bound = bind(what, arguments, {"keepends"});
    auto lines = lines_of(text, bound[0] != nullptr && bound[0]->truth());
    budget.list(lines.size());
    return Value::list(std::move(lines));
  }
  if (name == "replace") {
    const Bound bound = bind(what, arguments, {"old", "new", "count"}, 2);
    const int64_t count = bound[2] == nullptr ? -1 : integer_of(what, *bound[2]);
    return Value(replace(text, text_of(what, *bound[0]), text_of(what, *bound[1]), count, budget));
  }
  if (name == "join") {
    const auto items = items_of(*bind(what, arguments, {"iterable"}, 1)[0]);
    std::string result;
    for (size_t i = 0; i < items->items.size(); ++i) {
      if (i > 0) result += text;
      result += text_of(what, items->items[i]);
      if (result.size() > kMaxText) break;
    }
    budget.text(result.size());
    return Value(std::move(result));
  }
  if (name == "find" || name == "rfind" || name == "index") {
    const std::string& part = text_of(what, *bind(what, arguments, {"sub"}, 1)[0]);
    const int64_t at = character_number(text, name == "rfind" ? text.rfind(part) : text.find(part));
    if (at < 0 && name == "index") throw ValueError{"index(): the text is not there"};
    return Value(at);
  }
  if (name == "count") return Value(occurrences(text, text_of(what, *bind(what, arguments, {"sub"}, 1)[0])));
  if (name == "removeprefix" || name == "removesuffix") {
    const bool prefix = name == "removeprefix";
    const std::string& part = text_of(what, *bind(what, arguments, {"part"}, 1)[0]);
    const bool there = prefix ? text.starts_with(part) : text.ends_with(part);
    if (!there) return Value(text);
    return Value(prefix ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "partition" || name == "rpartition") {
    const std::string& by = text_of(what, *bind(what, arguments, {"sep"}, 1)[0]);
    if (by.empty()) throw ValueError{what + " by an empty text"};
    const size_t at = name == "partition" ? text.find(by) : text.rfind(by);
    if (at == std::string::npos)
      return name == "partition" ? Value::tuple({Value(text), Value(""), Value("")})
                                 : Value::tuple({Value(""), Value(""), Value(text)});
    return Value::tuple({Value(text.substr(0, at)), Value(by), Value(text.substr(at + by.size()))});
  }
  none();
  if (name == "upper") return Value(upper(text));
  if (name == "lower") return Value(lower(text));
  if (name == "title") {
    std::string result = with_case(text, "title()", std::tolower);
    for (size_t i = 0; i < result.size(); ++i)
      if (i == 0 || std::isalpha(static_cast<unsigned char>(result[i - 1])) == 0)
        result[i] = static_cast<char>(std::toupper(static_cast<unsigned char>(result[i])));
    return Value(std::move(result));
  }
  if (name == "capitalize") return Value(capitalize(text));
  if (name == "isspace") return Value(!text.empty() && strip_left(text).empty());
  // isdigit
  return Value(!text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    if (static_cast<unsigned char>(c) >= 0x80) throw ValueError{"isdigit() of text beyond ASCII is not supported"};
    return is_digit(c);
  }));
}

Value dict_method(const Dict& dict, const std::string& name, const Arguments& arguments, Budget& budget) {
  const std::string what = name + "()";
  if (name == "get") {
    const Bound bound = bind(what, arguments, {"key", "default"}, 1);
    const Value* found = bound[0]->text() != nullptr ? dict.find(*bound[0]->text()) : nullptr;
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value();
  }
  bind(what, arguments, {});
  if (name == "copy") return Value(dict);
  budget.list(dict.items.size() * 3);
  std::vector<Value> result;
  for (const auto& [key, value] : dict.items) {
    if (name == "keys")
      result.emplace_back(key);
    else if (name == "values")
      result.push_back(value);
    else
      result.push_back(Value::tuple({Value(key), value}));
  }
  return Value::iterable(("dict_" + name).c_str(), std::move(result));
}

Value list_method(const List& list, const std::string& name, const Arguments& arguments) {
  const Value& wanted = *bind(name + "()", arguments, {"value"}, 1)[0];
  if (name == "count")
    return Value(static_cast<int64_t>(
        std::count_if(list.items.begin(), list.items.end(), [&](const Value& each) { return equal(each, wanted); })));
  const auto found =
      std::find_if(list.items.begin(), list.items.end(), [&](const Value& each) { return equal(each, wanted); });
  if (found == list.items.end()) throw ValueError{"index(): the value is not there"};
  return Value(static_cast<int64_t>(found - list.items.begin()));
}

template <size_t N>
bool is_one_of(const std::string& name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 24> kTextMethods = {
    "strip",     "lstrip",     "rstrip", "startswith", "endswith", "split",      "rsplit",       "splitlines",
    "replace",   "join",       "find",   "rfind",      "index",    "count",      "removeprefix", "removesuffix",
    "partition", "rpartition", "upper",  "lower",      "title",    "capitalize", "isspace",      "isdigit"};
constexpr std::array<std::string_view, 23> kOtherTextMethods = {
    "casefold", "center",    "encode",       "expandtabs", "format",    "format_map",  "isalnum", "isalpha",
    "isascii",  "isdecimal", "isidentifier", "islower",    "isnumeric", "isprintable", "istitle", "isupper",
    "ljust",    "maketrans", "rindex",       "rjust",      "swapcase",  "translate",   "zfill"};
constexpr std::array<std::string_view, 5> kDictMethods = {"get", "items", "keys", "values", "copy"};
constexpr std::array<std::string_view, 6> kOtherDictMethods = {"clear",   "fromkeys",   "pop",
                                                               "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 2> kListMethods = {"index", "count"};
constexpr std::array<std::string_view, 9> kOtherListMethods = {"append", "clear",  "copy",    "extend", "insert",
                                                               "pop",    "remove", "reverse", "sort"};

}  // namespace

/// A method of `object`; undefined if Python has none of this name.
Value method(const Value& object, const std::string& name, Budget& budget) {
  const auto make = [&](auto call) {
    return Value(std::make_shared<Function>(Function{name + "()", std::move(call), object.depth()}));
  };
  const bool other = (object.text() != nullptr && is_one_of(name, kOtherTextMethods)) ||
                     (object.dict() != nullptr && is_one_of(name, kOtherDictMethods)) ||
                     (object.list() != nullptr && is_one_of(name, kOtherListMethods));
  if (other) throw ValueError{fmt::format("the method {}() of a {} is not supported", name, object.type_name())};
  if (object.text() != nullptr && is_one_of(name, kTextMethods))
    return make([object, name, &budget](const Arguments& arguments) {
      if (!name.ends_with("with") && !name.starts_with("remove")) budget.step(search_work(object, arguments));
      return text_method(*object.text(), name, arguments, budget);
    });
  if (object.dict() != nullptr && is_one_of(name, kDictMethods))
    return make([object, name, &budget](const Arguments& arguments) {
      return dict_method(*object.dict(), name, arguments, budget);
    });
  if (object.list() != nullptr && is_one_of(name, kListMethods))
    return make([object, name](const Arguments& arguments) { return list_method(*object.list(), name, arguments); });
  return Value::undefined(name);
}

std::string strip(std::string_view text, const Value* characters, bool left, bool right) {
  if (characters == nullptr || characters->is_none()) {
    if (left) text = strip_left(text);
    return std::string(right ? strip_right(text) : text);
  }
  std::unordered_set<std::string_view> set;
  for (std::string_view rest = text_of("strip()", *characters); !rest.empty();) {
    const size_t size = byte_offset(rest, 1);
    set.insert(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  const auto first = [&] { return text.substr(0, byte_offset(text, 1)); };
  const auto last = [&] { return text.substr(character_begin(text, text.size())); };
  while (left && !text.empty() && set.contains(first())) text.remove_prefix(first().size());
  while (right && !text.empty() && set.contains(last())) text.remove_suffix(last().size());
  return std::string(text);
}

std::string upper(std::string_view text) { return with_case(text, "upper", std::toupper); }
std::string lower(std::string_view text) { return with_case(text, "lower", std::tolower); }
std::string capitalize(std::string_view text) {
  std::string result = with_case(text, "capitalize", std::tolower);
  if (!result.empty()) result[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(result[0])));
  return result;
}

/// Jinja's filter: a word begins after white space and after - ( { [ <.
std::string title(std::string_view text) {
  std::string result = with_case(text, "title", std::tolower);
  bool begins = true;
  for (char& c : result) {
    const bool separates =
        std::string_view("-({[<").find(c) != std::string_view::npos || is_python_space(static_cast<unsigned char>(c));
    if (begins && !separates) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    begins = separates;
  }
  return result;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count, Budget& budget) {
  if (count < 0) count = std::numeric_limits<int64_t>::max();
  std::string result;
  const auto put = [&](std::string_view part) {
    if (result.size() + part.size() > kMaxText) budget.text(result.size() + part.size());
    result += part;
  };
  size_t at = 0;
  if (from.empty()) {
    for (; count > 0; --count) {
      put(to);
      if (at >= text.size()) break;
      const size_t length = byte_offset(text.substr(at), 1);
      put(text.substr(at, length));
      at += length;
    }
  } else {
    for (size_t found; count > 0 && (found = text.find(from, at)) != std::string_view::npos; --count) {
      put(text.substr(at, found - at));
      put(to);
      at = found + from.size();
    }
  }
  if (at < text.size()) put(text.substr(at));
  budget.text(result.size());
  return result;
}

}  // namespace trireme::jinja
