#pragma once
// Private to formats/: the values of a pickle of token records, and their reader. It executes nothing: the only
// callables it accepts are NumPy's array constructors, whose effect it implements itself.

#include "trireme/base/file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::pickle {

struct Value;
using ValuePtr = std::shared_ptr<Value>;

struct None {};
struct Mark {};
struct Text {
  std::string_view text;
};
struct Bytes {
  std::span<const std::byte> data;                // into the file, or into `owner`
  std::shared_ptr<std::vector<std::byte>> owner;  // of decoded bytes
};
struct Tuple {
  std::vector<ValuePtr> items;
};
/// Lists of integers are stored packed, loss masks as bytes; any other element converts the list to general items. Only
/// the vector that `form` names is used.
struct List {
  enum class Form { kSmall, kNumbers, kItems } form = Form::kSmall;
  std::vector<uint8_t> small;
  std::vector<int64_t> numbers;
  std::vector<ValuePtr> items;
  size_t size() const { return small.size() + numbers.size() + items.size(); }
};
struct Dict {
  std::vector<std::pair<ValuePtr, ValuePtr>> items;
};
struct Global {
  std::string name;  // "numpy.ndarray"
};
struct NumpyType {
  char kind = 0;  // 'i', 'u', 'b', 'O'
  int item_size = 0;
  bool big_endian = false;
};
struct Array {
  NumpyType type;
  std::vector<int64_t> shape;
  bool fortran = false;
  Bytes bytes;     // of plain types
  ValuePtr items;  // list of an object array
  bool built = false;
};

struct Value {
  std::variant<None, Mark, bool, int64_t, double, Text, Bytes, Tuple, List, Dict, Global, NumpyType, Array> data;
  size_t offset = 0;    // in the file, for messages
  int nesting = 1;      // levels of nested values, including this one
  bool sealed = false;  // an element of another value: must not change any more, so that no value contains itself
};

