#pragma once
// The functions that templates may call: filters, tests, methods of texts, lists and dicts. All functions throw
// ValueError, also for parts of Jinja that this renderer lacks.

#include "data/chat/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::jinja {

/// Bounds the work of one rendering, because templates are not trusted.
class Budget {
 public:
  static constexpr int64_t kMaxSteps = 5'000'000;
  static constexpr size_t kMaxBytes = size_t{256} << 20;  // of all texts and lists that are made
  static constexpr int64_t kRoundSteps = 5;  // a round of a loop makes a scope: it takes as long as five statements
  void step(int64_t steps = 1) {
    if ((steps_ += steps) > kMaxSteps * scale)
      throw ValueError{fmt::format("the template takes too many steps ({} million)", 5 * scale)};
  }
  /// A text of so many bytes is made.
  void text(size_t bytes) {
    if (bytes > kMaxText) throw ValueError{"a text of more than 16 MiB"};
    made(bytes);
  }
  void list(size_t items) { made(items * sizeof(Value)); }
  /// to_text(value) for what becomes a part of the text. If `refuses_none` is set, None is an error: as the text "None"
  /// it would be trained.
  std::string written(const Value& value) const {
    if (refuses_none && value.is_none())
      throw ValueError{
          "the template would write 'None' for a value that is null: leave it out of the data, or give it a text"};
    if (const auto* markup = value.as<Markup>()) return markup->text;
    return to_text(value);
  }
  bool refuses_none = false;
  int64_t scale = 1;  // of the limits: templates go through all messages for each, or add each tool to one text

 private:
  void made(size_t bytes) {
    const auto times = static_cast<size_t>(std::min<int64_t>(scale, 8));  // all of them may be held at once
    if ((bytes_ += bytes) > kMaxBytes * times)
      throw ValueError{fmt::format("the template makes more than {} MiB of values", 256 * times)};
  }
  int64_t steps_ = 0;
  size_t bytes_ = 0;
};

/// Arguments by place and name; entry i is null where argument `names[i]` is not given. `required`: how many of the
/// first must be.
std::vector<const Value*> bind(const std::string& what, const Arguments& arguments,
                               std::initializer_list<const char*> names, size_t required = 0);

/// A text argument.
const std::string& text_of(const std::string& what, const Value& value);
/// An integer argument.
int64_t integer_of(const std::string& what, const Value& value);

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments, Budget& budget);
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);

/// object.name: a method, a member, or undefined.
Value attribute(const Value& object, const std::string& name, Budget& budget);
/// object[index].
Value item(const Value& object, const Value& index, Budget& budget);
/// object[start:stop:step]; null where not given.
Value slice(const Value& object, const Value* start, const Value* stop, const Value* step);
/// a in b.
bool contains(const Value& a, const Value& b);
/// len(value).
size_t length_of(const Value& value);
/// a op b of numbers, texts and lists.
Value arithmetic(const std::string& op, const Value& a, const Value& b, Budget& budget);

/// The arguments of dict() and namespace(): perhaps a dict, and names.
Dict merged(const char* what, const Arguments& arguments);
Value strftime_now(const Arguments& arguments);
/// At most 100,000 numbers, as in Jinja's sandbox.
Value range(const Arguments& arguments, Budget& budget);

/// -value of an integer.
Value negative(const Value& value);

// Python's methods of str, also used by filters.

std::string strip(std::string_view text, const Value* characters, bool left, bool right);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t count, Budget& budget);

}  // namespace trireme::jinja
