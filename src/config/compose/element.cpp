#include "conf_parts.h"

#include <fmt/format.h>

namespace trireme {

namespace {

class ElementReader {
 public:
  ElementReader(std::string_view text, const ConfPlace& place) : text_(text), place_(place) {}

  ConfNode whole() {
    ConfNode node = value("");
    skip_space();
    if (at_ < text_.size()) refuse_rest();
    return node;
  }

  std::vector<ConfNode> arguments() {
    std::vector<ConfNode> all;
    while (true) {
      all.push_back(value(","));
      skip_space();
      if (at_ >= text_.size()) return all;
      if (text_[at_] != ',') refuse_rest();
      ++at_;
    }
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  [[noreturn]] void refuse_rest() {
    const char c = text_[at_];
    if (c == ',')
      throw ElementError{
          "a comma outside of brackets: sweeps are not supported; write a list as [a,b], a text in quotes"};
    if (c == '(' || c == ')')
      throw ElementError{"functions are not supported; write a text with parentheses in quotes"};
    throw ElementError{fmt::format("'{}' does not belong here", text_.substr(at_))};
  }

  /// `stops`: characters that end a primitive, beside the end of the text.
  ConfNode value(std::string_view stops) {
    skip_space();
    if (at_ < text_.size()) {
      if (const char c = text_[at_]; c == '[' || c == '{') {
        if (++depth_ > 64) throw ElementError{"nested deeper than 64 levels"};
        ConfNode node = c == '[' ? list() : map();
        --depth_;
        return node;
      }
      if (text_[at_] == '\'' || text_[at_] == '"') return ConfNode(quoted(), place_);
    }
    bool is_plain = true;
    const std::string text = primitive(stops, is_plain);
    return is_plain && !text.empty() ? override_scalar(text, place_) : ConfNode(text, place_);
  }

  /// Whether another item follows after the one before; takes the comma, or the bracket that ends the container.
  bool goes_on(char open, char close, bool first) {
    skip_space();
    if (first) return at_ >= text_.size() || text_[at_] != close || (++at_, false);
    if (at_ >= text_.size()) throw ElementError{fmt::format("a {} is never closed", open)};
    const char c = text_[at_++];
    if (c != close && c != ',') throw ElementError{fmt::format("'{}' where , or {} belongs", c, close)};
    return c == ',';
  }

  ConfNode list() {
    ConfNode node(ConfNode::Kind::kList, place_);
    ++at_;
    while (goes_on('[', ']', node.items.empty())) node.items.push_back(value(",]"));
    return node;
  }

  ConfNode map() {
    ConfNode node(ConfNode::Kind::kMap, place_);
    ++at_;
    while (goes_on('{', '}', node.entries.empty())) {
      skip_space();
      bool is_plain = true;
      const std::string key =
          at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"') ? quoted() : primitive(":,}", is_plain);
      skip_space();
      if (key.empty() || at_ >= text_.size() || text_[at_] != ':') throw ElementError{"a {map} needs key:value"};
      ++at_;
      node.at_or_add(key) = value(",}");
    }
    return node;
  }

  std::string quoted() {
    const char quote = text_[at_++];
    std::string result;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == quote) ++at_;
      result += text_[at_++];
    }
    if (at_ >= text_.size()) throw ElementError{fmt::format("a quote ({}) is never closed", quote)};
    ++at_;
    return result;
  }

  std::string primitive(std::string_view stops, bool& is_plain) {
    std::string result;
    size_t kept = 0;  // without the blanks at the end
    while (at_ < text_.size() && stops.find(text_[at_]) == std::string_view::npos) {
      const char c = text_[at_];
      if (c == '$' && text_.substr(at_).starts_with("${")) {
        const size_t end = closing_brace(text_, at_);
        if (end == std::string_view::npos) throw ElementError{"an interpolation ${ is never closed"};
        result += text_.substr(at_, end + 1 - at_);
        at_ = end + 1;
        kept = result.size();
        is_plain = false;
        continue;
      }
      if (c == '\\' && at_ + 1 < text_.size() &&
          std::string_view("\\()[]{}:=, \t").find(text_[at_ + 1]) != std::string_view::npos) {
        is_plain = false;
        result += text_[at_ + 1];
        at_ += 2;
        kept = result.size();
        continue;
      }
      if (std::string_view(",()[]{}'\"").find(c) != std::string_view::npos) refuse_rest();
      result += c;
      ++at_;
      if (c != ' ' && c != '\t') kept = result.size();
    }
    result.resize(kept);
    return result;
  }

  std::string_view text_;
  ConfPlace place_;
  size_t at_ = 0;
  int depth_ = 0;  // of lists and maps
};

}  // namespace

ConfNode parse_element(std::string_view text, const ConfPlace& place) { return ElementReader(text, place).whole(); }

std::vector<ConfNode> parse_elements(std::string_view text, const ConfPlace& place) {
  return ElementReader(text, place).arguments();
}

size_t closing_brace(std::string_view text, size_t open) {
  size_t depth = 0;
  char quote = 0;
  for (size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

}  // namespace trireme
