#pragma once
// Packs files with gzip, and reads gzip or plain files as a stream.

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>

namespace trireme {

/// Packs `source` into `target`, which is replaced when it is complete. WriteError naming the path and the reason.
void gzip_file(const std::filesystem::path& source, const std::filesystem::path& target);

/// The unpacked bytes of a gzip file, or the bytes of any other file. DataError with file and offset if the packed
/// bytes are damaged or end early.
class GzipReader {
 public:
  explicit GzipReader(const std::filesystem::path& path);
  ~GzipReader();
  std::istream& stream();
  /// Unpacked bytes that the stream's reader has taken.
  uint64_t offset() const;
  /// Bytes of the file that have been read for them.
  uint64_t packed_offset() const;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::unique_ptr<std::istream> stream_;
};

}  // namespace trireme
