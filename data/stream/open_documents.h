#pragma once
// Which files of a path hold documents, and how each is read; the content decides, not the name.

#include "data/stream/document_set.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// Opens a file of texts (Parquet, JSON lines, or an Arrow file with a string column) as documents of token ids.
using OpenText = std::function<std::unique_ptr<DocumentSet>(const std::filesystem::path&)>;

/// True for what is read as documents: a directory, an Arrow file, Parquet, JSON lines; false for rows (npy, HDF5),
/// for other and for absent files.
bool holds_documents(const std::filesystem::path& path);

/// The files of documents that a path names: itself; a directory of `datasets.save_to_disk`: those of its state.json;
/// any other directory: all *.arrow below it in the order of their names, else all *.parquet, *.jsonl and *.ndjson.
/// DataError for a directory without any, and for one of several splits.
std::vector<std::filesystem::path> document_files(const std::filesystem::path& path);

/// The documents of a path. `column`: empty = ArrowTable's choice. DataError, ConfigError as `open_text` throws.
std::unique_ptr<DocumentSet> open_documents(const std::filesystem::path& path, const std::string& column,
                                            const OpenText& open_text);

}  // namespace trireme
