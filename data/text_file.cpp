#include "data/text_file.h"

#include "trireme/arrow/arrow_table.h"
#include "trireme/arrow/parquet.h"
#include "trireme/arrow/unpacked_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const Document&)>;
using Json = nlohmann::ordered_json;

/// White space, or a byte of a byte order mark, before JSON.
bool is_skipped(char c) { return std::string_view(" \t\r\n\xEF\xBB\xBF").find(c) != std::string_view::npos; }

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

/// Lines of a text, without their ends; begin() and end() are byte offsets.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) end_ = 3;  // skips a byte order mark
  }
  bool next() {
    if (end_ >= text_.size()) return false;
    begin_ = end_;
    const size_t newline = std::min(text_.find('\n', begin_), text_.size());
    line_ = text_.substr(begin_, newline - begin_);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    end_ = newline + 1;
    ++number_;
    return true;
  }
  /// Goes on to the next line that is not blank.
  bool next_filled() {
    while (next())
      if (!is_blank(line_)) return true;
    return false;
  }
  std::string_view line() const { return line_; }
  int64_t number() const { return number_; }
  size_t begin() const { return begin_; }
  size_t end() const { return std::min(end_, text_.size()); }

 private:
  std::string_view text_, line_;
  size_t begin_ = 0, end_ = 0;
  int64_t number_ = 0;
};

void visit_paragraphs(std::string_view text, const Visit& visit) {
  LineReader lines(text);
  size_t begin = 0, end = 0;
  int64_t number = 0;
  const auto flush = [&] {
    if (number != 0) visit({text.substr(begin, end - begin), number, false, static_cast<double>(lines.end())});
    number = 0;
  };
  while (lines.next()) {
    if (is_blank(lines.line())) {
      flush();
      continue;
    }
    if (number == 0) {
      begin = lines.begin();
      number = lines.number();
    }
    end = lines.begin() + lines.line().size();
  }
  flush();
}

void visit_text(std::string_view text, DocumentUnit unit, const Visit& visit) {
  if (unit == DocumentUnit::kParagraph) {
    visit_paragraphs(text, visit);
  } else if (unit == DocumentUnit::kLine) {
    for (LineReader lines(text); lines.next();)
      visit({lines.line(), lines.number(), false, static_cast<double>(lines.end())});
  } else {
    std::string_view whole = text;
    if (whole.starts_with("\xEF\xBB\xBF")) whole.remove_prefix(3);
    while (!whole.empty() && (whole.back() == '\n' || whole.back() == '\r')) whole.remove_suffix(1);
    visit({whole, 1, false, static_cast<double>(text.size())});
  }
}

constexpr size_t kMaxUnpacked = size_t{1} << 30;  // of a line; of a file unless it is packed 200:1 at most

/// std::getline() of a packed file, with a limit, and of the first lines of any .json file, which has none.
bool next_line(const fs::path& path, UnpackedFile& file, std::string& line) {
  std::istream& stream = file.stream();
  stream.exceptions(std::ios::badbit);  // passes on what the buffer throws
  line.clear();
  for (char part[1 << 14]; stream.getline(part, sizeof part), stream.gcount() > 0; stream.clear()) {
    const bool ends = !stream.fail() && !stream.eof();
    line.append(part, static_cast<size_t>(stream.gcount()) - (ends ? 1 : 0));
    if (line.size() > kMaxUnpacked && line.size() > file.packed_offset())
      throw DataError(path.string() + ": unpacks to a line of more than 1 GiB");
    if (!stream.fail()) return true;
  }
  return !line.empty();
}

/// Invalid UTF-8, given for a text without a UTF-8 form: the caller counts and drops it.
constexpr std::string_view kNotUtf8 = "\xFF";