/// The integer in the bytes at `element`, of a type other than 'O'; nullopt above the range of 64 bits with a sign.
inline std::optional<int64_t> integer_at(const std::byte* element, const NumpyType& type) {
  const int size = type.item_size;
  uint64_t bits = 0;
  for (int b = 0; b < size; ++b)
    bits |= std::to_integer<uint64_t>(element[type.big_endian ? size - 1 - b : b]) << (8 * b);
  if (type.kind == 'i' && size < 8) {
    const int shift = 64 - 8 * size;
    bits = static_cast<uint64_t>(static_cast<int64_t>(bits << shift) >> shift);
  }
  if (type.kind == 'u' && bits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(bits);
}

/// Reads one pickle from file bytes [begin, end). DataError with the byte offset for every opcode, global or size it
/// does not accept, for values nested deeper than 32 levels, and for more values than a file of this size has records.
ValuePtr read(std::span<const std::byte> file, size_t begin, const std::filesystem::path& path);

// A pickle's bytes, stack and memo. The file's size bounds the number of values in them.

class Stack {
 protected:
  static constexpr size_t kMaxEntries = 65'536;  // Python pushes at most a batch of 1000 before it appends
  static constexpr int kMaxNesting = 32;         // records are five levels deep; values are destroyed recursively

  Stack(std::span<const std::byte> file, size_t begin, const std::filesystem::path& path)
      : file_(file), at_(begin), path_(path) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: byte {}{}: {}", path_.string(), opcode_at_,
                                dicts_ > 0 ? fmt::format(" (record {})", dicts_ - 1) : "", what));
  }

  template <class T>
  T take() {
    if (file_.size() - at_ < sizeof(T)) fail("the pickle is truncated");
    const T value = value_at<T>(file_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  std::span<const std::byte> take_bytes(uint64_t size) {
    if (size > file_.size() - at_) fail(fmt::format("{} bytes are declared and {} are left", size, file_.size() - at_));
    const auto bytes = file_.subspan(at_, size);
    at_ += size;
    return bytes;
  }
  std::string_view take_text(uint64_t size) { return as_text(take_bytes(size)); }
  std::string_view take_line() {
    const size_t begin = at_;
    while (at_ < file_.size() && file_[at_] != std::byte{'\n'}) ++at_;
    if (at_ == file_.size()) fail("the pickle is truncated");
    return as_text(file_.subspan(begin, at_++ - begin));
  }

  template <class T>
  void push(T&& value) {
    auto entry = std::make_shared<Value>();
    entry->data = std::forward<T>(value);
    entry->offset = opcode_at_;
    stack_.push_back(std::move(entry));
  }
  /// Small integers are the most frequent values, so each has one shared object.
  void push_small(uint8_t value) {
    auto& cached = small_[value];
    if (!cached) {
      cached = std::make_shared<Value>();
      cached->data = int64_t{value};
      cached->offset = opcode_at_;
    }
    stack_.push_back(cached);
  }
  void push_shared(const ValuePtr& value) { stack_.push_back(value); }
  template <class T>
  static ValuePtr constant(T&& data) {
    auto value = std::make_shared<Value>();
    value->data = std::forward<T>(data);
    return value;
  }

  /// Registers `item` as an element of `holder`.
  void hold(Value& holder, const ValuePtr& item) {
    item->sealed = true;
    holder.nesting = std::max(holder.nesting, item->nesting + 1);
    if (holder.nesting > kMaxNesting) fail(fmt::format("values are nested deeper than {} levels", kMaxNesting));
    count_kept();
  }
  /// Bounds the number of kept values by the file's size: rows of two tokens keep one value per three bytes.
  void count_kept() {
    if (++kept_ > 65'536 + file_.size() / 2)
      fail(fmt::format("more than {} values in a file of {} bytes", kept_ - 1, file_.size()));
  }
  /// The value that an opcode changes; it must not be an element of another value.
  Value& target() {
    Value& value = top();
    if (value.sealed) fail("a value that changes after another one holds it, or that holds itself");
    return value;
  }

  ValuePtr pop() {
    if (stack_.empty()) fail("an opcode finds too few values on the stack");
    ValuePtr value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  Value& top() {
    if (stack_.empty()) fail("an opcode finds too few values on the stack");
    return *stack_.back();
  }
  std::vector<ValuePtr> pop_to_mark() {
    size_t mark = stack_.size();
    while (mark > 0 && !std::holds_alternative<Mark>(stack_[mark - 1]->data)) --mark;
    if (mark == 0) fail("there is no mark on the stack");
    std::vector<ValuePtr> items(std::make_move_iterator(stack_.begin() + static_cast<long>(mark)),
                                std::make_move_iterator(stack_.end()));
    stack_.resize(mark - 1);
    return items;
  }
  void push_tuple(std::vector<ValuePtr> items) {
    push(Tuple{std::move(items)});
    for (const ValuePtr& item : std::get<Tuple>(top().data).items) hold(top(), item);
  }
  void tuple(size_t count) {
    if (stack_.size() < count) fail("an opcode finds too few values on the stack");
    std::vector<ValuePtr> items(stack_.end() - static_cast<long>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    push_tuple(std::move(items));
  }
  void remember(uint64_t index) {
    if (index > file_.size()) fail(fmt::format("memo entry {} in a file of {} bytes", index, file_.size()));
    if (stack_.empty()) fail("an opcode finds too few values on the stack");
    count_kept();
    memo_[index] = stack_.back();
  }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail(fmt::format("memo entry {} was never written", index));
    stack_.push_back(found->second);
  }

  static const int64_t* integer(const ValuePtr& item, int64_t& flag) {
    if (const auto* number = std::get_if<int64_t>(&item->data)) return number;
    const auto* truth = std::get_if<bool>(&item->data);
    if (truth == nullptr) return nullptr;
    flag = *truth ? 1 : 0;
    return &flag;
  }

  void add(Value& holder, const ValuePtr& item) {
    auto& list = std::get<List>(holder.data);
    using Form = List::Form;
    int64_t flag = 0;
    const int64_t* number = integer(item, flag);
    if (list.form == Form::kSmall && (number == nullptr || *number < 0 || *number > 255)) {
      list.numbers.assign(list.small.begin(), list.small.end());
      list.small = {};
      list.form = Form::kNumbers;
    }
    if (list.form == Form::kNumbers && number == nullptr) {
      list.form = Form::kItems;
      for (const int64_t value : list.numbers) {
        list.items.push_back(constant(int64_t{value}));
        count_kept();
      }
      list.numbers = {};
    }
    if (list.form == Form::kSmall) {
      list.small.push_back(static_cast<uint8_t>(*number));
    } else if (list.form == Form::kNumbers) {
      list.numbers.push_back(*number);
    } else {
      hold(holder, item);
      list.items.push_back(item);
    }
  }

  std::span<const std::byte> file_;
  size_t at_;
  size_t opcode_at_ = 0;
  const std::filesystem::path& path_;
  std::vector<ValuePtr> stack_;
  std::unordered_map<uint64_t, ValuePtr> memo_;
  ValuePtr small_[256];
  size_t dicts_ = 0;  // so far; each is a record
  size_t kept_ = 0;   // references from values and the memo
};

}  // namespace trireme::pickle
