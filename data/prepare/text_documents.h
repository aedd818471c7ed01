#pragma once
// Files of texts as documents of token ids: JSON lines, Parquet and Arrow files, tokenised when they are read.

#include "data/stream/open_documents.h"

#include <filesystem>
#include <string>

namespace trireme {

/// Opens files of texts with the tokenizer of a model directory (or a tokenizer file; data/tokenizer/tokenizer.h),
/// which is loaded with the first of them. `column`: the string column or field; empty = "text". Recently read
/// documents and row groups stay in memory, in all up to 64 MiB of ids and 512 MiB of text: a row group of Parquet is
/// decoded whole for each document that is not there. A text that is not UTF-8 is a DataError, and so is a missing
/// tokenizer.
OpenText text_opener(const std::filesystem::path& tokenizer, const std::string& column);

}  // namespace trireme
