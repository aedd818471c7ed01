#include "data/chat/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::jinja {
namespace {

/// Characters that repr() escapes: controls, separators and spaces other than ' ', surrogates, private use,
/// noncharacters. Unassigned code points, which Python escapes too, are printed.
bool is_printable(char32_t c) {
  if (c < 0x20 || (c >= 0x7F && c < 0xA1) || c == 0xAD) return false;
  if (c != ' ' && is_python_space(c)) return false;
  if ((c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F)) return false;
  return !(c >= 0xE000 && c <= 0xF8FF) && c != 0xFEFF && (c & 0xFFFE) != 0xFFFE && c < 0xE0000;
}

/// Lists that hold one value many times have texts that are exponential in their depth.
void check_size(const std::string& text) {
  if (text.size() > kMaxText) throw ValueError{"a text of more than 16 MiB"};
}

std::string text_repr(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  static constexpr std::string_view kPlain = "\n\r\t\\", kEscaped = "nrt\\";
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (const size_t known = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
        known != std::string_view::npos)
      (out += '\\') += kEscaped[known];
    else if (c == static_cast<char32_t>(quote))
      (out += '\\') += quote;
    else if (is_printable(c))
      out += text.substr(begin, at - begin);
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
  }
  return out + quote;
}

std::string json_text(const std::string& text, bool ascii) {
  return nlohmann::json(text).dump(-1, ' ', ascii, nlohmann::json::error_handler_t::replace);
}

void json(std::string& out, const Value& value, const JsonStyle& style, int depth) {
  const auto line = [&](int level) {
    if (!style.has_indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) check_size(out += style.indent);
  };
  const std::string separator =
      style.has_indent && style.item_separator == ", " ? std::string(",") : style.item_separator;
  if (value.is_none()) {
    out += "null";
  } else if (const auto* flag = value.as<bool>()) {
    out += *flag ? "true" : "false";
  } else if (const auto* number = value.as<double>()) {
    out += std::isnan(*number)   ? "NaN"
           : std::isinf(*number) ? (*number < 0 ? "-Infinity" : "Infinity")
                                 : python_number(*number);
  } else if (value.is_integer()) {
    out += fmt::format("{}", value.integer());
  } else if (const auto* text = value.text()) {
    out += json_text(*text, style.ascii);
  } else if (const auto* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += separator;
      line(depth + 1);
      json(out, list->items[i], style, depth + 1);
      check_size(out);
    }
    if (!list->items.empty()) line(depth);
    out += ']';
  } else if (const auto* dict = value.dict()) {
    auto items = dict->items;
    if (style.sort_keys)
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += separator;
      line(depth + 1);
      (out += json_text(items[i].first, style.ascii)) += style.key_separator;
      json(out, items[i].second, style, depth + 1);
      check_size(out);
    }
    if (!items.empty()) line(depth);
    out += '}';
  } else {
    throw ValueError{fmt::format("a value of type {} has no JSON form", value.type_name())};
  }
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items)
    if (name == key) return &value;
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, old] : items)
    if (name == key) {
      old = std::move(value);
      return;
    }
  items.emplace_back(key, std::move(value));
}

Value::Value(List list) {
  for (const Value& each : list.items) list.depth = std::max(list.depth, each.depth() + 1);
  if (list.depth > kMaxDepth) throw ValueError{fmt::format("values nested deeper than {}", kMaxDepth)};
  storage_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& [key, each] : dict.items) dict.depth = std::max(dict.depth, each.depth() + 1);
  if (dict.depth > kMaxDepth) throw ValueError{fmt::format("values nested deeper than {}", kMaxDepth)};
  storage_ = std::make_shared<const Dict>(std::move(dict));
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  if (dict() != nullptr) return dict()->depth;
  if (function() != nullptr) return function()->depth;
  if (iterable() != nullptr) return iterable()->items->depth;
  return loop() != nullptr ? loop()->items->depth : 0;
}

Value Value::undefined(std::string name) {
  Value value;
  value.storage_ = Undefined{std::move(name)};
  return value;
}

Value Value::iterable(const char* type, std::vector<Value> items) {
  const Value list = Value::list(std::move(items));
  Value value;
  value.storage_ = std::make_shared<Iterable>(Iterable{type, *list.as<std::shared_ptr<const List>>()});
  return value;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case nlohmann::json::value_t::boolean: return Value(json.get<bool>());
    case nlohmann::json::value_t::number_integer: return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) throw ValueError{fmt::format("the number {} is too large", json.dump())};
      return Value(json.get<int64_t>());
    case nlohmann::json::value_t::number_float: return Value(json.get<double>());
    case nlohmann::json::value_t::string: return Value(json.get<std::string>());
    case nlohmann::json::value_t::array: {
      List list;
      for (const auto& item : json) list.items.push_back(from_json(item));
      return Value(std::move(list));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.items.emplace_back(key, from_json(item));
      return Value(std::move(dict));
    }
    default: return Value();
  }
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_integer()) return integer() != 0;
  if (const auto* number = as<double>()) return *number != 0;
  if (const auto* found = text()) return !found->empty();
  if (const auto* found = list()) return !found->items.empty();
  if (const auto* found = dict()) return !found->items.empty();
  if (const auto* found = as<Markup>()) return !found->text.empty();
  if (const auto* found = iterable()) return found->is_generator() || !found->items->items.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (as<bool>() != nullptr) return "bool";
  if (as<int64_t>() != nullptr) return "int";
  if (as<double>() != nullptr) return "float";
  if (text() != nullptr) return "str";
  if (const auto* found = list()) return found->is_tuple ? "tuple" : "list";
  if (dict() != nullptr) return "dict";
  if (iterable() != nullptr) return iterable()->type;
  if (as<Markup>() != nullptr) return "Markup (not supported here)";
  if (names() != nullptr) return "Namespace";
  return loop() != nullptr ? "LoopContext" : "function";
}

