#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>

namespace trireme::jinja {

std::vector<const Value*> bind(const std::string& what, const Arguments& arguments,
                               std::initializer_list<const char*> names, size_t required) {
  std::vector<const Value*> result(names.size(), nullptr);
  if (arguments.positional.size() > names.size())
    throw ValueError{
        fmt::format("{} takes at most {} arguments, not {}", what, names.size(), arguments.positional.size())};
  for (size_t i = 0; i < arguments.positional.size(); ++i) result[i] = &arguments.positional[i];
  for (const auto& argument : arguments.named) {
    const auto& [name, value] = argument;
    const auto* const found =
        std::find_if(names.begin(), names.end(), [&argument](const char* each) { return argument.first == each; });
    if (found == names.end())
      throw ValueError{fmt::format("{} has no argument '{}', or none that is supported", what, name)};
    const Value*& place = result[static_cast<size_t>(found - names.begin())];
    if (place != nullptr) throw ValueError{fmt::format("{}: '{}' is given twice", what, name)};
    place = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (result[i] == nullptr) throw ValueError{fmt::format("{} needs the argument '{}'", what, names.begin()[i])};
  return result;
}

const std::string& text_of(const std::string& what, const Value& value) {
  if (value.text() == nullptr)
    throw ValueError{fmt::format("{} needs a text, not a value of type {}", what, value.type_name())};
  return *value.text();
}

int64_t integer_of(const std::string& what, const Value& value) {
  if (!value.is_integer())
    throw ValueError{fmt::format("{} needs an integer, not a value of type {}", what, value.type_name())};
  return value.integer();
}

size_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const auto* text = value.text()) return character_count(*text);
  if (const auto* list = value.list()) return list->items.size();
  if (const auto* dict = value.dict()) return dict->items.size();
  if (const auto* view = value.iterable(); view != nullptr && !view->is_generator()) return view->items->items.size();
  throw ValueError{fmt::format("a value of type {} has no length", value.type_name())};
}

namespace {

[[noreturn]] void fail_undefined(const Value& value) {
  throw ValueError{fmt::format("'{}' is undefined", value.as<Undefined>()->name)};
}

/// The position of Python's index in `size` items; -1 outside of them.
int64_t position(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  return index < 0 || index >= static_cast<int64_t>(size) ? -1 : index;
}

std::string character(std::string_view text, int64_t index) {
  const size_t begin = byte_offset(text, static_cast<size_t>(index));
  return std::string(text.substr(begin, byte_offset(text.substr(begin), 1)));
}

Value loop_member(const Loop& loop, const std::string& name) {
  const auto size = static_cast<int64_t>(loop.items->items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(loop.depth);
  if (name == "depth0") return Value(loop.depth - 1);
  if (name == "previtem")
    return index > 0 ? loop.items->items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items->items[loop.index + 1] : Value::undefined("there is no next item");
  return Value::undefined("loop." + name);
}

}  // namespace

Value method(const Value& object, const std::string& name, Budget& budget);

Value attribute(const Value& object, const std::string& name, Budget& budget) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.as<Markup>() != nullptr)
    throw ValueError{fmt::format("{} of what the filter 'safe' gives is not supported", name)};
  if (object.names() != nullptr) {
    const Value* found = object.names()->members.find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (const auto* loop = object.as<std::shared_ptr<Loop>>()) {
    if (name != "cycle" && name != "changed") return loop_member(**loop, name);
    const bool cycle = name == "cycle";
    return Value(std::make_shared<Function>(
        Function{"loop." + name,
                 [loop = *loop, cycle](const Arguments& arguments) {
                   if (!arguments.named.empty())
                     throw ValueError{"loop.cycle() and loop.changed() have no named arguments"};
                   if (cycle) {
                     if (arguments.positional.empty()) throw ValueError{"loop.cycle() needs an argument"};
                     return arguments.positional[loop->index % arguments.positional.size()];
                   }
                   const bool same =
                       loop->has_changed && std::equal(loop->changed.begin(), loop->changed.end(),
                                                       arguments.positional.begin(), arguments.positional.end(), equal);
                   loop->changed = arguments.positional;
                   loop->has_changed = true;
                   return Value(!same);
                 },
                 (*loop)->items->depth}));
  }
  const Value found = method(object, name, budget);
  if (!found.is_undefined()) return found;
  if (object.dict() != nullptr)
    if (const Value* value = object.dict()->find(name)) return *value;
  return Value::undefined(fmt::format("{} of a {}", name, object.type_name()));
}

