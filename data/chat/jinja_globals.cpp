// Global functions.
#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace trireme::jinja {

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
