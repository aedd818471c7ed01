// Writes the object array as NumPy 1.x does: npy version 1, pickle protocol 3, byte for byte equal to Python's C
// pickler.
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace trireme {

namespace {

constexpr size_t kBatch = 1000;  // items between MARK and APPENDS

}  // namespace

struct NpyPackedRecordWriter::State {
  State(const std::filesystem::path& path, int64_t records) : file(path), count(records) {}

  AtomicFile file;
  int64_t count, written = 0;
  uint32_t memo = 0;
  using Place = std::optional<uint32_t>;  // in the memo
  Place reconstruct, ndarray, letter, dtype_class, int_type;
  std::map<std::string_view, Place> keys;  // of a record
  std::string buffer;

  void ops(std::string_view codes) { buffer += codes; }
  /// An opcode and its operand.
  template <class T>
  void op(char code, T operand) {
    buffer += code;
    buffer.append(reinterpret_cast<const char*>(&operand), sizeof operand);
  }
  /// Remembers what the opcodes leave on the stack; its place in the memo.
  uint32_t put(std::string_view codes) {
    ops(codes);
    memo < 256 ? op('q', static_cast<uint8_t>(memo)) : op('r', memo);
    return memo++;
  }
  void get(uint32_t index) { index < 256 ? op('h', static_cast<uint8_t>(index)) : op('j', index); }
  /// Makes an object, or fetches the one that was made before.
  void once(Place& place, const std::string& codes) {
    if (place)
      get(*place);
    else
      place = put(codes);
  }
  static std::string text(std::string_view value) {
    const auto size = static_cast<uint32_t>(value.size());
    return "X" + std::string(reinterpret_cast<const char*>(&size), sizeof size) + std::string(value);
  }
  void integer(int64_t value) {
    if (value >= 0 && value < 256)
      op('K', static_cast<uint8_t>(value));
    else if (value >= 0 && value < 65536)
      op('M', static_cast<uint16_t>(value));
    else
      op('J', static_cast<int32_t>(value));
  }
  void key(std::string_view name) { once(keys[name], text(name)); }
  void flush() {
    file.write(buffer);
    buffer.clear();
  }

  template <class T>
  void list(const std::vector<T>& values) {
    put("]");
    for (size_t begin = 0; begin < values.size(); begin += kBatch) {
      const size_t end = std::min(values.size(), begin + kBatch);
      const bool single = end - begin == 1;
      if (!single) ops("(");
      for (size_t i = begin; i < end; ++i) integer(values[i]);
      ops(single ? "a" : "e");
    }
  }

  /// numpy.ndarray through _reconstruct(ndarray, (0,), b'b') and its state, up to the shape (extent,).
  void begin_array(int64_t extent) {
    once(reconstruct, "cnumpy.core.multiarray\n_reconstruct\n");
    once(ndarray, "cnumpy\nndarray\n");
    put({"K\0\x85", 3});  // NumPy creates a new (0,) for every array, so it is not memoized across arrays
    once(letter, "C\1b");
    put("\x87");
    put("R");
    ops("(");
    integer(1);
    integer(extent);
    put("\x85");
  }

  /// numpy.dtype(name, False, True) and its state (3, order, None, None, None, -1, -1, flags).
  uint32_t dtype(std::string_view name, std::string_view order, int64_t flags) {
    once(dtype_class, "cnumpy\ndtype\n");
    put(text(name));
    put("\x89\x88\x87");
    const uint32_t place = put("R");
    ops("(");
    integer(3);
    put(text(order));
    ops("NNN");
    for (const int64_t value : {int64_t{-1}, int64_t{-1}, flags}) integer(value);
    put("t");
    ops("b");
    return place;
  }
};

NpyPackedRecordWriter::NpyPackedRecordWriter(const std::filesystem::path& path, int64_t count)
    : state_(std::make_unique<State>(path, count)) {
  State& s = *state_;
  s.ops(npy_header_bytes("|O", {&count, 1}));
  s.ops("\x80\x03");
  // The array's state: (1, (count,), dtype('O'), False, [records])
  s.begin_array(count);
  s.dtype("O8", "|", 63);
  s.ops("\x89");
  s.put("]");
}

NpyPackedRecordWriter::~NpyPackedRecordWriter() = default;

void NpyPackedRecordWriter::append(const PackedRecord& record) {
  State& s = *state_;
  TRIREME_CHECK(s.written < s.count, "record ", s.written + 1, " of ", s.count, " announced");
  TRIREME_CHECK(record.loss_mask.size() == record.input_ids.size(), record.input_ids.size(), " input_ids with ",
                record.loss_mask.size(), " loss_mask entries");
  const int64_t in_batch = s.written % static_cast<int64_t>(kBatch);
  const bool single = s.count - s.written == 1 && in_batch == 0;
  if (in_batch == 0 && !single) s.ops("(");

  s.put("}");
  s.ops("(");
  s.key("input_ids");
  s.begin_array(static_cast<int64_t>(record.input_ids.size()));
  if (s.int_type)
    s.get(*s.int_type);
  else
    s.int_type = s.dtype("i4", "<", 0);
  s.ops("\x89");
  const auto size = static_cast<uint32_t>(record.input_ids.size() * sizeof(int32_t));
  size < 256 ? s.op('C', static_cast<uint8_t>(size)) : s.op('B', size);
  s.put({reinterpret_cast<const char*>(record.input_ids.data()), size});
  s.put("t");
  s.ops("b");
  s.key("loss_mask");
  s.list(record.loss_mask);
  s.key("seq_start_id");
  s.list(record.seq_start_id);
  s.ops("u");

  ++s.written;
  if (single)
    s.ops("a");
  else if (s.written % static_cast<int64_t>(kBatch) == 0 || s.written == s.count)
    s.ops("e");
  s.flush();
}

void NpyPackedRecordWriter::commit() {
  State& s = *state_;
  TRIREME_CHECK(s.written == s.count, s.written, " records of ", s.count, " announced");
  s.put("t");
  s.ops("b.");
  s.flush();
  s.file.commit();
}

}  // namespace trireme
