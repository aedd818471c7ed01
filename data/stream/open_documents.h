#pragma once
// Which files of a path hold documents, and how each is read; the content decides, not the name.

#include "data/stream/document_set.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Turns texts into token ids while they are read. The files of a stream share one.
struct TextTokens;
/// With the tokenizer of a model directory (or a tokenizer file; data/tokenizer/tokenizer.h), which is loaded with the
/// first file of texts. `column`: the string column or field; empty = "text". Recently read documents and row groups
/// stay in memory, in all up to 64 MiB of ids and 512 MiB of text. A text that is not UTF-8 is a DataError, and so is a
/// missing tokenizer.
std::shared_ptr<TextTokens> text_tokens(const std::filesystem::path& tokenizer, const std::string& column);

/// True for what is read as documents: a directory, an Arrow file, Parquet, JSON lines; false for rows (npy, HDF5),
/// for other and for absent files.
bool holds_documents(const std::filesystem::path& path);

/// The files of documents that a path names: itself; a directory of `datasets.save_to_disk`: those of its state.json;
/// any other directory: all *.arrow below it in the order of their names, else all *.parquet, *.jsonl and *.ndjson.
/// DataError for a directory without any, and for one of several splits.
std::vector<std::filesystem::path> document_files(const std::filesystem::path& path);

/// The documents of a path. `column`: empty = ArrowTable's choice. Files of texts (Parquet, JSON lines, Arrow with a
/// string column) are read through `texts`. DataError, ConfigError.
std::unique_ptr<DocumentSet> open_documents(const std::filesystem::path& path, const std::string& column,
                                            const std::shared_ptr<TextTokens>& texts);

}  // namespace trireme