Value item(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.as<Markup>() != nullptr) throw ValueError{"an item of what the filter 'safe' gives is not supported"};
  if (object.dict() != nullptr && index.text() != nullptr)
    if (const Value* value = object.dict()->find(*index.text())) return *value;
  if (index.is_integer() && object.list() != nullptr) {
    const int64_t at = position(index.integer(), object.list()->items.size());
    return at < 0 ? Value::undefined(fmt::format("item {} of a list", index.integer()))
                  : object.list()->items[static_cast<size_t>(at)];
  }
  if (index.is_integer() && object.text() != nullptr) {
    const int64_t at = position(index.integer(), character_count(*object.text()));
    return at < 0 ? Value::undefined(fmt::format("character {} of a text", index.integer()))
                  : Value(character(*object.text(), at));
  }
  if (index.text() != nullptr) return attribute(object, *index.text(), budget);
  return Value::undefined(fmt::format("an item of a {}", object.type_name()));
}

Value slice(const Value& object, const Value* start, const Value* stop, const Value* step) {
  if (object.is_undefined()) fail_undefined(object);
  if (object.as<Markup>() != nullptr) throw ValueError{"a slice of what the filter 'safe' gives is not supported"};
  if (object.text() == nullptr && object.list() == nullptr)
    return Value::undefined(fmt::format("a slice of a {}", object.type_name()));
  const auto size = static_cast<int64_t>(length_of(object));
  const auto part = [&](const Value* value) { return value == nullptr || value->is_none() ? nullptr : value; };
  const int64_t by = part(step) != nullptr ? integer_of("a slice", *step) : 1;
  if (by == 0) throw ValueError{"a slice has the step 0"};
  // PySlice_AdjustIndices.
  const auto adjust = [&](const Value* value, int64_t fallback) {
    if (part(value) == nullptr) return fallback;
    const int64_t index = integer_of("a slice", *value);
    const int64_t least = by < 0 ? -1 : 0, most = by < 0 ? size - 1 : size;
    return std::clamp(index < 0 ? index + size : index, least, most);
  };
  const int64_t first = adjust(start, by < 0 ? size - 1 : 0), end = adjust(stop, by < 0 ? -1 : size);
  if (const std::string* text = object.text(); text != nullptr && by == 1) {
    const size_t begin = byte_offset(*text, static_cast<size_t>(first));
    return Value(text->substr(begin, byte_offset(*text, static_cast<size_t>(std::max(first, end))) - begin));
  }
  const auto items = items_of(object);
  std::vector<Value> taken;
  for (int64_t i = first; by > 0 ? i < end : i > end;) {
    taken.push_back(items->items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (object.list() != nullptr) return Value(List{std::move(taken), object.list()->is_tuple});
  std::string text;
  for (const Value& each : taken) text += *each.text();
  return Value(std::move(text));
}

bool contains(const Value& a, const Value& b) {
  if (b.text() != nullptr) return b.text()->find(text_of("'in' a text", a)) != std::string::npos;
  if (b.dict() != nullptr) {
    if (a.list() != nullptr || a.dict() != nullptr)
      throw ValueError{fmt::format("a {} is no key of a dict", a.type_name())};
    return a.text() != nullptr && b.dict()->find(*a.text()) != nullptr;
  }
  const auto items = items_of(b);
  return std::any_of(items->items.begin(), items->items.end(), [&](const Value& each) { return equal(a, each); });
}

Value arithmetic(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  for (const Value* each : {&a, &b})
    if (each->is_undefined()) fail_undefined(*each);
  const auto too_large = [&] { return ValueError{fmt::format("the result of '{}' is too large", op)}; };
  const auto repeated = [&](const Value& value, int64_t count) {
    const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
    const size_t size = value.text() != nullptr ? value.text()->size() : value.list()->items.size();
    if (size > 0 && times > kMaxText / size) throw too_large();
    if (value.text() != nullptr) {
      budget.text(size * times);
      std::string text;
      for (size_t i = 0; i < times; ++i) text += *value.text();
      return Value(std::move(text));
    }
    budget.list(size * times);
    List list{{}, value.list()->is_tuple};
    for (size_t i = 0; i < times; ++i)
      list.items.insert(list.items.end(), value.list()->items.begin(), value.list()->items.end());
    return Value(std::move(list));
  };
  if (op == "+" && a.text() != nullptr && b.text() != nullptr) {
    budget.text(a.text()->size() + b.text()->size());
    return Value(*a.text() + *b.text());
  }
  if (op == "+" && a.list() != nullptr && b.list() != nullptr && a.list()->is_tuple == b.list()->is_tuple) {
    budget.list(a.list()->items.size() + b.list()->items.size());
    List list = *a.list();
    list.items.insert(list.items.end(), b.list()->items.begin(), b.list()->items.end());
    return Value(std::move(list));
  }
  if (op == "*" && b.is_integer() && (a.text() != nullptr || a.list() != nullptr)) return repeated(a, b.integer());
  if (op == "*" && a.is_integer() && (b.text() != nullptr || b.list() != nullptr)) return repeated(b, a.integer());
  if (op == "%" && a.text() != nullptr) throw ValueError{"formatting a text with '%' is not supported"};
  if (!a.is_number() || !b.is_number())
    throw ValueError{fmt::format("'{}' of a {} and a {} is not possible", op, a.type_name(), b.type_name())};
  const bool zero = b.is_integer() ? b.integer() == 0 : b.real() == 0;
  if (zero && (op == "/" || op == "//" || op == "%")) throw ValueError{"a division by zero"};
  if (op == "/") return Value(a.real() / b.real());
  if (a.is_integer() && b.is_integer() && !(op == "**" && b.integer() < 0)) {
    const int64_t x = a.integer(), y = b.integer();
    int64_t result = 0;
    bool overflow = false;
    if (op == "+")
      overflow = __builtin_add_overflow(x, y, &result);
    else if (op == "-")
      overflow = __builtin_sub_overflow(x, y, &result);
    else if (op == "*")
      overflow = __builtin_mul_overflow(x, y, &result);
    else if (op == "**") {
      result = 1;
      for (int64_t i = 0; i < y && !overflow; ++i) {
        budget.step();
        overflow = __builtin_mul_overflow(result, x, &result);
      }
    } else if (x == std::numeric_limits<int64_t>::min() && y == -1) {
      overflow = op == "//";
    } else {  // rounded towards minus infinity
      const int64_t rest = x % y;
      const bool down = rest != 0 && (rest < 0) != (y < 0);
      result = op == "//" ? x / y - (down ? 1 : 0) : rest + (down ? y : 0);
    }
    if (overflow) throw too_large();
    return Value(result);
  }
  const double x = a.real(), y = b.real();
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (op == "//") return Value(std::floor(x / y));
  if (op == "**") {
    if (x < 0 && y != std::floor(y)) throw ValueError{"the power is a complex number"};
    if (x == 0 && y < 0) throw ValueError{"0 to a negative power"};
    return Value(std::pow(x, y));
  }
  double rest = std::fmod(x, y);
  if (rest != 0 && (rest < 0) != (y < 0)) rest += y;
  return Value(rest);
}

Value negative(const Value& value) {
  if (value.integer() == std::numeric_limits<int64_t>::min()) throw ValueError{"the result of '-' is too large"};
  return Value(-value.integer());
}

// ---- Global functions.

Dict merged(const char* what, const Arguments& arguments) {
  Dict result;
  if (arguments.positional.size() > 1)
    throw ValueError{fmt::format("{} takes at most one argument without a name", what)};
  for (const Value& each : arguments.positional) {
    if (each.dict() == nullptr) throw ValueError{fmt::format("{} of a {} is not supported", what, each.type_name())};
    result = *each.dict();
  }
  for (const auto& [name, value] : arguments.named) result.set(name, value);
  return result;
}

Value strftime_now(const Arguments& arguments) {
  const std::string& format = text_of("strftime_now()", *bind("strftime_now()", arguments, {"format"}, 1)[0]);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 1024> buffer{};
  if (format.empty()) return Value("");
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  if (size == 0) throw ValueError{"strftime_now() with a format that gives no text, or more than 1,023 bytes"};
  if (format.find("%f") != std::string::npos) throw ValueError{"strftime_now() with %f is not supported"};
  return Value(std::string(buffer.data(), size));
}

Value range(const Arguments& arguments, Budget& budget) {
  if (arguments.positional.empty() || !arguments.named.empty()) throw ValueError{"range() takes one to three integers"};
  const auto bound = bind("range()", arguments, {"a", "b", "c"});
  int64_t start = 0, stop = integer_of("range()", *bound[0]), step = 1;
  if (bound[1] != nullptr) {
    start = stop;
    stop = integer_of("range()", *bound[1]);
  }
  if (bound[2] != nullptr) step = integer_of("range()", *bound[2]);
  if (step == 0) throw ValueError{"range() with the step 0"};
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (items.size() >= 100'000) throw ValueError{"range() of more than 100,000 numbers"};  // as Jinja's sandbox
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  budget.list(items.size());
  return Value::list(std::move(items));
}

}  // namespace trireme::jinja
