// Tests: what stands after "is".
#include "data/chat/jinja_builtins.h"

#include <fmt/format.h>

#include <functional>
#include <unordered_map>

namespace trireme::jinja {
namespace {

using Test = std::function<bool(const Value&, const Arguments&)>;

std::unordered_map<std::string, Test> make_tests() {
  const auto plain = [](const char* name, auto apply) {
    return [name, apply](const Value& input, const Arguments& arguments) -> bool {
      bind(name, arguments, {});
      return apply(input);
    };
  };
  const auto with = [](const char* name, auto apply) {
    return [name, apply](const Value& input, const Arguments& arguments) -> bool {
      return apply(input, *bind(name, arguments, {"other"}, 1)[0]);
    };
  };
  const auto remainder = [](const Value& value, int64_t by) {
    if (by == 0) throw ValueError{"a division by zero"};
    return integer_of("this test", value) % by;
  };
  const auto has_items = [&](const char* name, bool indexed) {
    return plain(name, [indexed](const Value& v) {
      return v.is_undefined() || v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr ||
             v.as<Markup>() != nullptr || (!indexed && v.iterable() != nullptr);
    });
  };
  std::unordered_map<std::string, Test> table = {
      {"defined", plain("defined", [](const Value& v) { return !v.is_undefined(); })},
      {"undefined", plain("undefined", [](const Value& v) { return v.is_undefined(); })},
      {"none", plain("none", [](const Value& v) { return v.is_none(); })},
      {"string", plain("string", [](const Value& v) { return v.text() != nullptr || v.as<Markup>() != nullptr; })},
      {"mapping", plain("mapping", [](const Value& v) { return v.dict() != nullptr; })},
      {"iterable", has_items("iterable", false)},
      {"sequence", has_items("sequence", true)},
      {"number", plain("number", [](const Value& v) { return v.is_number(); })},
      {"integer", plain("integer", [](const Value& v) { return v.as<int64_t>() != nullptr; })},
      {"float", plain("float", [](const Value& v) { return v.as<double>() != nullptr; })},
      {"boolean", plain("boolean", [](const Value& v) { return v.as<bool>() != nullptr; })},
      {"true", plain("true", [](const Value& v) { return v.as<bool>() != nullptr && *v.as<bool>(); })},
      {"false", plain("false", [](const Value& v) { return v.as<bool>() != nullptr && !*v.as<bool>(); })},
      {"callable", plain("callable", [](const Value& v) { return v.function() != nullptr; })},
      {"odd", plain("odd", [remainder](const Value& v) { return remainder(v, 2) != 0; })},
      {"even", plain("even", [remainder](const Value& v) { return remainder(v, 2) == 0; })},
      {"divisibleby",
       with("divisibleby",
            [remainder](const Value& a, const Value& b) { return remainder(a, integer_of("divisibleby", b)) == 0; })},
      {"in", with("in", [](const Value& a, const Value& b) { return contains(a, b); })},
      {"sameas", with("sameas",
                      [](const Value& a, const Value& b) {
                        if (!b.is_none() && b.as<bool>() == nullptr)
                          throw ValueError{"the test 'sameas' is supported for true, false and none only"};
                        return a.type_name() == b.type_name() && equal(a, b);
                      })},
  };
  const auto compare = [&](std::initializer_list<const char*> names, auto apply) {
    for (const char* name : names) table.emplace(name, with(*names.begin(), apply));
  };
  compare({"equalto", "eq", "=="}, [](const Value& a, const Value& b) { return equal(a, b); });
  compare({"ne", "!="}, [](const Value& a, const Value& b) { return !equal(a, b); });
  compare({"lt", "<", "lessthan"}, [](const Value& a, const Value& b) { return less(a, b); });
  compare({"gt", ">", "greaterthan"}, [](const Value& a, const Value& b) { return less(b, a); });
  compare({"le", "<="}, [](const Value& a, const Value& b) { return !less(b, a); });
  compare({"ge", ">="}, [](const Value& a, const Value& b) { return !less(a, b); });
  return table;
}

}  // namespace

bool apply_test(const std::string& name, const Value& input, const Arguments& arguments) {
  static const std::unordered_map<std::string, Test> tests = make_tests();
  const auto found = tests.find(name);
  if (found == tests.end()) throw ValueError{fmt::format("the test '{}' is not supported", name)};
  return found->second(input, arguments);
}

}  // namespace trireme::jinja
