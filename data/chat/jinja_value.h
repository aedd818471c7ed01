#pragma once
// Values of chat templates: Python's semantics as Jinja 3.1 shows them.

#include "trireme/base/text.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::jinja {

class Value;

constexpr size_t kMaxText = size_t{16} << 20;   // bytes of one text
constexpr int64_t kMaxComparisons = 5'000'000;  // of the items of two values

/// A variable or member that is not there; `name` for messages.
struct Undefined {
  std::string name;
};
/// Python's list or tuple.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 0;  // of lists in lists; set by Value
};
/// Python's dict with string keys, in order of insertion.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  int depth = 0;
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};
/// `namespace(...)`: members may be set.
struct Namespace {
  Dict members;
};
/// The result of Jinja's map, select, unique … and of a dict's keys(), values() and items(): items without an index. A
/// generator has no length, is true, and gives its items once.
struct Iterable {
  std::string type;  // "generator", "dict_keys", "dict_values", "dict_items"
  std::shared_ptr<const List> items;
  bool used = false;
  bool is_generator() const { return type == "generator"; }
};
/// The result of the filter `safe`: only its printing and a few tests are supported.
struct Markup {
  std::string text;
};
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
/// A macro, a global function, or a method bound to its object.
struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
  int depth = 0;  // of the object of a method
};
/// `loop` of a for statement.
struct Loop {
  size_t index = 0;
  int64_t depth = 1;
  std::shared_ptr<const List> items;
  std::vector<Value> changed;  // the arguments of the last call of loop.changed()
  bool has_changed = false;
};

/// An error of a template about a wrong value. The renderer adds the place.
struct ValueError {
  std::string what;
};

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Storage = std::variant<Undefined, std::nullptr_t, bool, int64_t, double, Text, std::shared_ptr<const List>,
                               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<Function>,
                               std::shared_ptr<Loop>, std::shared_ptr<Iterable>, Markup>;

  Value() : storage_(nullptr) {}  // None
  explicit Value(bool value) : storage_(value) {}
  explicit Value(int64_t value) : storage_(value) {}
  explicit Value(double value) : storage_(value) {}
  explicit Value(std::string value) : storage_(std::make_shared<const std::string>(std::move(value))) {}
  explicit Value(std::string_view value) : Value(std::string(value)) {}
  explicit Value(const char* value) : Value(std::string(value)) {}
  /// ValueError for values nested deeper than kMaxDepth: they are walked and freed recursively.
  explicit Value(List list);
  explicit Value(Dict dict);
  explicit Value(std::shared_ptr<Namespace> value) : storage_(std::move(value)) {}
  explicit Value(std::shared_ptr<Function> value) : storage_(std::move(value)) {}
  explicit Value(std::shared_ptr<Loop> value) : storage_(std::move(value)) {}
  explicit Value(Markup value) : storage_(std::move(value)) {}
  static Value undefined(std::string name);
  static Value iterable(const char* type, std::vector<Value> items);
  static Value list(std::vector<Value> items) { return Value(List{std::move(items), false}); }
  static Value tuple(std::vector<Value> items) { return Value(List{std::move(items), true}); }
  static Value from_json(const nlohmann::ordered_json& json);

  template <class T>
  const T* as() const {
    return std::get_if<T>(&storage_);
  }
  const std::string* text() const { return pointee<Text>(); }
  const List* list() const { return pointee<std::shared_ptr<const List>>(); }
  const Dict* dict() const { return pointee<std::shared_ptr<const Dict>>(); }
  Namespace* names() const { return pointee<std::shared_ptr<Namespace>>(); }
  Function* function() const { return pointee<std::shared_ptr<Function>>(); }
  Loop* loop() const { return pointee<std::shared_ptr<Loop>>(); }
  Iterable* iterable() const { return pointee<std::shared_ptr<Iterable>>(); }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<std::nullptr_t>() != nullptr; }
  /// An integer or a bool (Python's bool is an int).
  bool is_integer() const { return as<int64_t>() != nullptr || as<bool>() != nullptr; }
  bool is_number() const { return is_integer() || as<double>() != nullptr; }
  int64_t integer() const { return as<bool>() != nullptr ? (*as<bool>() ? 1 : 0) : *as<int64_t>(); }
  double real() const { return as<double>() != nullptr ? *as<double>() : static_cast<double>(integer()); }

  static constexpr int kMaxDepth = 64;
  /// Lists and dicts inside each other; 0 for plain values and namespaces.
  int depth() const;

  /// Python's bool(value).
  bool truth() const;
  /// "str", "list", "NoneType" …: the name of Python's type.
  std::string type_name() const;

 private:
  template <class Pointer>
  typename Pointer::element_type* pointee() const {
    const auto* found = as<Pointer>();
    return found == nullptr ? nullptr : found->get();
  }
  Storage storage_;
};

/// The work of going through a text or the items of a value once, in steps of a template.
int64_t work_of(const Value& value);
/// Of looking for one text in another; 0 for other values.
int64_t search_work(const Value& a, const Value& b);
/// Of looking for each of the arguments.
int64_t search_work(const Value& a, const Arguments& arguments);
/// Python's ==.
bool equal(const Value& a, const Value& b);
/// Python's < for numbers, texts and lists; ValueError for other pairs.
bool less(const Value& a, const Value& b);
/// str(value) as Jinja prints it: an undefined value is empty.
std::string to_text(const Value& value);
/// repr(value).
std::string to_repr(const Value& value);

struct JsonStyle {
  bool ascii = false, sort_keys = false, has_indent = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};
/// json.dumps(value).
std::string to_json(const Value& value, const JsonStyle& style);

/// The items that iteration gives: of a list its items, of a text its characters, of a dict its keys, of an undefined
/// value none. ValueError for other values.
std::shared_ptr<const List> items_of(const Value& value);

// Text by characters (code points), as Python counts them. All texts are UTF-8.

/// Bytes before character `index` (at most the count).
size_t byte_offset(std::string_view text, size_t index);
/// True for what Python's str.isspace() is true for.
bool is_python_space(char32_t c);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);

}  // namespace trireme::jinja
