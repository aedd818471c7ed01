#pragma once
// Documents of token ids, whatever files they come from: the content of a file decides how it is read, not its name.
// Independent of LibTorch and ranks.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class DocumentSet {
 public:
  virtual ~DocumentSet() = default;
  virtual int64_t size() const = 0;
  /// Replaces `tokens` with the ids of document `index` as stored, unchecked. Thread-safe. DataError with file and
  /// place for bytes that cannot be read.
  virtual void read(int64_t index, std::vector<int64_t>& tokens) const = 0;
  /// "train-00000.arrow: batch 3, row 17", for messages.
  virtual std::string place(int64_t index) const = 0;
  virtual std::string kind() const = 0;  // "Arrow file"
};

/// The documents of several sets, in the given order.
class ConcatenatedDocuments : public DocumentSet {
 public:
  explicit ConcatenatedDocuments(std::vector<std::unique_ptr<DocumentSet>> sets);
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t index, std::vector<int64_t>& tokens) const override;
  std::string place(int64_t index) const override;
  std::string kind() const override;

 private:
  /// The set that holds document `index`, and its number there.
  std::pair<const DocumentSet*, int64_t> locate(int64_t index) const;
  std::vector<std::unique_ptr<DocumentSet>> sets_;
  std::vector<int64_t> ends_;  // documents through set i
};

/// Turns texts into token ids while they are read. The files of a stream share one object.
struct TextTokens;
/// With the tokenizer of a model directory (or a tokenizer file; data/tokenizer/tokenizer.h), which is loaded with the
/// first file of texts. `column`: the string column or field; empty = "text". Recently read documents and row groups
/// stay in memory: up to 64 MiB of documents' ids, 512 MiB of row groups of text and 512 MiB of row groups of ids. A
/// text that is not UTF-8 is a DataError, and so is a
/// missing tokenizer.
std::shared_ptr<TextTokens> text_tokens(const std::filesystem::path& tokenizer, const std::string& column);

/// True for paths that are read as documents: a directory, an Arrow file, Parquet, JSON lines; false for rows (npy,
/// HDF5), for other and for absent files.
bool holds_documents(const std::filesystem::path& path);

/// The files of documents that a path names: itself; a directory of `datasets.save_to_disk`: the files in its
/// state.json; any other directory: all *.arrow below it in the order of their names, else all *.parquet, *.jsonl
/// and *.ndjson, else all *.json but those that describe data sets or tokenizers; in any case, also packed; nothing
/// whose name begins with a dot, and no directory whose name begins with "__". DataError for a directory without
/// documents, for one that cannot be listed, and for a directory of several splits.
std::vector<std::filesystem::path> document_files(const std::filesystem::path& path);

/// Whether the paths hold texts, which a tokenizer makes tokens of; by the first file of each.
bool hold_texts(const std::vector<std::filesystem::path>& paths, const std::string& column);

/// Whether every file of the paths is read by this column or field where data.column names none. DataError.
bool is_chosen_column(const std::vector<std::filesystem::path>& paths, const std::string& column);

/// The documents of all paths, in this order. `column`: empty = ArrowTable's choice. Files of texts (Parquet, JSON
/// lines, Arrow with a string column) are read through `texts`. DataError, ConfigError.
std::shared_ptr<const DocumentSet> open_documents(const std::vector<std::filesystem::path>& paths,
                                                  const std::string& column, const std::shared_ptr<TextTokens>& texts);

}  // namespace trireme
