#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include "leveldb_table.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

namespace trireme {

namespace {

constexpr uint64_t kMaxFiles = 10'000;
constexpr size_t kMaxDimensions = 16;

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

std::vector<std::string> TfCheckpoint::names() const {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : tensors_) all.push_back(name);
  return all;
}

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
  return fmt::format("TensorFlow checkpoint {}, {} file{}", prefix_.filename().string(), files_.size(),
                     files_.size() == 1 ? "" : "s");
}

}  // namespace trireme
