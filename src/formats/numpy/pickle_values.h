#pragma once
// Private to formats/: the values of a pickle of token records, and their reader. It executes nothing: the only
// callables it accepts are NumPy's array constructors, whose effect it implements itself.

#include "trireme/base/file.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

/// Reads one pickle from file bytes [begin, end). DataError with the byte offset for every opcode, global or size it
/// does not accept, for values nested deeper than 32 levels, and for more values than a file of this size has records.
ValuePtr read(std::span<const std::byte> file, size_t begin, const std::filesystem::path& path);

}  // namespace trireme::pickle
