#include "trireme/formats/numpy/npy.h"

#include "trireme/base/dtype.h"

#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <optional>
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
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_)
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
  HeaderText({reinterpret_cast<const char*>(file.data()) + begin, length}, path).parse(header);
  bool ok = false;
  checked_elements(header.shape, ok);
  if (!ok) throw DataError(fmt::format("{}: the array's shape overflows", path.string()));
  return header;
}

}  // namespace trireme