/// The text of an object, as json_line_text(). `other`: as in PythonJson.
std::optional<std::string> object_text(const nlohmann::json& object, const nlohmann::json& other,
                                       const std::string& field, const std::string& place) {
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  if (!object.is_object())
    fail(fmt::format("a JSON {}, expected an object with the field '{}'", object.type_name(), field));
  const auto found = object.find(field);
  if (found == object.end()) {
    const std::vector<std::string> names = keys_of(object.items());
    const std::string meant = did_you_mean(field, names);
    fail(fmt::format("no field '{}' (name it with --field, or data.column of a run); the object has: {}.{}", field,
                     join(names, ", "),
                     meant.empty() ? row_tool_hint([&](const char* each) { return object.contains(each); }) : meant));
  }
  if (found->is_null()) return "";
  if (!found->is_string())
    fail(fmt::format("field '{}' is a JSON {}, expected a string{}", field, found->type_name(),
                     found->is_array() && !found->empty() && found->front().is_object()
                         ? "; conversations become rows with `trireme data chat`"
                         : ""));
  // A lone surrogate is in this field exactly if the text depends on the replacement.
  if (!other.is_null() && other.at(field) != *found) return std::nullopt;
  return found->get<std::string>();
}

void visit_json_list(const fs::path& path, const std::string& field, const Visit& visit) {
  const TextBytes bytes(path);
  std::string objects;
  const PythonJson list = parse_python_json(as_list(bytes.text(), objects), path.string());
  const size_t size = list.value.size();
  for (size_t i = 0; i < size; ++i) {
    const auto text = object_text(list.value[i], list.other.is_null() ? list.other : list.other[i], field,
                                  fmt::format("{}: item {}", path.string(), i));
    visit({text ? std::string_view(*text) : kNotUtf8, static_cast<int64_t>(i), true,
           bytes.bytes_done(bytes.text().size() * (i + 1) / size)});
  }
}

void visit_json_lines(const fs::path& path, const std::string& field, const Visit& visit) {
  for_each_line(path, [&](std::string_view line, int64_t number, double done) {
    // A line that is not UTF-8 is passed on unchanged: the caller counts and drops such documents.
    if (!is_valid_utf8(line)) return visit({line, number, false, done});
    const auto value = json_line_text(path, number, line, field);
    visit({value ? std::string_view(*value) : kNotUtf8, number, false, done});
  });
}

class ArrowTexts final : public TextFile {
 public:
  ArrowTexts(fs::path path, const std::string& column) : path_(std::move(path)), table_(path_, column) {}
  int64_t size() const override { return table_.documents(); }
  std::string text(int64_t index) const override {
    std::string text;
    table_.read_text(index, text);
    return text;
  }
  std::string place(int64_t index) const override { return fmt::format("{}: {}", path_.string(), table_.place(index)); }
  std::string kind() const override { return "Arrow text"; }

 private:
  const fs::path path_;
  ArrowTable table_;
};

class ParquetTexts final : public TextFile {
 public:
  ParquetTexts(const fs::path& path, const std::string& column, std::shared_ptr<TextGroups> groups)
      : path_(path), rows_(ParquetFile(path), column, &ParquetFile::read_text_group, std::move(groups)) {}
  int64_t size() const override { return rows_.size(); }
  std::string text(int64_t index) const override { return rows_.at(index); }
  std::string place(int64_t index) const override { return fmt::format("{}: row {}", path_.string(), index); }
  std::string kind() const override { return "Parquet text"; }

 private:
  const fs::path path_;
  const ParquetRows<std::string> rows_;
};

/// The place of every kStep-th line is kept.
class JsonLines final : public TextFile {
 public:
  JsonLines(fs::path path, std::string column)
      : path_(std::move(path)), column_(std::move(column)), file_(path_, ExitCode::kData) {
    refuse_non_text(path_, file_.text());
    if (is_one_json(path_))
      throw DataError(path_.string() +
                      ": a JSON list, or objects over several lines, whose items cannot be read in any order: write "
                      "one object a line into a .jsonl "
                      "file, or make rows with `trireme data pack`");
    LineReader lines(file_.text());
    for (LineReader before = lines; lines.next_filled(); before = lines)
      if (size_++ % kStep == 0) index_.push_back(before);
  }
  int64_t size() const override { return size_; }
  std::string text(int64_t index) const override {
    const LineReader found = find(index);
    if (!is_valid_utf8(found.line())) return std::string(found.line());
    return json_line_text(path_, found.number(), found.line(), column_).value_or(std::string(kNotUtf8));
  }
  std::string place(int64_t index) const override { return fmt::format("{}:{}", path_.string(), find(index).number()); }
  std::string kind() const override { return "JSON lines"; }

