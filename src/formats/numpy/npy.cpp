#include "trireme/formats/numpy/npy.h"

#include "trireme/base/dtype.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

namespace trireme {

namespace {

/// Parses the header: a Python dict literal with three keys, whose values are a string, True/False and a tuple of
/// integers. Accepts nothing else.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::filesystem::path& path) : text_(text), path_(path) {}

  void parse(NpyHeader& header) {
    bool have_descr = false, have_order = false, have_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !have_descr) {
        have_descr = true;
        if (peek() != '\'' && peek() != '"') fail("the descr is not a plain type: structured arrays are not supported");
        header.descr = string();
      } else if (key == "fortran_order" && !have_order) {
        have_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !have_shape) {
        have_shape = true;
        header.shape = tuple();
      } else {
        fail(fmt::format("unexpected or repeated key '{}'", key));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("text after the dict");
    if (!have_descr || !have_order || !have_shape) fail("descr, fortran_order or shape is missing");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: damaged npy header at character {}: {}", path_.string(), at_, what));
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("expected a string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("unterminated string");
    const std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("expected True or False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      int64_t value = 0;
      skip_space();
      const size_t begin = at_;
      for (; at_ < text_.size() && is_digit(text_[at_]); ++at_)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value))
          fail("extent overflows");
      if (at_ == begin) fail("expected a non-negative integer");
      accept('L');  // Python 2 wrote 10L
      values.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  size_t at_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> file, const std::filesystem::path& path) {
  constexpr size_t kMaxHeader = 1 << 20;
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (file.size() < 10 || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    throw DataError(fmt::format("{} is not an npy file: it does not start with \\x93NUMPY", path.string()));
  NpyHeader header;
  header.major = std::to_integer<int>(file[6]);
  if (header.major < 1 || header.major > 3)
    throw DataError(fmt::format("{}: npy version {}.{} is not supported", path.string(), header.major,
                                std::to_integer<int>(file[7])));
  size_t length = 0, begin = 10;
  if (header.major == 1) {
    length = std::to_integer<size_t>(file[8]) | std::to_integer<size_t>(file[9]) << 8;
  } else {
    if (file.size() < 12) throw DataError(fmt::format("{}: truncated inside the npy header", path.string()));
    begin = 12;
    for (int i = 0; i < 4; ++i) length |= std::to_integer<size_t>(file[8 + i]) << (8 * i);
  }
  if (length > kMaxHeader || length > file.size() - begin)
    throw DataError(
        fmt::format("{}: the npy header should have {} bytes and the file has {}", path.string(), length, file.size()));
  header.data_offset = begin + length;
  HeaderText(as_text(file.subspan(begin, length)), path).parse(header);
  bool ok = false;
  checked_elements(header.shape, ok);
  if (!ok) throw DataError(fmt::format("{}: the array's shape overflows", path.string()));
  return header;
}

NpyIntegerArray::NpyIntegerArray(MappedFile file, const NpyHeader& header) : file_(std::move(file)) {
  const std::string name = file_.path().string();
  const std::string& descr = header.descr;
  const bool well_formed = descr.size() == 3 && (descr[1] == 'i' || descr[1] == 'u') &&
                           std::strchr("<>|=", descr[0]) != nullptr && std::strchr("1248", descr[2]) != nullptr;
  if (!well_formed)
    throw DataError(
        fmt::format("{} holds elements of type '{}'; token rows are integers (i1 to i8, u1 to u8)", name, descr));
  if (header.shape.size() != 2)
    throw DataError(
        fmt::format("{} has shape [{}]; token rows are a two-dimensional array [rows, seq_length]: reshape it in NumPy",
                    name, fmt::join(header.shape, ", ")));
  item_size_ = descr[2] - '0';
  is_signed_ = descr[1] == 'i';
  swap_ = descr[0] == '>' && item_size_ > 1;
  fortran_ = header.fortran_order;
  rows_ = header.shape[0];
  columns_ = header.shape[1];
  data_offset_ = header.data_offset;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows_ * columns_, int64_t{item_size_}, &bytes))
    throw DataError(fmt::format("{}: the array's size overflows", name));
  const auto there = static_cast<int64_t>(file_.bytes().size() - data_offset_);
  if (there != bytes)
    throw DataError(fmt::format("{} {}: [{}, {}] elements of {} bytes take {} bytes and {} are there", name,
                                there < bytes ? "is truncated" : "has trailing bytes", rows_, columns_, item_size_,
                                bytes, there));
}

void NpyIntegerArray::read_row(int64_t row, std::span<int64_t> out) const {
  TRIREME_CHECK(row >= 0 && row < rows_ && static_cast<int64_t>(out.size()) == columns_, "row ", row, " of ", rows_,
                " into ", out.size(), " places of ", columns_);
  const std::byte* data = file_.bytes().data() + data_offset_;
  const int64_t first = fortran_ ? row : row * columns_, stride = fortran_ ? rows_ : 1;
  for (int64_t column = 0; column < columns_; ++column) {
    std::byte raw[8] = {};
    const std::byte* element = data + (first + column * stride) * item_size_;
    for (int i = 0; i < item_size_; ++i) raw[i] = element[swap_ ? item_size_ - 1 - i : i];
    uint64_t value = std::bit_cast<uint64_t>(raw);
    if (is_signed_ && item_size_ < 8) {
      const int shift = 64 - 8 * item_size_;
      value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
    } else if (!is_signed_ && value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw DataError(fmt::format("{}: row {}, column {} (byte {}): value {} is not a token id", file_.path().string(),
                                  row, column, element - file_.bytes().data(), value));
    }
    out[static_cast<size_t>(column)] = static_cast<int64_t>(value);
  }
}

void write_npy_int32(const std::filesystem::path& path, std::span<const int32_t> values, int64_t rows,
                     int64_t columns) {
  TRIREME_CHECK(static_cast<int64_t>(values.size()) == rows * columns, values.size(), " values for [", rows, ", ",
                columns, "]");
  const int64_t shape[] = {rows, columns};
  AtomicFile file(path);
  file.write(npy_header_bytes("<i4", shape));
  file.write(values.data(), values.size_bytes());
  file.commit();
}

std::string npy_header_bytes(const std::string& descr, std::span<const int64_t> shape) {
  std::string extents;
  for (const int64_t extent : shape) extents += fmt::format("{}{}", extents.empty() ? "" : ", ", extent);
  if (shape.size() == 1) extents += ",";
  std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, extents);
  // Magic, version and length take 10 bytes; NumPy pads the whole to a multiple of 64 and ends with a newline.
  dictionary.resize(round_up(10 + dictionary.size() + 1, 64) - 11, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xFF);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

NpyValues::NpyValues(const std::filesystem::path& path) : file_(path, ExitCode::kData) {
  const NpyHeader header = parse_npy_header(file_.bytes(), path);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", path.string(), what)); };
  if (header.descr == "<i4")
    kind_ = Kind::kI4;
  else if (header.descr == "<u4")
    kind_ = Kind::kU4;
  else if (header.descr == "<i8")
    kind_ = Kind::kI8;
  else
    fail(fmt::format("elements of type '{}', expected <i4, <u4 or <i8", header.descr));
  if (header.fortran_order && header.shape.size() > 1) fail("the array is in Fortran order, expected C order");
  shape_ = header.shape;
  offset_ = header.data_offset;
  // The product of the shape does not overflow (parse_npy_header); times 8 it may.
  int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(size(), item_size(), &bytes);
  const auto there = static_cast<int64_t>(file_.bytes().size() - offset_);
  if (overflows || bytes != there)
    fail(fmt::format("{} elements of {} bytes are declared, and {} bytes are there", size(), item_size(), there));
}

int64_t NpyValues::size() const { return element_count(shape_); }

std::pair<int64_t, int64_t> NpyValues::range() const {
  const int64_t count = size();
  if (count == 0) return {0, -1};
  std::pair<int64_t, int64_t> range{at(0), at(0)};
  for (int64_t i = 1; i < count; ++i) {
    const int64_t value = at(i);
    range = {std::min(range.first, value), std::max(range.second, value)};
  }
  return range;
}

std::string NpyValues::name() const { return file_.path().empty() ? "in memory" : file_.path().string(); }

void NpyValues::save(const std::filesystem::path& path) const {
  AtomicFile file(path);
  const char* descr = kind_ == Kind::kI4 ? "<i4" : kind_ == Kind::kU4 ? "<u4" : "<i8";
  file.write(npy_header_bytes(descr, shape_));
  file.write(data(), static_cast<size_t>(size() * item_size()));
  file.commit();
}

}  // namespace trireme
