// Filters.
#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <unordered_map>

namespace trireme::jinja {
namespace {

using Filter = std::function<Value(const Value&, const Arguments&, Budget&)>;

Value count(size_t number) { return Value(static_cast<int64_t>(number)); }
bool flag(const Value* value) { return value != nullptr && value->truth(); }

/// The attributes of map(attribute=…) and selectattr: "a", "a.b" or a number.
Value member_of(const Value& value, const Value& path, Budget& budget) {
  if (path.is_integer()) return item(value, path, budget);
  Value result = value;
  const std::string& names = text_of("an attribute", path);
  for (size_t at = 0; at <= names.size();) {
    const size_t dot = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, dot - at);
    const auto index = parse_whole<int64_t>(name);
    result = item(result, index ? Value(*index) : Value(name), budget);
    at = dot + 1;
  }
  return result;
}

Value dump(const Value& input, const Arguments& arguments, Budget& budget) {
  const auto bound = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(bound[0]);
  style.sort_keys = flag(bound[3]);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    style.has_indent = true;
    if (bound[1]->text() != nullptr)
      style.indent = *bound[1]->text();
    else
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(integer_of("tojson: indent", *bound[1]), 0, 64)),
                          ' ');
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const List* pair = bound[2]->list();
    if (pair == nullptr || pair->items.size() != 2) throw ValueError{"tojson: separators are two texts"};
    if (style.has_indent) throw ValueError{"tojson with indent and separators is not supported"};
    style.item_separator = text_of("tojson: separators", pair->items[0]);
    style.key_separator = text_of("tojson: separators", pair->items[1]);
  }
  Value result(to_json(input, style));
  budget.text(result.text()->size());
  return result;
}

Value joined(const Value& input, const Arguments& arguments, Budget& budget) {
  const auto bound = bind("join", arguments, {"d", "attribute"});
  const std::string by = bound[0] == nullptr ? "" : budget.written(*bound[0]);
  std::string result;
  bool first = true;
  const auto items = items_of(input);
  for (const Value& each : items->items) {
    if (!std::exchange(first, false)) result += by;
    result += budget.written(bound[1] == nullptr ? each : member_of(each, *bound[1], budget));
    if (result.size() > kMaxText) break;
  }
  budget.text(result.size());
  return Value(std::move(result));
}

/// select, reject, selectattr, rejectattr.
Value chosen(const char* what, const Value& input, const Arguments& arguments, Budget& budget, bool by_member,
             bool keep) {
  if (!arguments.named.empty()) throw ValueError{fmt::format("{} has no named arguments", what)};
  const auto& given = arguments.positional;
  if (by_member && given.empty()) throw ValueError{fmt::format("{} needs an attribute", what)};
  if (!input.truth()) return Value::iterable("generator", {});  // of none as of an empty list
  const size_t test = by_member ? 1 : 0;
  Arguments rest;
  if (given.size() > test + 1)
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(test) + 1, given.end());
  std::vector<Value> result;
  const auto items = items_of(input);
  for (const Value& each : items->items) {
    const Value value = by_member ? member_of(each, given[0], budget) : each;
    budget.step(1 + work_of(value));
    const bool passes = given.size() > test ? apply_test(text_of(what, given[test]), value, rest) : value.truth();
    if (passes == keep) result.push_back(each);
  }
  budget.list(result.size());
  return Value::iterable("generator", std::move(result));
}

Value mapped(const Value& input, const Arguments& arguments, Budget& budget) {
  std::vector<Value> result;
  if (!input.truth()) return Value::iterable("generator", {});
  const auto items = items_of(input);
  if (arguments.positional.empty()) {
    const auto bound = bind("map", arguments, {"attribute", "default"}, 1);
    for (const Value& each : items->items) {
      Value value = member_of(each, *bound[0], budget);
      result.push_back(value.is_undefined() && bound[1] != nullptr ? *bound[1] : std::move(value));
    }
  } else {
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    for (const Value& each : items->items) {
      budget.step();
      result.push_back(apply_filter(text_of("map", arguments.positional[0]), each, rest, budget));
    }
  }
  budget.list(result.size());
  return Value::iterable("generator", std::move(result));
}