 private:
  static constexpr int64_t kStep = 64;
  LineReader find(int64_t index) const {
    TRIREME_CHECK(index >= 0 && index < size_, "line ", index, " of ", size_);
    LineReader lines = index_[static_cast<size_t>(index / kStep)];
    for (int64_t i = index % kStep; i >= 0; --i) lines.next_filled();
    return lines;
  }
  const fs::path path_;
  const std::string column_;
  MappedFile file_;
  int64_t size_ = 0;
  std::vector<LineReader> index_;
};

}  // namespace

const RowTool* find_row_tool(const std::function<bool(const char* field)>& has) {
  static constexpr const char* kRename = ", once they are named instruction and output, with history and system";
  static constexpr RowTool kTools[] = {{"rejected_response", "messages", "pairs of answers", "preference",
                                        ", once the last of the messages is 'chosen' and rejected_response "
                                        "'rejected', each as {role, content}"},
                                       {"rejected_messages", "messages", "pairs of answers", "preference",
                                        ", once messages is named chosen and rejected_messages rejected"},
                                       {"messages", "messages", "conversations", "chat"},
                                       {"conversations", "conversations", "conversations", "chat"},
                                       {"chosen", "rejected", "pairs of answers", "preference"},
                                       {"label", "completion", "judged answers", "preference --unpaired"},
                                       {"completion", "prompt", "prompts and completions", "chat"},
                                       {"instruction", "output", "instructions", "chat"},
                                       {"response", "response", "questions and answers", "chat", kRename},
                                       {"answer", "answer", "questions and answers", "chat", kRename}};
  const auto* found =
      std::ranges::find_if(kTools, [&](const RowTool& tool) { return has(tool.field) && has(tool.beside); });
  return found == std::end(kTools) ? nullptr : found;
}

std::string row_tool_hint(const std::function<bool(const char* field)>& has) {
  const RowTool* tool = find_row_tool(has);
  return tool ? fmt::format(" `trireme data {}` makes rows of {}{}.", tool->name, tool->what, tool->once) : "";
}

std::optional<std::string> json_line_text(const fs::path& path, int64_t number, std::string_view line,
                                          const std::string& field) {
  const std::string place = fmt::format("{}:{}", path.string(), number);
  const PythonJson json = parse_python_json(line, place);
  return object_text(json.value, json.other, field, place);
}

