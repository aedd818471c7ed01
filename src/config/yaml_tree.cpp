#include "yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "trireme/base/text.h"

namespace trireme {

namespace {

constexpr size_t kMaxDepth = 16;

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, const Place& origin, Problems& problems, size_t max_values, bool aliases)
      : text_(text), origin_(origin), problems_(problems), max_values_(max_values), aliases_(aliases) {
    root_.place = origin;  // an empty document has no event of its own
  }

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw YAML::ParserException(mark, "a second document; only one is allowed");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node = make(YamlNode::Kind::kNull, mark, "", anchor);
    node.empty = !says_null(mark);
    finish(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (const auto found = anchored_.find(anchor); found != anchored_.end()) {
      count(values_of(found->second), mark);
      return finish(found->second);
    }
    YamlNode node = make(YamlNode::Kind::kNull, mark, "", 0);
    problems_.add(node.place, "an alias (*name); write the value out");
    is_alias_ = true;
    finish(std::move(node));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = make(YamlNode::Kind::kScalar, mark, tag, anchor);
    node.text = value;
    node.quoted = tag == "!";
    finish(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(make(YamlNode::Kind::kList, mark, tag, anchor), mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(make(YamlNode::Kind::kMap, mark, tag, anchor), mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    YamlNode node;
    std::optional<YamlEntry> entry;       // a key whose value comes next
    bool ignored = false;                 // that key has been refused
    std::map<std::string, size_t> lines;  // of the keys
    YAML::anchor_t anchor = 0;
  };

  /// Its values; a long text counts as several.
  static size_t values_of(const YamlNode& node) {
    size_t values = 1 + node.entries.size() + node.text.size() / 64;
    for (const YamlNode& item : node.items) values += values_of(item);
    for (const YamlEntry& entry : node.entries) values += values_of(entry.value);
    return values;
  }

  void count(size_t values, const YAML::Mark& mark) {
    nodes_ += values;
    if (nodes_ > max_values_) throw YAML::ParserException(mark, fmt::format("more than {} values", max_values_));
  }

  YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    count(1, mark);
    YamlNode node;
    node.kind = kind;
    node.place = place(mark);
    if (anchor != 0 && !aliases_) problems_.add(node.place, "an anchor (&name); aliases are not supported");
    if (!tag.empty() && tag != "?" && tag != "!")
      problems_.add(node.place, fmt::format("a tag '{}'; the type follows from the key", shown(tag)));
    return node;
  }

  // Told apart by the text: yaml-cpp reports "key:" and "key: null" alike.
  bool says_null(const YAML::Mark& mark) {
    if (mark.line < line_) line_ = 0, line_begin_ = 0;
    for (; line_ < mark.line && line_begin_ < text_.size(); ++line_)
      line_begin_ = std::min(text_.find('\n', line_begin_), text_.size() - 1) + 1;
    const size_t column = static_cast<size_t>(std::max(mark.column, 0));
    const std::string_view rest = text_.substr(std::min(line_begin_ + column, text_.size()));
    const std::string_view word = rest.substr(0, 4);
    return rest.starts_with('~') || word == "null" || word == "Null" || word == "NULL";
  }

  Place place(const YAML::Mark& mark) const {
    Place result = origin_;
    if (origin_.override_index < 0) {
      result.line = static_cast<size_t>(std::max(mark.line, 0)) + 1;
      result.column = static_cast<size_t>(std::max(mark.column, 0)) + 1;
    }
    return result;
  }

  void open(YamlNode node, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (frames_.size() >= kMaxDepth)
      throw YAML::ParserException(mark, fmt::format("nested more than {} levels deep", kMaxDepth));
    frames_.push_back({std::move(node), std::nullopt, false, {}, anchor});
  }

  void close() {
    YamlNode node = std::move(frames_.back().node);
    const YAML::anchor_t anchor = frames_.back().anchor;
    frames_.pop_back();
    finish(std::move(node), anchor);
  }

  void finish(YamlNode node, YAML::anchor_t anchor = 0) {
    if (anchor != 0 && aliases_) anchored_[anchor] = node;
    const bool is_alias = std::exchange(is_alias_, false);
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    if (frame.node.kind == YamlNode::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.entry) {
      start_entry(frame, node, is_alias);
    } else {
      if (node.empty) node.place = frame.entry->place;  // the parser's is that of what follows
      frame.entry->value = std::move(node);
      if (!frame.ignored && !is_alias) frame.node.entries.push_back(std::move(*frame.entry));
      frame.entry.reset();
    }
  }

  void start_entry(Frame& frame, const YamlNode& key, bool is_alias) {
    frame.entry = YamlEntry{key.text, key.place, {}};
    frame.ignored = true;
    if (is_alias) return;
    if (key.kind != YamlNode::Kind::kScalar) {
      problems_.add(key.place,
                    fmt::format("a key must be a word, not {}", key.kind == YamlNode::Kind::kList  ? "a list"
                                                                : key.kind == YamlNode::Kind::kMap ? "a mapping"
                                                                                                   : "nothing (null)"));
    } else if (key.text == "<<") {
      problems_.add(key.place, "a merge key (<<); write the keys out");
    } else if (const auto [first, fresh] = frame.lines.emplace(key.text, key.place.line); !fresh) {
      problems_.add(key.place, fmt::format("duplicate key '{}', first on line {}", shown(key.text), first->second));
    } else {
      frame.ignored = false;
    }
  }

  std::string_view text_;
  int line_ = 0;           // of the last null
  size_t line_begin_ = 0;  // its first byte
  Place origin_;
  Problems& problems_;
  YamlNode root_;
  std::vector<Frame> frames_;
  size_t nodes_ = 0, max_values_;
  int documents_ = 0;
  bool is_alias_ = false;  // a refused one
  bool aliases_;
  std::map<YAML::anchor_t, YamlNode> anchored_;
};

size_t skip_sign(std::string_view text) { return !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0; }

bool has_leading_zero(std::string_view text) {
  const size_t first = skip_sign(text);
  return text.size() > first + 1 && text[first] == '0' && is_digit(text[first + 1]);
}

bool looks_like_integer(std::string_view text) {
  const size_t first = skip_sign(text);
  return text.size() > first && std::all_of(text.begin() + static_cast<long>(first), text.end(), is_digit);
}

bool looks_like_number(std::string_view text) {
  size_t i = skip_sign(text), digits = 0;
  const auto eat_digits = [&] {
    for (; i < text.size() && is_digit(text[i]); ++i) ++digits;
  };
  eat_digits();
  if (i < text.size() && text[i] == '.') {
    ++i;
    eat_digits();
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    i += 1 + skip_sign(text.substr(i + 1));
    digits = 0;
    eat_digits();
    if (digits == 0) return false;
  }
  return i == text.size();
}

template <class Value>
std::optional<Value> number_of(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  return parse_whole<Value>(text);
}

std::string did_you_mean_this(const std::string& text) { return fmt::format(" Did you mean '{}'?", text); }

// The integer that `text` probably means.
std::string integer_hint(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  if (!looks_like_number(text)) return "";
  const auto value = number_of<double>(text);
  if (!value || std::abs(*value) > 9007199254740992.0 || *value != std::floor(*value)) return "";
  return did_you_mean_this(fmt::format("{:.0f}", *value));
}

}  // namespace

YamlEntry* YamlNode::find(std::string_view key) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const YamlEntry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

Plain plain_type(const YamlNode& node) {
  const std::string& text = node.text;
  if (node.quoted) return Plain::kString;
  for (const char* word : {"true", "True", "TRUE", "false", "False", "FALSE"})
    if (text == word) return Plain::kBool;
  for (const char* word : {"null", "Null", "NULL", "~", ""})
    if (text == word) return Plain::kNull;
  if (looks_like_integer(text)) return Plain::kInteger;
  if (looks_like_number(text)) return Plain::kNumber;
  return Plain::kString;
}

std::optional<int64_t> read_integer(const YamlNode& node, std::string& hint) {
  if (node.kind != YamlNode::Kind::kScalar) return std::nullopt;
  const std::string& text = node.text;
  const bool integer = looks_like_integer(text);
  if (node.quoted)
    hint = integer_hint(text).empty() ? "" : " Leave the quotes out.";
  else if (!integer)
    hint = integer_hint(text);
  else if (has_leading_zero(text))
    hint = " Leave the leading zero out.";
  else
    return number_of<int64_t>(text);
  return std::nullopt;
}

std::optional<double> read_number(const YamlNode& node, std::string& hint) {
  if (node.kind != YamlNode::Kind::kScalar || !looks_like_number(node.text)) return std::nullopt;
  if (node.quoted || has_leading_zero(node.text)) {
    hint = node.quoted ? " Leave the quotes out." : " Leave the leading zero out.";
    return std::nullopt;
  }
  const auto value = number_of<double>(node.text);
  if (!value) hint = " A double cannot hold that.";
  return value;
}

std::optional<bool> read_bool(const YamlNode& node, std::string& hint) {
  if (node.kind != YamlNode::Kind::kScalar) return std::nullopt;
  if (!node.quoted && (node.text == "true" || node.text == "false")) return node.text == "true";
  const std::string text = lower(node.text);
  for (const char* yes : {"true", "yes", "on", "y", "1"})
    if (text == yes) hint = did_you_mean_this("true");
  for (const char* no : {"false", "no", "off", "n", "0"})
    if (text == no) hint = did_you_mean_this("false");
  return std::nullopt;
}

std::string node_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return node.empty ? "empty" : "null";
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a mapping";
    case YamlNode::Kind::kScalar: break;
  }
  return node.quoted ? fmt::format("\"{}\"", shown(node.text)) : fmt::format("'{}'", shown(node.text));
}

