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

namespace trireme {

#ifdef TRIREME_WITH_PARQUET

namespace {

arrow::Compression::type packing_of(std::string_view head) {
  if (head.starts_with("\x1f\x8b")) return arrow::Compression::GZIP;
  if (head.starts_with("\x28\xb5\x2f\xfd")) return arrow::Compression::ZSTD;
  if (head.size() >= 10 && head.starts_with("BZh") && head.substr(4).starts_with("1AY&SY"))
    return arrow::Compression::BZ2;
  return arrow::Compression::UNCOMPRESSED;
}

}  // namespace

struct UnpackedFile::State final : std::streambuf {
  explicit State(std::filesystem::path path) : path_(std::move(path)), bytes_(size_t{1} << 20) {
    const MappedFile regular(path_, ExitCode::kData);  // Arrow would wait for the writer of a FIFO
    file_ = value_of(arrow::io::ReadableFile::Open(path_.string()));
    stream_ = file_;
    const auto packing = packing_of(file_head(path_, 10));
    if (packing == arrow::Compression::UNCOMPRESSED) return;
    codec_ = value_of(arrow::util::Codec::Create(packing));
    stream_ = value_of(arrow::io::CompressedInputStream::Make(codec_.get(), file_));
  }
  uint64_t packed_offset() const { return static_cast<uint64_t>(file_->Tell().ValueOr(0)); }

  std::istream stream{this};

 protected:
  int_type underflow() override {
    const int64_t count = value_of(stream_->Read(static_cast<int64_t>(bytes_.size()), bytes_.data()));
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
          fmt::format("{}: the packed bytes ({}) are damaged or end early after byte {} of the unpacked text: {}",
                      path_.string(), codec_ ? codec_->name() : "none", read_, result.status().message()));
    return std::move(result).ValueUnsafe();
  }

  const std::filesystem::path path_;
  std::vector<char> bytes_;
  std::shared_ptr<arrow::io::ReadableFile> file_;
  std::unique_ptr<arrow::util::Codec> codec_;  // outlives stream_
  std::shared_ptr<arrow::io::InputStream> stream_;
  int64_t read_ = 0;
};

std::istream& UnpackedFile::stream() { return state_->stream; }
bool is_packed(std::string_view head) { return packing_of(head) != arrow::Compression::UNCOMPRESSED; }

#else

struct UnpackedFile::State : GzipReader {
  using GzipReader::GzipReader;
};

std::istream& UnpackedFile::stream() { return state_->stream(); }
bool is_packed(std::string_view head) { return head.starts_with("\x1f\x8b"); }

#endif

UnpackedFile::UnpackedFile(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
UnpackedFile::~UnpackedFile() = default;
uint64_t UnpackedFile::packed_offset() const { return state_->packed_offset(); }

}  // namespace trireme
