#pragma once
// Reads packed files of text as streams.

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>
#include <string_view>

namespace trireme {

class GzipReader;

/// Whether a file that begins with these bytes is packed with gzip, zstd or bzip2; gzip alone in a build without Arrow.
bool is_packed(std::string_view head);

/// The unpacked bytes of such a file, or the bytes of any other file. DataError with file and offset if the packed
/// bytes are damaged or end early: an exception of the stream's buffer.
class UnpackedFile {
 public:
  explicit UnpackedFile(const std::filesystem::path& path);
  ~UnpackedFile();
  std::istream& stream();
  /// Bytes of the file that have been read.
  uint64_t packed_offset() const;

 private:
  struct Buffer;
  // One of the two: gzip and plain files, or Arrow's codecs.
  std::unique_ptr<GzipReader> gzip_;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace trireme