int64_t work_of(const Value& value) {
  const size_t items = value.list() != nullptr       ? value.list()->items.size()
                       : value.dict() != nullptr     ? value.dict()->items.size()
                       : value.iterable() != nullptr ? value.iterable()->items->items.size()
                                                     : 0;
  return static_cast<int64_t>(value.text() != nullptr ? value.text()->size() / 256 : items / 4);
}

int64_t search_work(const Value& a, const Value& b) {
  if (a.text() == nullptr || b.text() == nullptr) return 0;
  const auto [least, most] = std::minmax({a.text()->size(), b.text()->size()});
  return static_cast<int64_t>(least * (most - least + 1) >> 16);
}

int64_t search_work(const Value& a, const Arguments& arguments) {
  int64_t work = 0;
  for (const Value& each : arguments.positional) work += search_work(a, each);
  for (const auto& [name, each] : arguments.named) work += search_work(a, each);
  return work;
}

/// As equal(); `left`: how many comparisons it may take.
static bool equal(const Value& a, const Value& b, int64_t& left) {
  if ((left -= 1 + work_of(a)) < 0) throw ValueError{"comparing values takes too many steps (5 million)"};
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.real() == b.real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  for (const Value* each : {&a, &b})
    if (each->as<Markup>() != nullptr || (each->iterable() != nullptr && !each->iterable()->is_generator()))
      throw ValueError{fmt::format("comparing a {} is not supported", each->type_name())};
  if (a.list() != nullptr && a.list() == b.list()) return true;
  if (a.dict() != nullptr && a.dict() == b.dict()) return true;
  if (a.list() != nullptr && b.list() != nullptr)
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(), b.list()->items.end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, left); });
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::all_of(a.dict()->items.begin(), a.dict()->items.end(), [&](const auto& item) {
      const Value* other = b.dict()->find(item.first);
      return other != nullptr && equal(item.second, *other, left);
    });
  }
  if (a.names() != nullptr || a.function() != nullptr || a.loop() != nullptr || a.iterable() != nullptr)
    return a.names() == b.names() && a.function() == b.function() && a.loop() == b.loop() &&
           a.iterable() == b.iterable();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool equal(const Value& a, const Value& b) {
  int64_t left = kMaxComparisons;
  return equal(a, b, left);
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.integer() < b.integer() : a.real() < b.real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
  if (a.list() != nullptr && b.list() != nullptr && a.list()->is_tuple == b.list()->is_tuple) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    return x.size() < y.size();
  }
  throw ValueError{fmt::format("a {} and a {} have no order", a.type_name(), b.type_name())};
}

std::string to_repr(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (const auto* text = value.text()) return text_repr(*text);
  if (const auto* list = value.list()) {
    std::string out(1, list->is_tuple ? '(' : '[');
    for (size_t i = 0; i < list->items.size(); ++i) check_size((out += i == 0 ? "" : ", ") += to_repr(list->items[i]));
    if (list->is_tuple && list->items.size() == 1) out += ',';
    return out + (list->is_tuple ? ')' : ']');
  }
  if (const auto* dict = value.dict()) {
    std::string out = "{";
    for (size_t i = 0; i < dict->items.size(); ++i)
      check_size((((out += i == 0 ? "" : ", ") += text_repr(dict->items[i].first)) += ": ") +=
                 to_repr(dict->items[i].second));
    return out + '}';
  }
  if (const auto* view = value.iterable(); view != nullptr && !view->is_generator()) {
    std::string out = view->type + "([";
    for (size_t i = 0; i < view->items->items.size(); ++i)
      check_size((out += i == 0 ? "" : ", ") += to_repr(view->items->items[i]));
    return out + "])";
  }
  if (value.is_none()) return "None";
  if (const auto* flag = value.as<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.as<int64_t>()) return fmt::format("{}", *number);
  if (const auto* number = value.as<double>()) return python_number(*number);
  throw ValueError{fmt::format("the text of a {} is not supported", value.type_name())};
}

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (const auto* text = value.text()) return *text;
  return to_repr(value);
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  json(out, value, style, 0);
  return out;
}

std::shared_ptr<const List> items_of(const Value& value) {
  if (const auto* list = value.as<std::shared_ptr<const List>>()) return *list;
  if (Iterable* found = value.iterable()) {
    if (found->is_generator() && std::exchange(found->used, true))
      throw ValueError{"reading what map, select or another generator gives for a second time is not supported"};
    return found->items;
  }
  List items;
  if (const auto* text = value.text()) {
    for (size_t at = 0; at < text->size();) {
      const size_t begin = at;
      next_character(*text, at);
      items.items.emplace_back(text->substr(begin, at - begin));
    }
  } else if (const auto* dict = value.dict()) {
    for (const auto& item : dict->items) items.items.emplace_back(item.first);
  } else if (!value.is_undefined()) {
    throw ValueError{fmt::format("a value of type {} cannot be iterated over", value.type_name())};
  }
  return std::make_shared<const List>(std::move(items));
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_character(text, at);
  return at;
}

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    size_t next = at;
    if (!is_python_space(next_character(text, next))) break;
    at = next;
  }
  return text.substr(at);
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const size_t begin = character_begin(text, text.size());
    size_t at = begin;
    if (!is_python_space(next_character(text, at))) break;
    text = text.substr(0, begin);
  }
  return text;
}

}  // namespace trireme::jinja
