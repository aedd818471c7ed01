#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include "protobuf.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>

namespace trireme {

namespace {

/// CRC-32C, eight bytes at a time with tables (slicing-by-8: Kounavis and Berry 2005).
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    tables[0][i] = value;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (size_t t = 1; t < 8; ++t) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = value_at<uint64_t>(bytes.data() + at) ^ crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= kTables[7 - t][word >> (8 * t) & 0xff];
  }
  for (; at < bytes.size(); ++at) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(bytes[at])) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

namespace {

constexpr uint64_t kMagic = 0xdb4775248b80fb57;
constexpr size_t kFooter = 48, kTrailer = 5;
constexpr uint64_t kMaxKey = 4096, kMaxFiles = 10'000;
constexpr size_t kMaxDimensions = 16;

/// ModelError of the file or tensor `what`.
DamagedAt damaged_model(const std::string& what) {
  return [what](size_t, const std::string& why) {
    throw ModelError(fmt::format("{}: {}; the file is damaged", what, why));
  };
}

struct Handle {
  uint64_t offset, size;
};
Handle read_handle(ByteCursor& cursor) {
  const uint64_t offset = cursor.varint();
  return {offset, cursor.varint()};
}

/// The block's entries. Checks its trailer (compression type, masked checksum).
std::span<const std::byte> read_block(std::span<const std::byte> table, Handle handle, const std::string& what) {
  const DamagedAt damaged = damaged_model(what);
  if (handle.offset > table.size() || handle.size > table.size() - handle.offset ||
      table.size() - handle.offset - handle.size < kTrailer)
    throw ModelError(fmt::format("{}: a block of {} bytes at {} lies outside the file of {}; the file is damaged", what,
                                 handle.size, handle.offset, table.size()));
  const auto block = table.subspan(static_cast<size_t>(handle.offset), static_cast<size_t>(handle.size) + 1);
  ByteCursor trailer(table.subspan(static_cast<size_t>(handle.offset + handle.size), kTrailer), damaged);
  const uint64_t type = trailer.fixed(1);
  if (type == 1)
    throw ModelError(fmt::format(
        "{}: the block at {} is compressed with snappy, which is not supported: write the checkpoint again with "
        "tf.train.Saver or tf.train.Checkpoint, which do not compress",
        what, handle.offset));
  if (type != 0) trailer.fail(fmt::format("the block at {} has the unknown type {}", handle.offset, type));
  if (trailer.fixed(4) != masked_crc32c(block))
    trailer.fail(fmt::format("the checksum of the block at {} does not match", handle.offset));
  const auto content = block.first(block.size() - 1);
  if (content.size() < 4) trailer.fail("a block is too short for its count of restarts");
  ByteCursor tail(content.last(4), damaged);
  const uint64_t restarts = tail.fixed(4);
  if (restarts > content.size() / 4 - 1)
    tail.fail(fmt::format("a block of {} bytes claims {} restarts", content.size(), restarts));
  return content.first(content.size() - 4 - 4 * static_cast<size_t>(restarts));
}

/// Keys ascend through the whole table: `last` is passed from block to block.
template <class F>
void walk_block(std::span<const std::byte> entries, const DamagedAt& damaged, std::optional<std::string>& last,
                const F& visit) {
  ByteCursor cursor(entries, damaged);
  std::string key;
  while (!cursor.empty()) {
    const uint64_t shared = cursor.varint(), own = cursor.varint(), length = cursor.varint();
    if (shared > key.size()) cursor.fail(fmt::format("a key shares {} bytes with one of {}", shared, key.size()));
    if (own > kMaxKey || shared + own > kMaxKey) cursor.fail(fmt::format("a key of {} bytes", shared + own));
    key.resize(static_cast<size_t>(shared));
    key += as_text(cursor.take(own));
    const auto value = cursor.take(length);
    if (last && key <= *last) cursor.fail("keys do not ascend");
    last = key;
    visit(key, value);
  }
}

/// Calls visit for every key and value of a table in LevelDB's format (leveldb, doc/table_format.md), in order.
template <class F>
void for_each_entry(std::span<const std::byte> table, const std::string& what, const F& visit) {
  if (table.size() < kFooter)
    throw ModelError(fmt::format("{} has {} bytes, too few for a checkpoint's index", what, table.size()));
  const DamagedAt damaged = damaged_model(what);
  ByteCursor footer(table.last(kFooter), damaged);
  read_handle(footer);  // of the metaindex block, which is not needed
  const Handle index = read_handle(footer);
  ByteCursor magic(table.last(8), damaged);
  if (magic.fixed(8) != kMagic)
    throw ModelError(fmt::format("{} is not an index of a TensorFlow checkpoint (V2): its last bytes differ", what));
  const auto blocks = table.first(table.size() - kFooter);
  std::optional<std::string> last_separator, last_key;
  uint64_t read = 0;  // a block without keys could be named any number of times
  walk_block(read_block(blocks, index, what), damaged, last_separator,
             [&](const std::string&, std::span<const std::byte> value) {
               ByteCursor cursor(value, damaged);
               const Handle handle = read_handle(cursor);
               const auto entries = read_block(blocks, handle, what);
               if ((read += handle.size) > blocks.size()) cursor.fail("its blocks overlap");
               walk_block(entries, damaged, last_key, visit);
             });
}

/// DataType values of tensorflow/core/framework/types.proto.
std::optional<DType> dtype_of(uint64_t number) {
  switch (number) {
    case 1: return DType::kF32;
    case 2: return DType::kF64;
    case 3: return DType::kI32;
    case 9: return DType::kI64;
    case 14: return DType::kBF16;
    case 19: return DType::kF16;
    default: return std::nullopt;
  }
}

/// Number of data files in the bundle's header.
uint64_t read_header(std::span<const std::byte> message, const std::string& what) {
  uint64_t files = 0, endianness = 0;
  for_each_field(message, damaged_model(what), [&](const ProtoField& field) {
    if (field.number == 1) files = field.value;
    if (field.number == 2) endianness = field.value;
  });
  if (endianness != 0) throw ModelError(fmt::format("{} is big-endian, which is not supported", what));
  if (files < 1 || files > kMaxFiles)
    throw ModelError(fmt::format("{} says it has {} data files, expected 1 to {}", what, files, kMaxFiles));
  return files;
}

std::vector<int64_t> read_shape(std::span<const std::byte> message, const std::string& what) {
  std::vector<int64_t> shape;
  for_each_field(message, damaged_model(what), [&](const ProtoField& field) {
    if (field.number == 3 && field.value != 0) throw ModelError(fmt::format("{}: its shape is unknown", what));
    if (field.number != 2) return;
    int64_t extent = 0;
    for_each_field(field.bytes, damaged_model(what), [&](const ProtoField& inner) {
      if (inner.number == 1) extent = static_cast<int64_t>(inner.value);
    });
    if (extent < 0 || shape.size() == kMaxDimensions)
      throw ModelError(fmt::format("{}: no tensor has this shape; the file is damaged", what));
    shape.push_back(extent);
  });
  return shape;
}

/// Nothing for types that weights cannot have.
std::optional<TfTensor> read_entry(std::span<const std::byte> message, uint64_t files, const std::string& what) {
  TfTensor tensor;
  uint64_t type = 0, file = 0;
  bool sliced = false;
  for_each_field(message, damaged_model(what), [&](const ProtoField& field) {
    switch (field.number) {
      case 1: type = field.value; break;
      case 2: tensor.info.shape = read_shape(field.bytes, what); break;
      case 3: file = field.value; break;
      case 4: tensor.offset = field.value; break;
      case 5: tensor.size = field.value; break;
      case 6: tensor.masked_crc = static_cast<uint32_t>(field.value); break;
      case 7: sliced = true; break;
      default: break;
    }
  });
  const std::optional<DType> dtype = dtype_of(type);
  if (!dtype) return std::nullopt;
  if (sliced)
    throw ModelError(fmt::format("{} is stored in slices (a partitioned variable), which is not supported", what));
  if (file >= files)
    throw ModelError(fmt::format("{} lies in data file {} of {}; the index is damaged", what, file, files));
  tensor.info.dtype = *dtype;
  tensor.file = static_cast<int32_t>(file);
  uint64_t bytes = dtype_size(*dtype);
  for (const int64_t extent : tensor.info.shape) {
    const auto wide = static_cast<uint64_t>(extent);
    if (wide != 0 && bytes > std::numeric_limits<uint64_t>::max() / wide)
      throw ModelError(fmt::format("{}: no tensor has this shape; the index is damaged", what));
    bytes *= wide;
  }
  if (bytes != tensor.size)
    throw ModelError(
        fmt::format("{} has {} bytes, its shape asks for {}; the index is damaged", what, tensor.size, bytes));
  return tensor;
}

}  // namespace