/// Sorts as Python does; texts without regard to case unless `sensitive`.
std::vector<Value> sorted(std::vector<Value> items, bool sensitive, bool reverse,
                          const std::function<Value(const Value&)>& key) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& each : items) {
    Value by = key(each);
    if (!sensitive && by.text() != nullptr) by = Value(lower(*by.text()));
    keyed.emplace_back(std::move(by), std::move(each));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  std::vector<Value> result;
  for (auto& [by, each] : keyed) result.push_back(std::move(each));
  return result;
}

Value to_integer(const Value& input, const Arguments& arguments, Budget&) {
  const auto bound = bind("int", arguments, {"default"});
  const Value fallback = bound[0] == nullptr ? Value(int64_t{0}) : *bound[0];
  if (input.is_integer()) return Value(input.integer());
  if (const auto* real = input.as<double>()) {
    if (!std::isfinite(*real)) return fallback;
    if (std::abs(*real) >= 9e18) throw ValueError{"int of a number that is too large"};
    return Value(static_cast<int64_t>(*real));
  }
  if (input.text() == nullptr) return fallback;
  const std::string text = strip(*input.text(), nullptr, true, true);
  if (const auto whole = parse_whole<int64_t>(std::string_view(text).substr(text.starts_with('+') ? 1 : 0)))
    return Value(*whole);
  char* end = nullptr;
  const double real = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || text.find_first_of("xXpP_") != std::string::npos || !std::isfinite(real))
    return fallback;
  if (std::abs(real) >= 9e18) throw ValueError{"int of a number that is too large"};
  return Value(static_cast<int64_t>(real));
}

Value to_real(const Value& input, const Arguments& arguments, Budget&) {
  const auto bound = bind("float", arguments, {"default"});
  const Value fallback = bound[0] == nullptr ? Value(0.0) : *bound[0];
  if (input.is_number()) return Value(input.real());
  if (input.text() == nullptr) return fallback;
  const std::string text = strip(*input.text(), nullptr, true, true);
  char* end = nullptr;
  const double real = std::strtod(text.c_str(), &end);
  return text.empty() || *end != '\0' || text.find_first_of("xXpP") != std::string::npos ? fallback : Value(real);
}

Value indented(const Value& input, const Arguments& arguments, Budget& budget) {
  const auto bound = bind("indent", arguments, {"width", "first", "blank"});
  const std::string by = bound[0] != nullptr && bound[0]->text() != nullptr
                             ? *bound[0]->text()
                             : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                               bound[0] == nullptr ? 4 : integer_of("indent", *bound[0]), 0, 1000)),
                                           ' ');
  const std::string& text = text_of("indent", input);
  std::string result = flag(bound[1]) ? by : "";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0 && (end > at || flag(bound[2]))) result += by;
    result += text.substr(at, end - at + 1);
    at = end + 1;
    if (result.size() > kMaxText) break;
  }
  if (text.ends_with('\n') && flag(bound[2])) result += by;
  if (text.find_first_of("\r\v\f\x1c\x1d\x1e") != std::string::npos)
    throw ValueError{"indent of text with other line ends than \\n is not supported"};
  budget.text(result.size());
  return Value(std::move(result));
}

Value extreme(const char* what, const Value& input, const Arguments& arguments, bool least) {
  const auto bound = bind(what, arguments, {"case_sensitive"});
  const auto items = items_of(input);
  if (items->items.empty()) return Value::undefined("an item of an empty list");
  auto values = sorted(items->items, flag(bound[0]), false, [](const Value& each) { return each; });
  if (least) return values.front();
  const auto first =
      std::find_if(values.begin(), values.end(), [&](const Value& each) { return !less(each, values.back()); });
  return *first;
}