void check_raw_text(std::string_view text, const Place& origin, Problems& problems, size_t max_values) {
  bool seen_utf8 = false, seen_control = false, seen_tab = false;
  size_t number = 0, openers = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto add = [&](size_t column, const std::string& what) {
      Place place = origin;
      if (origin.override_index < 0) {
        place.line = number;
        place.column = column + 1;
      }
      problems.add(place, what);
    };
    if (const size_t valid = valid_utf8_prefix(line); valid < line.size() && !seen_utf8) {
      seen_utf8 = true;
      add(valid, fmt::format("byte 0x{:02x} is not valid UTF-8", static_cast<unsigned char>(line[valid])));
    }
    const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; };
    const auto control = std::find_if(line.begin(), line.end(), is_control);
    if (control != line.end() && !seen_control) {
      seen_control = true;
      add(static_cast<size_t>(control - line.begin()),
          fmt::format("control byte 0x{:02x}{}", static_cast<unsigned char>(*control),
                      *control == '\0' ? " (NUL): is this a text file?" : ""));
    }
    // yaml-cpp looks ahead for the end of each opened list, at 240 bytes of memory an opener.
    const auto opens = [&](char c) { return (c == '[' || c == '{') && ++openers > max_values; };
    if (const auto one_more = std::find_if(line.begin(), line.end(), opens); one_more != line.end()) {
      add(static_cast<size_t>(one_more - line.begin()), fmt::format("more than {} opening brackets", max_values));
      return;
    }
    const size_t text_begin = std::min(line.find_first_not_of(" \t"), line.size());
    const size_t tab = line.substr(0, text_begin).find('\t');
    if (tab != std::string_view::npos && text_begin < line.size() && !seen_tab) {
      seen_tab = true;
      add(tab, "a tab in the indentation: use spaces");
    }
  }
}

YamlNode parse_yaml(const std::string& text, const Place& origin, Problems& problems, size_t max_values, bool aliases) {
  TreeBuilder builder(text, origin, problems, max_values, aliases);
  try {
    // yaml-cpp takes the end of the text for a missing closing quote; the end marker inside a quoted scalar is an
    // error to it.
    std::istringstream stream(text + "\n...\n");
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
    return builder.take();
  } catch (const YAML::Exception& error) {
    Place place = origin;
    if (origin.override_index < 0 && error.mark.line >= 0) {
      place.line = static_cast<size_t>(error.mark.line) + 1;
      place.column = static_cast<size_t>(std::max(error.mark.column, 0)) + 1;
      const auto breaks = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
      const size_t last_line = breaks + (text.ends_with('\n') ? 0 : 1);
      if (place.line > last_line) {  // at the end marker, which nobody wrote
        place.line = std::max<size_t>(last_line, 1);
        place.column = 1;
      }
    }
    const bool open_quote = error.msg == YAML::ErrorMsg::DOC_IN_SCALAR;
    problems.add(place, "not valid YAML here: " + (open_quote ? "a quoted text is never closed" : error.msg));
    YamlNode broken;
    broken.place = place;
    return broken;
  }
}

}  // namespace trireme
