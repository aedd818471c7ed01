#pragma once
// Documents of a text collection: plain text, JSON lines, or Parquet.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// How a plain text file is divided into documents.
enum class DocumentUnit {
  kParagraph,  // a run of lines between blank ones (lines of white space only)
  kLine,
  kFile,
};

struct Document {
  std::string_view text;  // as stored, perhaps not UTF-8; valid during the visit
  int64_t number = 0;     // first line (text, JSON lines; from 1) or row (Parquet; from 0)
  bool is_row = false;
  double bytes_done = 0;  // of this file, for progress
};

/// "corpus.txt:17" or "corpus.parquet: row 17".
std::string document_place(const std::filesystem::path& path, const Document& document);

/// DataError when `text` is UTF-16 or UTF-32, recognised by its byte order mark or its zero bytes.
void refuse_wide_text(const std::filesystem::path& path, std::string_view text);

/// The text of a line of a JSON lines file: its string field `field`, empty where that is null. nullopt when it holds a
/// lone surrogate, which UTF-8 cannot represent. `line` is UTF-8; `number` is its number, from 1, for messages.
/// DataError for a line that is not a JSON object or lacks the field.
std::optional<std::string> json_line_text(const std::filesystem::path& path, int64_t number, std::string_view line,
                                          const std::string& field);

/// Visits the documents of one file in order. Parquet is recognised by its content, JSON lines by the file name
/// (.jsonl, .ndjson); any other file is plain text. `field`: the name of the string field with the text in JSON lines
/// and Parquet. Plain text documents have no line ends at their start and end. JSON lines may contain what Python's
/// json.loads accepts: NaN, Infinity, numbers too large for a double, and lone surrogates; a text with a lone surrogate
/// is given as invalid UTF-8. DataError for a line that is not a JSON object or lacks the field, for damaged files, and
/// for UTF-16.
void for_each_document(const std::filesystem::path& path, DocumentUnit unit, const std::string& field,
                       const std::function<void(const Document&)>& visit);

}  // namespace trireme
