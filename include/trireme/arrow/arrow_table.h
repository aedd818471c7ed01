#pragma once
// Documents in Arrow IPC files, as fms-fsdp's data preparation and `datasets.save_to_disk` write them, through Arrow
// C++; no Arrow type appears in this interface. Both the file format (with a footer) and the stream format are read.
//
// A document is a row of a list column, or a whole record batch where the column holds plain integers (fms-fsdp: one
// batch a document), or a row of a string column.

#include "trireme/arrow/parquet.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// The rows of an Arrow IPC file or stream, in the form of ParquetFile::read_json. DataError for a damaged file,
/// ConfigError in a build without pyarrow.
void read_arrow_json(const std::filesystem::path& path, const ParquetFile::JsonColumns& columns,
                     const ParquetFile::JsonVisitor& visit);

/// The rows of a string column, as ParquetFile::read_text. DataError also for an absent column and one of another type.
void read_arrow_text(const std::filesystem::path& path, const std::string& column,
                     const ParquetFile::TextVisitor& visit);

/// True if the file starts like an Arrow IPC file or stream; false for absent and unreadable files too.
bool looks_like_arrow(const std::filesystem::path& path);

/// The names of the columns. DataError for a damaged file.
std::vector<std::string> arrow_columns(const std::filesystem::path& path);

class ArrowTable {
 public:
  /// `column`: empty = the first of `tokens`, `input_ids` and `text` that exists. Maps the file and keeps no document
  /// in memory. DataError for a damaged file, a file without the column, and a column of another type. ConfigError in a
  /// build without pyarrow.
  explicit ArrowTable(const std::filesystem::path& path, const std::string& column = "");
  ~ArrowTable();
  ArrowTable(ArrowTable&&) noexcept;

  int64_t documents() const;
  const std::string& column() const;
  bool has_column(const std::string& name) const;
  bool is_text() const;
  /// The ids of document `document`; a null document has no ids. DataError with batch, row and byte offset.
  /// Thread-safe.
  void read_tokens(int64_t document, std::vector<int64_t>& tokens) const;
  void read_text(int64_t document, std::string& text) const;
  /// "batch 3, row 17 (batch at byte 4,224)".
  std::string place(int64_t document) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
