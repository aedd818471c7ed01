#include "data/chat/jinja_syntax.h"

#include "data/chat/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

namespace trireme::jinja {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::kEnd, "", source_.size());
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(size_t offset, std::string what) const { throw TemplateError{offset, std::move(what)}; }
  void add(TokenKind kind, std::string_view text, size_t offset) {
    tokens_.push_back({.kind = kind, .text = std::string(text), .offset = offset});
  }
  std::string_view rest() const { return source_.substr(at_); }
  void skip_space() { at_ = source_.size() - strip_left(rest()).size(); }

  /// Text up to the next delimiter, and what the delimiter opens.
  void root() {
    size_t open = at_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= source_.size()) {
        data(rest(), '\0', false);
        at_ = source_.size();
        return;
      }
      const char next = source_[open + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    data(source_.substr(at_, open - at_), has_sign ? sign : '\0', kind != '{');
    at_ = open + 2 + (has_sign ? 1 : 0);
    if (kind == '#') {
      comment(open);
    } else if (kind == '%' && !raw(open)) {
      add(TokenKind::kBlockBegin, "{%", open);
      inside(open, '%', TokenKind::kBlockEnd);
    } else if (kind == '{') {
      add(TokenKind::kVariableBegin, "{{", open);
      inside(open, '}', TokenKind::kVariableEnd);
    }
  }

  /// `sign`: of the delimiter after the text. lstrip_blocks takes the white space of the line before a block away.
  void data(std::string_view text, char sign, bool before_block) {
    const size_t offset = at_;
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && before_block) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && strip_left(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, text, offset);
  }

  /// After the end of a block, comment or variable: what of the following text it takes along.
  void after_end(size_t begin, bool minus, bool trims) {
    if (minus)
      skip_space();
    else if (trims && rest().starts_with('\n'))
      ++at_;
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void comment(size_t open) {
    const size_t close = source_.find("#}", at_);
    if (close == std::string_view::npos) fail(open, "this comment has no end: #} is missing");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    at_ = close + 2;
    after_end(open, sign == '-', sign != '+');
  }

  /// {% raw %} … {% endraw %}; false if the block at `open` is another one.
  bool raw(size_t open) {
    const auto tag = [&](size_t begin, std::string_view word, bool& minus, bool& plus) -> size_t {
      std::string_view text = strip_left(source_.substr(begin));
      if (!text.starts_with(word)) return 0;
      text = strip_left(text.substr(word.size()));
      minus = text.starts_with('-');
      plus = text.starts_with('+') && word == "endraw";
      if (minus || plus) text.remove_prefix(1);
      return text.starts_with("%}") ? source_.size() - text.size() + 2 : 0;
    };
    bool minus = false, plus = false;
    size_t end = tag(at_, "raw", minus, plus);
    if (end == 0) return false;
    at_ = end;
    if (minus) skip_space();
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t close = at_;; close += 2) {
      close = source_.find("{%", close);
      if (close == std::string_view::npos) fail(open, "this raw block has no end: {% endraw %} is missing");
      const char sign = close + 2 < source_.size() ? source_[close + 2] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      end = tag(close + 2 + (has_sign ? 1 : 0), "endraw", minus, plus);
      if (end == 0) continue;
      data(source_.substr(at_, close - at_), has_sign ? sign : '\0', true);
      at_ = end;
      after_end(close, minus, !plus);
      return true;
    }
  }

  /// Tokens up to the end of a block ('%') or a variable ('}').
  void inside(size_t open, char end, TokenKind end_kind) {
    std::string brackets;
    for (;;) {
      if (brackets.empty()) {
        const std::string_view text = rest();
        const bool minus = text.starts_with('-'), plus = text.starts_with('+') && end == '%';
        const size_t skip = minus || plus ? 1 : 0;
        if (text.size() >= skip + 2 && text[skip] == end && text[skip + 1] == '}') {
          add(end_kind, text.substr(0, skip + 2), at_);
          const size_t begin = at_;
          at_ += skip + 2;
          after_end(begin, minus, end == '%' && !plus);
          return;
        }
      }
      if (strip_left(rest()).size() < rest().size()) {
        skip_space();
        continue;
      }
      if (at_ >= source_.size())
        fail(open, fmt::format("this {} has no end: {}}} is missing", end == '%' ? "block" : "expression", end));
      token(brackets);
    }
  }

  void token(std::string& brackets) {
    const size_t begin = at_;
    const char c = source_[at_];
    if (is_name_start(c)) {
      while (at_ < source_.size() && (is_name_start(source_[at_]) || is_digit(source_[at_]))) ++at_;
      if (at_ < source_.size() && static_cast<unsigned char>(source_[at_]) >= 0x80)
        fail(begin, "names beyond ASCII are not supported");
      add(TokenKind::kName, source_.substr(begin, at_ - begin), begin);
      return;
    }
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return quoted(c);
    static constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "!"};
    const auto* const found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view op) { return rest().starts_with(op); });
    if (found == kOperators.end() || *found == "!" || *found == ";")
      fail(begin, fmt::format("the character '{}' has no meaning here",
                              rest().substr(0, std::max<size_t>(1, byte_offset(rest(), 1)))));
    if (*found == "(" || *found == "[" || *found == "{") {
      brackets += *found == "(" ? ')' : *found == "[" ? ']' : '}';
      if (brackets.size() > 200) fail(begin, "brackets nested deeper than 200");
    } else if (*found == ")" || *found == "]" || *found == "}") {
      if (brackets.empty() || brackets.back() != found->front())
        fail(begin, fmt::format("'{}' closes no bracket", *found));
      brackets.pop_back();
    }
    add(TokenKind::kOperator, *found, begin);
    at_ += found->size();
  }

  void number() {
    const size_t begin = at_;
    std::string digits;
    const auto run = [&] {
      while (at_ < source_.size() && (is_digit(source_[at_]) || (source_[at_] == '_' && at_ + 1 < source_.size() &&
                                                                 is_digit(source_[at_ + 1])))) {
        if (source_[at_] != '_') digits += source_[at_];
        ++at_;
      }
    };
    const auto peek = [&](size_t ahead) { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; };
    run();
    if (digits == "0" && is_name_start(peek(0)) && peek(0) != 'e')
      fail(begin, "numbers of base 2, 8 and 16 are not supported");
    bool real = false;
    if (peek(0) == '.' && is_digit(peek(1))) {
      real = true;
      digits += '.';
      ++at_;
      run();
    }
    if ((peek(0) == 'e' || peek(0) == 'E') &&
        (is_digit(peek(1)) || ((peek(1) == '+' || peek(1) == '-') && is_digit(peek(2))))) {
      real = true;
      digits += 'e';
      digits += peek(1);
      at_ += 2;
      run();
    }
    Token token{.kind = real ? TokenKind::kFloat : TokenKind::kInteger, .text = digits, .offset = begin};
    if (real) {
      token.real = std::strtod(digits.c_str(), nullptr);
    } else {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
      if (error != std::errc()) fail(begin, fmt::format("the number {} is too large", digits));
      if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
        fail(begin, fmt::format("the number {} begins with 0", digits));
    }
    tokens_.push_back(std::move(token));
  }

  void quoted(char quote) {
    const size_t begin = at_++;
    std::string value;
    for (;; ++at_) {
      if (at_ >= source_.size()) fail(begin, fmt::format("this text has no end: {} is missing", quote));
      if (source_[at_] == quote) break;
      if (source_[at_] == '\\' && at_ + 1 < source_.size())
        escape(value);
      else
        value += source_[at_];
    }
    ++at_;
    add(TokenKind::kText, value, begin);
  }

  /// Python's escapes of a str literal; an unknown one stays as it is. Leaves at_ on the last character.
  void escape(std::string& value) {
    const size_t begin = at_++;
    const char c = source_[at_];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      value += kTo[known];
    } else if (c == '\n') {
      return;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string_view digits = source_.substr(at_ + 1, length);
      const auto code = parse_whole<uint32_t>(digits, 16);
      if (digits.size() != length || !code || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000))
        fail(begin, fmt::format("'\\{}{}' is not a character", c, digits));
      append_utf8(value, *code);
      at_ += length;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t count = 0;
      for (; count < 3 && at_ + count < source_.size() && source_[at_ + count] >= '0' && source_[at_ + count] <= '7';
           ++count)
        code = code * 8 + static_cast<uint32_t>(source_[at_ + count] - '0');
      append_utf8(value, code);
      at_ += count - 1;
    } else if (c == 'N') {
      fail(begin, "characters by name, '\\N{…}', are not supported");
    } else {
      value += '\\';
      value += c;
    }
  }

  std::string_view source_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the last delimiter ended with a line end
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalised_source(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::vector<Token> tokenise(std::string_view source) {
  if (const size_t good = valid_utf8_prefix(source); good < source.size())
    throw TemplateError{good, "not UTF-8 from here on"};
  return Lexer(source).run();
}

}  // namespace trireme::jinja
