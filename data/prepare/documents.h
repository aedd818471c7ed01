#pragma once
// Documents of a text collection: plain text, JSON lines, or Parquet.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace trireme {

/// What one document of a plain text file is.
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

/// DataError that says so when `text` is UTF-16 or UTF-32: by its byte order mark, or by its zeros.
void refuse_wide_text(const std::filesystem::path& path, std::string_view text);

/// Visits the documents of one file in order. Parquet is known by its content, JSON lines by the
/// name (.jsonl, .ndjson), all else is text. `field` names the string that holds the text in JSON
/// lines and Parquet. Text documents come without the line ends around them. A JSON line is what Python's json.loads
/// takes: NaN, Infinity, numbers too large for a double and lone surrogates are not errors; a text with a lone
/// surrogate is given as bytes that are no UTF-8. DataError for a line that is no JSON object or lacks the field, for
/// damaged files, and for text in UTF-16.
void for_each_document(const std::filesystem::path& path, DocumentUnit unit, const std::string& field,
                       const std::function<void(const Document&)>& visit);

}  // namespace trireme