TfCheckpoint::TfCheckpoint(const std::filesystem::path& prefix) : prefix_(prefix) {
  const std::string index_path = prefix.string() + ".index";
  const MappedFile index(index_path, ExitCode::kModel);
  uint64_t files = 0;
  for_each_entry(index.bytes(), index_path, [&](const std::string& key, std::span<const std::byte> value) {
    if (key.empty()) {
      files = read_header(value, index_path);
      return;
    }
    if (files == 0) throw ModelError(fmt::format("{} has no header; the file is damaged", index_path));
    // Keys that start with a zero byte are encoded slices, not names.
    if (key[0] == '\0') return;
    if (const auto tensor = read_entry(value, files, fmt::format("{}: tensor {}", index_path, key)))
      tensors_.emplace(key, *tensor);
  });
  if (files == 0) throw ModelError(fmt::format("{} has no header; the file is damaged", index_path));
  for (uint64_t file = 0; file < files; ++file)
    files_.emplace_back(fmt::format("{}.data-{:05d}-of-{:05d}", prefix.string(), file, files), ExitCode::kModel);
  for (const auto& [name, tensor] : tensors_) {
    const MappedFile& file = files_[static_cast<size_t>(tensor.file)];
    if (tensor.offset > file.bytes().size() || tensor.size > file.bytes().size() - tensor.offset)
      throw ModelError(fmt::format("{}: tensor {} ends at byte {} of {}; the file is truncated", file.path().string(),
                                   name, tensor.offset + tensor.size, file.bytes().size()));
  }
}

