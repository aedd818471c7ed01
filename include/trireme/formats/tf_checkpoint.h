#pragma once
// TensorFlow checkpoints of "tensor bundle" V2: <prefix>.index and <prefix>.data-00000-of-0000n.
//
// The index is a sorted table of LevelDB's format (blocks with shared key prefixes, a footer that points to the index
// block) that maps tensor names to BundleEntryProto messages: type, shape, file, offset, size, masked CRC-32C. The data
// files hold the tensors' bytes, little-endian. Sources: tensorflow/core/util/tensor_bundle and
// protobuf/tensor_bundle.proto, leveldb's doc/table_format.md.
//
// Files come from strangers: every offset, length and count is checked, tables and messages are read without recursion,
// checksums of blocks and of the tensors that are read are compared. Compressed (snappy) index blocks, big-endian
// files, sliced tensors and strings are refused by name. All errors are ModelError with the file named.

#include "trireme/base/dtype.h"
#include "trireme/base/file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace trireme {

struct TfTensor {
  DType dtype;
  std::vector<int64_t> shape;
  int32_t file = 0;  // of data-<file>-of-<n>
  uint64_t offset = 0, size = 0;
  uint32_t masked_crc = 0;
};

class TfCheckpoint {
 public:
  explicit TfCheckpoint(const std::filesystem::path& prefix);
  /// Tensors of types that weights have; optimizer slots are among them, other types (strings) are not.
  std::vector<std::string> names() const;
  const TfTensor* find(const std::string& name) const;  // null: not there
  /// The tensor's bytes after their checksum was compared; valid while the checkpoint lives.
  std::span<const std::byte> read(const std::string& name) const;
  std::string description() const;

 private:
  std::filesystem::path prefix_;
  std::map<std::string, TfTensor> tensors_;
  std::vector<MappedFile> files_;
};

/// CRC-32C (Castagnoli) and the masking that LevelDB's formats store it with.
uint32_t crc32c(std::span<const std::byte> bytes);
uint32_t masked_crc32c(std::span<const std::byte> bytes);

}  // namespace trireme
