#pragma once
// Texts to Megatron's indexed files: every document is tokenised and written as one sequence, in the order of the
// inputs, whatever the number of threads.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The functions of a tokenizer that packing needs.
struct DocumentEncoder {
  std::function<std::vector<int32_t>(std::string_view)> encode;  // of UTF-8 text; thread-safe
  int64_t vocab_size = 0;
  std::optional<int32_t> eod;  // id that ends a document
  uint64_t fingerprint = 0;    // of what encode() depends on
};

struct MegatronPackOptions {
  std::vector<std::filesystem::path> inputs;  // JSON lines (.json, .jsonl, .ndjson, each also packed), Parquet
  std::string text_key = "text";              // field or column of the text
  std::filesystem::path output_prefix;        // PREFIX: the files are PREFIX_text_document.bin and .idx
  bool append_eod = false;
  unsigned workers = 0;                     // threads; 0: one per core
  int64_t part_bytes = int64_t{256} << 20;  // text of a part; a killed run continues after the last part
};

struct MegatronPackReport {
  std::filesystem::path prefix;         // of the files written
  int64_t documents = 0, tokens = 0;    // in them
  int64_t bytes = 0;                    // of their texts
  int64_t empty = 0, invalid_utf8 = 0;  // documents skipped
  std::string first_invalid;            // "corpus.jsonl:17"
  int64_t parts = 0, kept_parts = 0;    // kept: made by an earlier run that was stopped
};

/// Parts are kept in PREFIX_text_document.parts until all are there; a later call with the same inputs and options
/// continues after the last whole part. ConfigError for options, DataError for inputs, WriteError.
MegatronPackReport pack_megatron(const DocumentEncoder& encoder, const MegatronPackOptions& options);

/// The documents of all prefixes, in this order, as `output`.bin and .idx. Returns their number. ConfigError,
/// DataError, WriteError.
int64_t merge_megatron(const std::vector<std::filesystem::path>& prefixes, const std::filesystem::path& output);

}  // namespace trireme
