#pragma once
// The one reader of files of texts: JSON lines, Parquet, Arrow and plain text. A TextFile reads any of its texts; the
// for_each functions visit all in order.

#include "data/parquet_rows.h"
#include "trireme/base/file.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// How a plain text file is divided into documents.
enum class DocumentUnit {
  kParagraph,  // a run of lines between blank ones (lines of white space only)
  kLine,
  kFile,
};

struct Document {
  std::string_view text;  // as stored, perhaps not UTF-8; valid during the visit
  int64_t number = 0;     // first line (text, JSON lines; from 1), or row or item of a list (from 0)
  bool is_row = false;
  double bytes_done = 0;  // of this file, for progress
};

/// "corpus.txt:17", "corpus.parquet: row 17" or "corpus.json: item 17".
std::string document_place(const std::filesystem::path& path, const Document& document);

/// "a zstd archive: unpack it first", of the first kArchiveHead bytes of a file; empty for what is no archive.
inline constexpr size_t kArchiveHead = 256;
std::string archive_of(std::string_view bytes);

/// DataError when `text` is an archive, or UTF-16 or UTF-32, recognised by its byte order mark or its zero bytes.
void refuse_non_text(const std::filesystem::path& path, std::string_view text);

/// The text of a line of a JSON lines file: its string field `field`, empty where that is null. nullopt when it holds a
/// lone surrogate, which UTF-8 cannot represent. `line` is UTF-8; `number` is its number, from 1, for messages.
/// DataError for a line that is not a JSON object or lacks the field.
std::optional<std::string> json_line_text(const std::filesystem::path& path, int64_t number, std::string_view line,
                                          const std::string& field);

/// ".jsonl" of "corpus.jsonl" and "corpus.JSONL.gz".
std::string unpacked_extension(const std::filesystem::path& path);
/// By the name alone: .jsonl, .ndjson or .json, in any case, also with .gz, .gzip, .bgz, .zst, .zstd or .bz2.
bool is_json(const std::filesystem::path& path);
/// Whether a .json file, perhaps packed, is read whole: a list, or objects over several lines one after the other, as
/// datasets reads them. Others have an object a line.
bool is_one_json(const std::filesystem::path& path);

enum class TextKind { kPlain, kJson, kParquet, kArrow };
/// Parquet and Arrow by the content or the name, JSON by the name. `field`: as the user gave it, or empty. ConfigError
/// for plain text with a field; DataError for CSV, by the name.
TextKind text_kind(const std::filesystem::path& path, const std::string& field = "");

/// A whole file of text, unpacked in memory if is_packed() by its content. DataError for what is no text, for a plain
/// text file also by a zero byte in its first 8 KiB.
class TextBytes {
 public:
  explicit TextBytes(const std::filesystem::path& path);
  std::string_view text() const;
  /// Bytes of the file for this offset in the text.
  double bytes_done(size_t offset) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  std::optional<std::string> unpacked_;
};

/// Visits the lines of a file that are not blank, in order, without their ends. `number`: from 1; `bytes_done`: of the
/// file. What is_packed() by its content is unpacked on the way. DataError for what is no text, and for damaged files.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view line, int64_t number, double bytes_done)>& visit);

/// Visits the documents of one file in order, by its text_kind(); a .json file may hold a list. `field`: the name of
/// the string field or column with the text; empty = "text". Packed files are unpacked. Plain text documents have no
/// line ends at their start and end. JSON may contain what Python's json.loads accepts: NaN, Infinity, numbers too
/// large for a double, and lone surrogates; a text with a lone surrogate is given as invalid UTF-8. DataError for JSON
/// that is not an object or lacks the field, for damaged files, and for what is no text.
void for_each_document(const std::filesystem::path& path, DocumentUnit unit, const std::string& field,
                       const std::function<void(const Document&)>& visit);

/// Visits the JSON objects of one file in order: lines of JSON, the items of a list in a .json file, both also packed,
/// or rows of Parquet or Arrow with the existing ones of `columns`. `place`: "chat.jsonl:17", "chat.parquet: row 17",
/// "chat.json: item 17"; `bytes_done`: of this file, 0 where it is not known. object() parses a line: DataError where
/// that is no JSON. `unread`: names of the file's other columns. DataError for a file that cannot be read on.
using ObjectVisitor =
    std::function<void(const std::string& place, double bytes_done,
                       const std::function<nlohmann::ordered_json()>& object, const std::vector<std::string>& unread)>;
void for_each_object(const std::filesystem::path& path, const ParquetFile::JsonColumns& columns,
                     const ObjectVisitor& visit);

/// The fields of the first object of a file of JSON (lines, or a list), or the columns of Parquet or Arrow. The rest is
/// not read. None for other files, for what is no JSON, and where the object is longer than 16 MiB.
std::set<std::string> fields_there(const std::filesystem::path& path);

/// What a tool makes rows of, known by two of its fields.
struct RowTool {
  const char *field, *beside, *what, *name;  // name: of `trireme data NAME`
  const char* once = "";                     // what has to be done before
};
/// nullptr where no tool is known for the fields.
const RowTool* find_row_tool(const std::function<bool(const char* field)>& has);
/// A sentence that names the tool, with a space before it; empty: none is known.
std::string row_tool_hint(const std::function<bool(const char* field)>& has);

using TextGroups = RowGroups<std::string>;

/// The texts of one file, in any order: rows of Parquet or of Arrow, else lines of JSON that are not blank. DataError
/// for a packed file and for a JSON list, which cannot be read in any order.
class TextFile {
 public:
  virtual ~TextFile() = default;
  virtual int64_t size() const = 0;
  /// Text `index` as stored, perhaps not UTF-8. Thread-safe. DataError with the place.
  virtual std::string text(int64_t index) const = 0;
  virtual std::string place(int64_t index) const = 0;  // "corpus.jsonl:17", for messages
  virtual std::string kind() const = 0;                // "JSON lines"
};

/// `column`: the string column or field. DataError for a file that cannot be read. A row group of Parquet is decoded
/// whole for each text that is not in `groups`.
std::unique_ptr<TextFile> open_text_file(const std::filesystem::path& path, const std::string& column,
                                         std::shared_ptr<TextGroups> groups);

}  // namespace trireme
