// Writes the object array as NumPy 1.x does: npy version 1, pickle protocol 3, byte for byte equal to Python's C
// pickler.
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace trireme {

namespace {

constexpr size_t kBatch = 1000;  // items between MARK and APPENDS

}  // namespace

struct NpyPackedRecordWriter::State {
  State(const std::filesystem::path& path, int64_t records) : file(path), count(records) {}

  AtomicFile file;
  int64_t count, written = 0;
  uint32_t memo = 0;
  uint32_t key_ids = 0, key_mask = 0, key_start = 0, reconstruct = 0, ndarray = 0, letter = 0, dtype = 0, int_type = 0;
  std::string buffer;

  void op(char code) { buffer += code; }
  void bytes(const void* data, size_t size) { buffer.append(static_cast<const char*>(data), size); }
  void put() {
    if (memo < 256) {
      op('q');
      op(static_cast<char>(memo));
    } else {
      op('r');
      bytes(&memo, 4);
    }
    ++memo;
  }
  void get(uint32_t index) {
    if (index < 256) {
      op('h');
      op(static_cast<char>(index));
    } else {
      op('j');
      bytes(&index, 4);
    }
  }
  uint32_t text(std::string_view value) {
    const auto size = static_cast<uint32_t>(value.size());
    op('X');
    bytes(&size, 4);
    buffer += value;
    put();
    return memo - 1;
  }
  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      op('K');
      op(static_cast<char>(value));
    } else if (value >= 0 && value < 65536) {
      op('M');
      const auto small = static_cast<uint16_t>(value);
      bytes(&small, 2);
    } else {
      op('J');
      const auto whole = static_cast<int32_t>(value);
      bytes(&whole, 4);
    }
  }
  uint32_t global(std::string_view module, std::string_view name) {
    op('c');
    buffer += fmt::format("{}\n{}\n", module, name);
    put();
    return memo - 1;
  }
  void flush() {
    file.write(buffer);
    buffer.clear();
  }

  template <class T>
  void list(const std::vector<T>& values) {
    op(']');
    put();
    for (size_t begin = 0; begin < values.size(); begin += kBatch) {
      const size_t end = std::min(values.size(), begin + kBatch);
      if (end - begin == 1) {
        integer(values[begin]);
        op('a');
        continue;
      }
      op('(');
      for (size_t i = begin; i < end; ++i) integer(values[i]);
      op('e');
    }
  }

  /// numpy.ndarray through _reconstruct(ndarray, (0,), b'b') and its state.
  void begin_array(bool first) {
    if (first) {
      reconstruct = global("numpy.core.multiarray", "_reconstruct");
      ndarray = global("numpy", "ndarray");
      op('K');
      op('\0');
      op('\x85');
      put();
      op('C');
      op('\x01');
      op('b');
      put();
      letter = memo - 1;
    } else {
      get(reconstruct);
      get(ndarray);
      op('K');  // NumPy creates a new (0,) for every array, so it is not memoized across arrays
      op('\0');
      op('\x85');
      put();
      get(letter);
    }
    op('\x87');
    put();
    op('R');
    put();
  }
};

NpyPackedRecordWriter::NpyPackedRecordWriter(const std::filesystem::path& path, int64_t count)
    : state_(std::make_unique<State>(path, count)) {
  State& s = *state_;
  std::string header = fmt::format("{{'descr': '|O', 'fortran_order': False, 'shape': ({},), }}", count);
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  const char prefix[10] = {'\x93',
                           'N',
                           'U',
                           'M',
                           'P',
                           'Y',
                           1,
                           0,
                           static_cast<char>(header.size() & 0xFF),
                           static_cast<char>(header.size() >> 8)};
  s.bytes(prefix, sizeof prefix);
  s.buffer += header;
  s.op('\x80');
  s.op('\x03');
  s.begin_array(/*first=*/true);
  // State: (1, (count,), dtype('O'), False, [records])
  s.op('(');
  s.integer(1);
  s.integer(count);
  s.op('\x85');
  s.put();
  s.dtype = s.global("numpy", "dtype");
  s.text("O8");
  s.op('\x89');
  s.op('\x88');
  s.op('\x87');
  s.put();
  s.op('R');
  s.put();
  s.op('(');
  s.integer(3);
  s.text("|");
  s.op('N');
  s.op('N');
  s.op('N');
  for (int i = 0; i < 2; ++i) s.integer(-1);
  s.integer(63);
  s.op('t');
  s.put();
  s.op('b');
  s.op('\x89');
  s.op(']');
  s.put();
}

NpyPackedRecordWriter::~NpyPackedRecordWriter() = default;

void NpyPackedRecordWriter::append(const PackedRecord& record) {
  State& s = *state_;
  TRIREME_CHECK(s.written < s.count, "record ", s.written + 1, " of ", s.count, " announced");
  TRIREME_CHECK(record.loss_mask.size() == record.input_ids.size(), record.input_ids.size(), " input_ids with ",
                record.loss_mask.size(), " loss_mask entries");
  const int64_t in_batch = s.written % static_cast<int64_t>(kBatch);
  const bool single = s.count - s.written == 1 && in_batch == 0;
  if (in_batch == 0 && !single) s.op('(');
  const bool first = s.written == 0;

  s.op('}');
  s.put();
  s.op('(');
  if (first)
    s.key_ids = s.text("input_ids");
  else
    s.get(s.key_ids);
  s.begin_array(/*first=*/false);
  s.op('(');
  s.integer(1);
  s.integer(static_cast<int64_t>(record.input_ids.size()));
  s.op('\x85');
  s.put();
  if (first) {
    s.get(s.dtype);
    s.text("i4");
    s.op('\x89');
    s.op('\x88');
    s.op('\x87');
    s.put();
    s.op('R');
    s.put();
    s.int_type = s.memo - 1;
    s.op('(');
    s.integer(3);
    s.text("<");
    s.op('N');
    s.op('N');
    s.op('N');
    for (int i = 0; i < 2; ++i) s.integer(-1);
    s.integer(0);
    s.op('t');
    s.put();
    s.op('b');
  } else {
    s.get(s.int_type);
  }
  s.op('\x89');
  const auto size = static_cast<uint32_t>(record.input_ids.size() * sizeof(int32_t));
  if (size < 256) {
    s.op('C');
    s.op(static_cast<char>(size));
  } else {
    s.op('B');
    s.bytes(&size, 4);
  }
  s.bytes(record.input_ids.data(), size);
  s.put();
  s.op('t');
  s.put();
  s.op('b');
  if (first)
    s.key_mask = s.text("loss_mask");
  else
    s.get(s.key_mask);
  s.list(record.loss_mask);
  if (first)
    s.key_start = s.text("seq_start_id");
  else
    s.get(s.key_start);
  s.list(record.seq_start_id);
  s.op('u');

  ++s.written;
  if (single)
    s.op('a');
  else if (s.written % static_cast<int64_t>(kBatch) == 0 || s.written == s.count)
    s.op('e');
  s.flush();
}

void NpyPackedRecordWriter::commit() {
  State& s = *state_;
  TRIREME_CHECK(s.written == s.count, s.written, " records of ", s.count, " announced");
  s.op('t');
  s.put();
  s.op('b');
  s.op('.');
  s.flush();
  s.file.commit();
}

}  // namespace trireme
