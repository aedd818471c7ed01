#include "trireme/formats/kineto/gzip.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <streambuf>
#include <vector>

namespace trireme {

namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr int kGzipWindow = 15 + 16;  // 32 KiB, gzip header
constexpr int kFastLevel = 1;         // traces pack about 15:1 at this level already

/// Deflate state, ended when it leaves the scope.
struct Deflater {
  z_stream stream{};
  Deflater() {
    TRIREME_CHECK(deflateInit2(&stream, kFastLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK,
                  "deflateInit2 failed");
  }
  ~Deflater() { (void)deflateEnd(&stream); }
};

}  // namespace

void gzip_file(const std::filesystem::path& source, const std::filesystem::path& target) {
  std::ifstream in(source, std::ios::binary);
  if (!in) throw WriteError(fmt::format("cannot read {}: {}", source.string(), std::strerror(errno)));
  AtomicFile out(target);
  Deflater deflater;
  std::vector<char> plain(kChunk), packed(kChunk);
  for (bool last = false; !last;) {
    in.read(plain.data(), static_cast<std::streamsize>(plain.size()));
    if (in.bad()) throw WriteError(fmt::format("cannot read {}: {}", source.string(), std::strerror(errno)));
    last = in.eof();
    deflater.stream.next_in = reinterpret_cast<Bytef*>(plain.data());
    deflater.stream.avail_in = static_cast<uInt>(in.gcount());
    do {
      deflater.stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      deflater.stream.avail_out = static_cast<uInt>(packed.size());
      (void)deflate(&deflater.stream, last ? Z_FINISH : Z_NO_FLUSH);
      out.write(packed.data(), packed.size() - deflater.stream.avail_out);
    } while (deflater.stream.avail_out == 0);
  }
  out.commit();
}

class GzipReader::Buffer final : public std::streambuf {
 public:
  explicit Buffer(const std::filesystem::path& path) : path_(path), bytes_(kChunk) {
    if (!std::filesystem::is_regular_file(path)) throw DataError(fmt::format("{} is not a file", path.string()));
    file_ = gzopen(path.c_str(), "rb");
    if (file_ == nullptr) throw DataError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
    (void)gzbuffer(file_, kChunk);
  }
  ~Buffer() override { (void)gzclose_r(file_); }
  uint64_t packed_offset() const { return static_cast<uint64_t>(std::max<z_off_t>(gzoffset(file_), 0)); }
  uint64_t offset() const { return read_ - static_cast<uint64_t>(egptr() - gptr()); }

 protected:
  int_type underflow() override {
    const int count = gzread(file_, bytes_.data(), static_cast<unsigned>(bytes_.size()));
    int status = Z_OK;
    const char* reason = gzerror(file_, &status);
    // A packed file that ends early gives its bytes first and this status with them.
    if (count < 0 || (status != Z_OK && status != Z_STREAM_END))
      throw DataError(
          fmt::format("{}: the packed bytes are damaged or end early after byte {} of the unpacked text: {}",
                      path_.string(), read_ + static_cast<uint64_t>(std::max(count, 0)), reason));
    if (count == 0) return traits_type::eof();
    read_ += static_cast<uint64_t>(count);
    setg(bytes_.data(), bytes_.data(), bytes_.data() + count);
    return traits_type::to_int_type(*gptr());
  }

 private:
  std::filesystem::path path_;
  std::vector<char> bytes_;
  gzFile file_ = nullptr;
  uint64_t read_ = 0;
};

GzipReader::GzipReader(const std::filesystem::path& path)
    : buffer_(std::make_unique<Buffer>(path)), stream_(std::make_unique<std::istream>(buffer_.get())) {}
GzipReader::~GzipReader() = default;
std::istream& GzipReader::stream() { return *stream_; }
uint64_t GzipReader::packed_offset() const { return buffer_->packed_offset(); }
uint64_t GzipReader::offset() const { return buffer_->offset(); }

}  // namespace trireme
