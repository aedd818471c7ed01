#include "trireme/arrow/unpacked_file.h"

#include "trireme/formats/kineto/gzip.h"

#ifdef TRIREME_WITH_PARQUET
#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <arrow/io/compressed.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>
#include <fmt/format.h>

#include <streambuf>
#include <vector>
#endif

#include <optional>

namespace trireme {

#ifdef TRIREME_WITH_PARQUET

namespace {

std::optional<arrow::Compression::type> packing_of(std::string_view head) {
  if (head.starts_with("\x28\xb5\x2f\xfd")) return arrow::Compression::ZSTD;
  // A skippable frame, with which files of pzstd begin.
  if (head.size() > 4 && (head[0] & 0xf0) == 0x50 && head.substr(1).starts_with("\x2a\x4d\x18"))
    return arrow::Compression::ZSTD;
  if (head.size() > 4 && head.starts_with("BZh") && head.substr(4).starts_with("1AY&SY"))
    return arrow::Compression::BZ2;
  return std::nullopt;
}

}  // namespace

struct UnpackedFile::Buffer final : std::streambuf {
  Buffer(std::filesystem::path path, arrow::Compression::type packing)
      : path_(std::move(path)), bytes_(size_t{1} << 20) {
    file_ = value_of(arrow::io::ReadableFile::Open(path_.string()));
    codec_ = value_of(arrow::util::Codec::Create(packing));
    unpacked_ = value_of(arrow::io::CompressedInputStream::Make(codec_.get(), file_));
  }
  uint64_t packed_offset() const { return static_cast<uint64_t>(file_->Tell().ValueOr(0)); }

  std::istream stream{this};

 protected:
  int_type underflow() override {
    const int64_t count = value_of(unpacked_->Read(static_cast<int64_t>(bytes_.size()), bytes_.data()));
    if (count == 0) return traits_type::eof();
    read_ += count;
    setg(bytes_.data(), bytes_.data(), bytes_.data() + count);
    return traits_type::to_int_type(*gptr());
  }

 private:
  template <class T>
  T value_of(arrow::Result<T> result) const {
    if (!result.ok())
      throw DataError(
          fmt::format("{}: the packed bytes are damaged or end early after byte {} of the unpacked text: {}",
                      path_.string(), read_, result.status().message()));
    return std::move(result).ValueUnsafe();
  }

  const std::filesystem::path path_;
  std::vector<char> bytes_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::unique_ptr<arrow::util::Codec> codec_;  // outlives unpacked_
  std::shared_ptr<arrow::io::InputStream> unpacked_;
  int64_t read_ = 0;
};

UnpackedFile::UnpackedFile(const std::filesystem::path& path) {
  const MappedFile regular(path, ExitCode::kData);  // opening a FIFO would wait for its writer
  if (const auto packing = packing_of(file_head(path, 10)))
    buffer_ = std::make_unique<Buffer>(path, *packing);
  else
    gzip_ = std::make_unique<GzipReader>(path);
}

std::istream& UnpackedFile::stream() { return gzip_ ? gzip_->stream() : buffer_->stream; }
uint64_t UnpackedFile::packed_offset() const { return gzip_ ? gzip_->packed_offset() : buffer_->packed_offset(); }
bool is_packed(std::string_view head) { return head.starts_with("\x1f\x8b") || packing_of(head).has_value(); }

#else

struct UnpackedFile::Buffer {};

UnpackedFile::UnpackedFile(const std::filesystem::path& path) : gzip_(std::make_unique<GzipReader>(path)) {}
std::istream& UnpackedFile::stream() { return gzip_->stream(); }
uint64_t UnpackedFile::packed_offset() const { return gzip_->packed_offset(); }
bool is_packed(std::string_view head) { return head.starts_with("\x1f\x8b"); }

#endif

UnpackedFile::~UnpackedFile() = default;

}  // namespace trireme
