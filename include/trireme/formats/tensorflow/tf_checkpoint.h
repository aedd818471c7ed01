#pragma once
// TensorFlow checkpoints of "tensor bundle" V2: <prefix>.index and <prefix>.data-00000-of-0000n.
//
// The index is a table in LevelDB's format (blocks with shared key prefixes, a footer that points to the index block).
// It maps tensor names to BundleEntryProto messages: type, shape, file, offset, size, masked CRC-32C. The data files
// hold the tensors' bytes, little-endian. Sources: tensorflow/core/util/tensor_bundle and protobuf/tensor_bundle.proto,
// leveldb's doc/table_format.md.
//
// Files are untrusted: every offset, length and count is checked, tables and messages are read without recursion, and
// the checksums of blocks and of read tensors are compared. Compressed (snappy) index blocks, big-endian files, sliced
// tensors and strings are refused. All errors are ModelError with the file's name.

#include "trireme/base/file.h"
#include "trireme/formats/huggingface/weight_source.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace trireme {

struct TfTensor {
  TensorInfo info;
  int32_t file = 0;  // of data-<file>-of-<n>
  uint64_t offset = 0, size = 0;
  uint32_t masked_crc = 0;
};

/// Provides the tensors under TensorFlow's names.
class TfCheckpoint : public WeightSource {
 public:
  explicit TfCheckpoint(const std::filesystem::path& prefix);
  /// Tensors with element types of weights, optimizer slots included. Tensors of other types (strings) are omitted.
  std::vector<std::string> names() const override;
  std::optional<TensorInfo> find(const std::string& name) const override;
  /// ModelError if the tensor's checksum, which the first read compares, differs.
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override;
  std::string place(const std::string& name) const override;
  std::string description() const override;

 private:
  std::filesystem::path prefix_;
  std::map<std::string, TfTensor> tensors_;
  std::vector<MappedFile> files_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> checked_;  // tensors whose checksum has been compared
};

/// CRC-32C (Castagnoli), and its masked form as stored in LevelDB's formats.
uint32_t crc32c(std::span<const std::byte> bytes);
uint32_t masked_crc32c(std::span<const std::byte> bytes);

}  // namespace trireme