std::string archive_of(std::string_view bytes) {
  const bool zip = bytes.starts_with("PK\x03\x04");
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  // The name of a zip archive's first file; torch.save before 1.6 wrote pickles.
  const bool named = zip && bytes.size() > 30;
  const std::string_view name = named ? bytes.substr(30, byte(26) | byte(27) << 8) : std::string_view();
  if (name.ends_with("/data.pkl") ||
      bytes.starts_with(std::string_view("\x80\x02\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14)))
    return "an archive of torch.save, a pickle, which could run code and is never opened: save ids of tokens with "
           "numpy.save as an integer array [N, S], and texts as plain text, JSON lines, Parquet or Arrow";
  if (zip) return "a zip archive (perhaps an .npz): unpack it first";
  if (bytes.starts_with("\x1f\x8b")) return "a gzip archive: unpack it first";
  if (bytes.size() > 4 && bytes.starts_with("BZh") && bytes.substr(4).starts_with("1AY&SY"))
    return "a bzip2 archive: unpack it first";
  if (bytes.starts_with(std::string_view("\xFD\x37zXZ\0", 6))) return "an xz archive: unpack it first";
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return "a zstd archive: unpack it first";
  return "";
}

void refuse_non_text(const fs::path& path, std::string_view text) {
  if (const std::string archive = archive_of(text.substr(0, kArchiveHead)); !archive.empty())
    throw DataError(fmt::format("{}: {}", path.string(), archive));
  const std::string_view head = text.substr(0, 64);
  const bool marked = head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF") ||
                      head.starts_with(std::string_view("\0\0\xFE\xFF", 4));
  // Without a byte order mark: in UTF-16 every second byte of Latin text is zero; UTF-8 text has no zeros.
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const bool looks_wide = head.size() >= 4 && (zeros[0] >= head.size() / 2 || zeros[1] >= head.size() / 2);
  if (!marked && !looks_wide) return;
  throw DataError(fmt::format(
      "{}: the text is UTF-16 or UTF-32, only UTF-8 is read: convert it with iconv -f {} -t UTF-8", path.string(),
      head.substr(0, 4).find(std::string_view("\0\0", 2)) != std::string_view::npos ? "UTF-32" : "UTF-16"));
}

std::string document_place(const fs::path& path, const Document& document) {
  return document.is_row ? fmt::format("{}: {} {}", path.string(), is_json(path) ? "item" : "row", document.number)
                         : fmt::format("{}:{}", path.string(), document.number);
}

std::string unpacked_extension(const fs::path& path) {
  const std::string extension = lower(path.extension().string());
  const bool packed = extension == ".gz" || extension == ".gzip" || extension == ".bgz" || extension == ".zst" ||
                      extension == ".zstd" || extension == ".bz2";
  return packed ? lower(path.stem().extension().string()) : extension;
}

bool is_json(const fs::path& path) {
  const std::string extension = unpacked_extension(path);
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

bool is_one_json(const fs::path& path) {
  if (unpacked_extension(path) != ".json") return false;
  UnpackedFile reader(path);
  char c = ' ';
  while (is_skipped(c) && reader.stream().get(c)) {
  }
  if (c != '{') return c == '[';
  reader.stream().unget();
  std::string line, next;
  if (!next_line(path, reader, line) || !first_object(line).empty()) return false;
  while (next_line(path, reader, next) && is_blank(next)) {
  }
  return !next.starts_with('{');  // of lines, whose first one is damaged
}

TextKind text_kind(const fs::path& path, const std::string& field) {
  const std::string extension = lower(path.extension().string()), unpacked = unpacked_extension(path);
  if (looks_like_parquet(path)) return TextKind::kParquet;
  if (looks_like_arrow(path)) return TextKind::kArrow;
  if (extension == ".parquet") return TextKind::kParquet;
  if (extension == ".arrow") return TextKind::kArrow;
  if (is_json(path)) return TextKind::kJson;
  if (unpacked == ".csv" || unpacked == ".tsv")
    throw DataError(
        fmt::format("{0}: CSV, which is not read: make JSON lines of it in Python: pandas.read_csv('{0}'{1}).to_json("
                    "'{2}.jsonl', orient='records', lines=True)",
                    path.string(), unpacked == ".tsv" ? ", sep='\\t'" : "", path.stem().string()));
  if (std::error_code error; !field.empty() && fs::exists(path, error))
    throw ConfigError(
        fmt::format("--field {}: names a field of JSON lines or a column of Parquet and Arrow, and {} is plain text: "
                    "leave it out, or name a file of JSON lines .jsonl",
                    field, path.string()));
  return TextKind::kPlain;
}

TextBytes::TextBytes(const fs::path& path) : file_(path, ExitCode::kData) {
  if (is_packed(file_.text())) {
    UnpackedFile reader(path);
    std::vector<char> part(size_t{1} << 20);
    unpacked_.emplace();
    while (const auto count = reader.stream().rdbuf()->sgetn(part.data(), static_cast<std::streamsize>(part.size()))) {
      unpacked_->append(part.data(), static_cast<size_t>(count));
      if (unpacked_->size() > kMaxUnpacked && unpacked_->size() / 200 > file_.bytes().size())
        throw DataError(path.string() + ": unpacks to more than 1 GiB and 200 times its size");
    }
  }
  refuse_non_text(path, text());
  if (text_kind(path) == TextKind::kPlain && text().substr(0, 8192).find('\0') != std::string_view::npos)
    throw DataError(path.string() +
                    ": holds zero bytes, as binary files do, and is read as plain text: give text in UTF-8, JSON "
                    "lines, Parquet or Arrow");
}

std::string_view TextBytes::text() const { return unpacked_ ? std::string_view(*unpacked_) : file_.text(); }

double TextBytes::bytes_done(size_t offset) const {
  const size_t size = std::max<size_t>(text().size(), 1);
  return static_cast<double>(offset) * static_cast<double>(file_.bytes().size()) / static_cast<double>(size);
}

void for_each_line(const fs::path& path,
                   const std::function<void(std::string_view line, int64_t number, double bytes_done)>& visit) {
  const MappedFile file(path, ExitCode::kData);
  if (const std::string_view text = file.text(); !is_packed(text)) {
    refuse_non_text(path, text);
    for (LineReader lines(text); lines.next_filled();)
      visit(lines.line(), lines.number(), static_cast<double>(lines.end()));
    return;
  }
  UnpackedFile reader(path);
  std::string line;
  for (int64_t number = 1; next_line(path, reader, line); ++number) {
    if (number == 1) {
      if (line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      refuse_non_text(path, line);
    }
    if (line.ends_with('\r')) line.pop_back();
    if (!is_blank(line)) visit(line, number, static_cast<double>(reader.packed_offset()));
  }
}

std::set<std::string> fields_there(const fs::path& path) {
  const auto set_of = [](const std::vector<std::string>& names) { return std::set(names.begin(), names.end()); };
  if (looks_like_arrow(path)) return set_of(arrow_columns(path));
  if (looks_like_parquet(path)) return set_of(ParquetFile(path).columns());
  std::error_code error;
  if (!is_json(path) || !fs::is_regular_file(path, error)) return {};
  const MappedFile file(path, ExitCode::kData);
  const std::string_view head = file.text().substr(0, size_t{16} << 20);
  size_t begin = 0;
  while (begin < head.size() && (is_skipped(head[begin]) || head[begin] == '[')) ++begin;
  const Json object = Json::parse(first_object(head.substr(begin)), nullptr, /*allow_exceptions=*/false);
  std::set<std::string> there;
  if (object.is_object())
    for (const auto& item : object.items()) there.insert(item.key());
  return there;
}

void for_each_document(const fs::path& path, DocumentUnit unit, const std::string& field, const Visit& visit) {
  const TextKind kind = text_kind(path, field);
  const std::string name = field.empty() ? "text" : field;
  if (kind == TextKind::kArrow)
    return read_arrow_text(path, name, [&](int64_t row, std::string_view text) { visit({text, row, true, 0}); });
  if (kind == TextKind::kParquet) {
    const ParquetFile file(path);
    const double bytes_per_row =
        static_cast<double>(fs::file_size(path)) / static_cast<double>(std::max<int64_t>(file.rows(), 1));
    file.read_text(name, [&](int64_t row, std::string_view text) {
      visit({text, row, true, bytes_per_row * static_cast<double>(row + 1)});
    });
    return;
  }
  if (kind == TextKind::kJson)
    return is_one_json(path) ? visit_json_list(path, name, visit) : visit_json_lines(path, name, visit);
  const TextBytes bytes(path);
  visit_text(bytes.text(), unit, [&](Document document) {
    document.bytes_done = bytes.bytes_done(static_cast<size_t>(document.bytes_done));
    visit(document);
  });
}

void for_each_object(const fs::path& path, const ParquetFile::JsonColumns& columns, const ObjectVisitor& visit) {
  const TextKind kind = text_kind(path);
  if (kind == TextKind::kParquet || kind == TextKind::kArrow) {
    const auto size = static_cast<double>(fs::file_size(path));
    double rows = 0;
    const auto read = [&](int64_t row, const Json& object, const std::vector<std::string>& unread) {
      const double done = rows > 0 ? size * static_cast<double>(row + 1) / rows : 0;
      visit(fmt::format("{}: row {}", path.string(), row), done, [&] { return object; }, unread);
    };
    if (kind == TextKind::kArrow) return read_arrow_json(path, columns, read);
    const ParquetFile file(path);
    rows = static_cast<double>(file.rows());
    file.read_json(columns, read);
    return;
  }
  if (is_one_json(path)) {
    const TextBytes bytes(path);
    const std::string_view text = bytes.text();
    std::string objects;
    const Json list = parse_objects(as_list(text, objects), path.string());
    for (size_t i = 0; i < list.size(); ++i)
      visit(fmt::format("{}: item {}", path.string(), i), bytes.bytes_done(text.size() * (i + 1) / list.size()),
            [&] { return list[i]; }, {});
    return;
  }
  for_each_line(path, [&](std::string_view line, int64_t number, double done) {
    const std::string place = fmt::format("{}:{}", path.string(), number);
    visit(place, done, [&] { return parse_objects(line, place); }, {});
  });
}

std::unique_ptr<TextFile> open_text_file(const fs::path& path, const std::string& column,
                                         std::shared_ptr<TextGroups> groups) {
  const TextKind kind = text_kind(path);
  if (kind == TextKind::kArrow) return std::make_unique<ArrowTexts>(path, column);
  if (kind == TextKind::kParquet) return std::make_unique<ParquetTexts>(path, column, std::move(groups));
  return std::make_unique<JsonLines>(path, column);
}

}  // namespace trireme