std::vector<std::string> TfCheckpoint::names() const { return keys_of(tensors_); }

std::optional<TensorInfo> TfCheckpoint::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return std::nullopt;
  return found->second.info;
}

std::vector<ElementSpan> TfCheckpoint::read(const std::string& name, int64_t begin, int64_t end) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw ModelError(fmt::format("{} has no tensor {}", description(), name));
  const TfTensor& tensor = found->second;
  const MappedFile& file = files_[static_cast<size_t>(tensor.file)];
  const auto bytes = file.bytes().subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.size));
  const std::lock_guard lock(mutex_);
  if (!checked_.contains(name) && masked_crc32c(bytes) != tensor.masked_crc)
    throw ModelError(fmt::format(
        "{}: the checksum of tensor {} ({} bytes at {}) does not match; the file is damaged: fetch it again",
        file.path().string(), name, tensor.size, tensor.offset));
  checked_.insert(name);
  const auto size = static_cast<int64_t>(dtype_size(tensor.info.dtype));
  TRIREME_CHECK(begin >= 0 && begin <= end && end * size <= static_cast<int64_t>(bytes.size()), "elements ", begin,
                "..", end, " of ", name, " with ", bytes.size(), " bytes");
  return {{bytes.data() + begin * size, end - begin}};
}

std::string TfCheckpoint::place(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? "" : files_[static_cast<size_t>(found->second.file)].path().string();
}

std::string TfCheckpoint::description() const {
  return fmt::format("TensorFlow checkpoint {}, {}", prefix_.filename().string(), counted(files_.size(), "file"));
}

}  // namespace trireme