const std::unordered_map<std::string, Filter>& filter_table() {
  const auto none = [](const char* name, auto apply) {
    return [name, apply](const Value& input, const Arguments& arguments, Budget& budget) -> Value {
      bind(name, arguments, {});
      budget.step();
      return Value(apply(input));
    };
  };
  const auto as_text = [](const char* name, auto apply) {
    return [name, apply](const Value& input, const Arguments& arguments, Budget& budget) -> Value {
      bind(name, arguments, {});
      budget.step();
      return Value(apply(budget.written(input)));
    };
  };
  const auto fallback = [](const Value& input, const Arguments& arguments, Budget&) {
    const auto bound = bind("default", arguments, {"default_value", "boolean"});
    const bool replaced = input.is_undefined() || (flag(bound[1]) && !input.truth());
    return !replaced ? input : bound[0] != nullptr ? *bound[0] : Value("");
  };
  const auto length = none("length", [](const Value& input) { return count(length_of(input)); });
  static const std::unordered_map<std::string, Filter> table = {
      {"trim",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         const auto bound = bind("trim", arguments, {"chars"});
         const std::string text = budget.written(input);
         budget.text(text.size());
         return Value(strip(text, bound[0], true, true));
       }},
      {"tojson", dump},
      {"safe",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         bind("safe", arguments, {});
         return Value(Markup{budget.written(input)});
       }},
      {"join", joined},
      {"map", mapped},
      {"default", fallback},
      {"d", fallback},
      {"length", length},
      {"count", length},
      {"int", to_integer},
      {"float", to_real},
      {"indent", indented},
      {"string", as_text("string", [](const std::string& text) { return text; })},
      {"upper", as_text("upper", [](const std::string& text) { return upper(text); })},
      {"lower", as_text("lower", [](const std::string& text) { return lower(text); })},
      {"capitalize", as_text("capitalize", [](const std::string& text) { return capitalize(text); })},
      {"title", as_text("title", [](const std::string& text) { return title(text); })},
      {"list", none("list", [](const Value& input) { return List{items_of(input)->items, false}; })},
      {"first", none("first",
                     [](const Value& input) {
                       const auto items = items_of(input);
                       return items->items.empty() ? Value::undefined("the first item of an empty list")
                                                   : items->items.front();
                     })},
      {"last", none("last",
                    [](const Value& input) {
                      if (input.iterable() != nullptr && input.iterable()->is_generator())
                        throw ValueError{"a generator cannot be read from its end"};
                      const auto items = items_of(input);
                      return items->items.empty() ? Value::undefined("the last item of an empty list")
                                                  : items->items.back();
                    })},
      {"abs", none("abs",
                   [](const Value& input) {
                     if (!input.is_number()) throw ValueError{fmt::format("abs of a {}", input.type_name())};
                     if (!input.is_integer()) return Value(std::abs(input.real()));
                     return input.integer() < 0 ? negative(input) : Value(input.integer());
                   })},
      {"reverse", none("reverse",
                       [](const Value& input) {
                         auto items = items_of(input)->items;
                         std::reverse(items.begin(), items.end());
                         if (input.text() == nullptr) return Value::iterable("generator", std::move(items));
                         std::string text;
                         for (const Value& each : items) text += *each.text();
                         return Value(std::move(text));
                       })},
      {"items", none("items",
                     [](const Value& input) {
                       std::vector<Value> items;
                       if (!input.is_undefined() && input.dict() == nullptr)
                         throw ValueError{fmt::format("items of a {}", input.type_name())};
                       for (size_t i = 0; input.dict() != nullptr && i < input.dict()->items.size(); ++i) {
                         const auto& [key, value] = input.dict()->items[i];
                         items.push_back(Value::tuple({Value(key), value}));
                       }
                       return Value::iterable("generator", std::move(items));
                     })},
      {"replace",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         const auto bound = bind("replace", arguments, {"old", "new", "count"}, 2);
         const int64_t most = bound[2] == nullptr || bound[2]->is_none() ? -1 : integer_of("replace", *bound[2]);
         return Value(
             replace(budget.written(input), budget.written(*bound[0]), budget.written(*bound[1]), most, budget));
       }},
      {"select", [](const Value& i, const Arguments& a, Budget& b) { return chosen("select", i, a, b, false, true); }},
      {"reject", [](const Value& i, const Arguments& a, Budget& b) { return chosen("reject", i, a, b, false, false); }},
      {"selectattr",
       [](const Value& i, const Arguments& a, Budget& b) { return chosen("selectattr", i, a, b, true, true); }},
      {"rejectattr",
       [](const Value& i, const Arguments& a, Budget& b) { return chosen("rejectattr", i, a, b, true, false); }},
      {"min", [](const Value& i, const Arguments& a, Budget&) { return extreme("min", i, a, true); }},
      {"max", [](const Value& i, const Arguments& a, Budget&) { return extreme("max", i, a, false); }},
      {"sort",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         const auto bound = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
         return Value::list(sorted(items_of(input)->items, flag(bound[1]), flag(bound[0]), [&](const Value& each) {
           return bound[2] == nullptr ? each : member_of(each, *bound[2], budget);
         }));
       }},
      {"dictsort",
       [](const Value& input, const Arguments& arguments, Budget&) {
         const auto bound = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
         if (input.dict() == nullptr) throw ValueError{fmt::format("dictsort of a {}", input.type_name())};
         const size_t by = bound[1] != nullptr && to_text(*bound[1]) == "value" ? 1 : 0;
         std::vector<Value> items;
         for (const auto& [key, value] : input.dict()->items) items.push_back(Value::tuple({Value(key), value}));
         return Value::list(sorted(std::move(items), flag(bound[0]), flag(bound[2]),
                                   [&](const Value& each) { return each.list()->items[by]; }));
       }},
      {"unique",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         const auto bound = bind("unique", arguments, {"case_sensitive"});
         std::vector<Value> result, keys;
         const auto items = items_of(input);
         for (const Value& each : items->items) {
           const Value key = !flag(bound[0]) && each.text() != nullptr ? Value(lower(*each.text())) : each;
           for (size_t i = 0; i < keys.size(); ++i) budget.step();
           if (std::any_of(keys.begin(), keys.end(), [&](const Value& known) { return equal(known, key); })) continue;
           keys.push_back(key);
           result.push_back(each);
         }
         return Value::iterable("generator", std::move(result));
       }},
      {"sum",
       [](const Value& input, const Arguments& arguments, Budget& budget) {
         const auto bound = bind("sum", arguments, {"attribute", "start"});
         Value total = bound[1] == nullptr ? Value(int64_t{0}) : *bound[1];
         const bool plain = bound[0] == nullptr || bound[0]->is_none();
         const auto items = items_of(input);
         for (const Value& each : items->items)
           total = arithmetic("+", total, plain ? each : member_of(each, *bound[0], budget), budget);
         return total;
       }},
  };
  return table;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments, Budget& budget) {
  if (input.as<Markup>() != nullptr && name != "safe" && name != "string" && name != "default" && name != "d")
    throw ValueError{fmt::format("the filter '{}' of what the filter 'safe' gives is not supported", name)};
  if (input.as<Markup>() != nullptr && name == "string") return input;
  const auto found = filter_table().find(name);
  if (found == filter_table().end()) throw ValueError{fmt::format("the filter '{}' is not supported", name)};
  const bool goes_through =
      name != "default" && name != "d" &&
      (input.text() != nullptr || (name != "length" && name != "count" && name != "first" && name != "last"));
  if (!goes_through) return found->second(input, arguments, budget);
  budget.step(work_of(input) + search_work(input, arguments));
  return found->second(input, arguments, budget);
}

}  // namespace trireme::jinja
