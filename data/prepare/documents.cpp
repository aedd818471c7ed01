#include "data/prepare/documents.h"

#include "data/prepare/parquet.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const Document&)>;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\f\v") == std::string_view::npos; }

/// Lines of a text, without their ends; begin() and end() are byte offsets.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) end_ = 3;  // a byte order mark is no text
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

std::string json_text(const fs::path& path, int64_t number, std::string_view line, const std::string& field) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", path.string(), number, what));
  };
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& reason) {
    fail(fmt::format("not JSON ({}): a .jsonl file holds one object a line", reason.what()));
  }
  if (!object.is_object())
    fail(fmt::format("a JSON {}, expected an object with the field '{}'", object.type_name(), field));
  const auto found = object.find(field);
  if (found == object.end()) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    fail(fmt::format("no field '{}' (name it with --field); the object has: {}.{}", field, join(names, ", "),
                     did_you_mean(field, names)));
  }
  if (found->is_null()) return {};
  if (!found->is_string()) fail(fmt::format("field '{}' is a JSON {}, expected a string", field, found->type_name()));
  return found->get<std::string>();
}

void visit_json_lines(const fs::path& path, std::string_view text, const std::string& field, const Visit& visit) {
  for (LineReader lines(text); lines.next();) {
    if (is_blank(lines.line())) continue;
    const auto done = static_cast<double>(lines.end());
    // The raw bytes of a line that is not UTF-8 go on as they are: the caller counts and drops such
    // documents.
    if (!is_valid_utf8(lines.line())) {
      visit({lines.line(), lines.number(), false, done});
      continue;
    }
    const std::string value = json_text(path, lines.number(), lines.line(), field);
    visit({value, lines.number(), false, done});
  }
}

}  // namespace

std::string document_place(const fs::path& path, const Document& document) {
  return document.is_row ? fmt::format("{}: row {}", path.string(), document.number)
                         : fmt::format("{}:{}", path.string(), document.number);
}

void for_each_document(const fs::path& path, DocumentUnit unit, const std::string& field, const Visit& visit) {
  const std::string extension = path.extension().string();
  if (extension == ".parquet" || looks_like_parquet(path)) {
    const ParquetFile file(path);
    const double bytes_per_row =
        static_cast<double>(fs::file_size(path)) / static_cast<double>(std::max<int64_t>(file.rows(), 1));
    file.read_text(field, [&](int64_t row, std::string_view text) {
      visit({text, row, true, bytes_per_row * static_cast<double>(row + 1)});
    });
    return;
  }
  const MappedFile file(path, ExitCode::kData);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (extension == ".jsonl" || extension == ".ndjson")
    visit_json_lines(path, text, field, visit);
  else
    visit_text(text, unit, visit);
}

}  // namespace trireme
