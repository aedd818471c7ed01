#pragma once
// Converts text collections to packed token rows: documents are tokenised, concatenated and cut into rows of exactly
// seq_length tokens.

#include "data/text_file.h"
#include "data/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct PackOptions {
  std::vector<std::filesystem::path> inputs;
  DocumentUnit unit = DocumentUnit::kParagraph;
  std::string field;  // empty: text
  int64_t seq_length = 0;
  std::filesystem::path output;        // .npy, .h5 or .hdf5
  std::filesystem::path valid_output;  // empty: no validation rows
  double valid_fraction = 0;           // of the documents, chosen by their index and the seed
  bool bos = false, eos = false;       // around every document
  /// Rows record where documents start, so that attention does not cross them: an object npy
  /// (MLPerf's layout) or HDF5.
  bool separate_documents = false;
  std::optional<uint32_t> shuffle_seed;  // documents in NumPy's order of this seed; none: in file order
  /// Number of documents of the input, dropped documents included, that are concatenated and cut together, as by
  /// datasets.map(batched=True). The tokens after the last complete row of each batch are dropped. 0: one batch.
  int64_t batch_documents = 0;
  int64_t min_tokens = 2;  // shorter documents are dropped (BOS and EOS count)
  unsigned threads = 0;    // 0: one per core
};

struct PackedSplit {
  int64_t documents = 0, tokens = 0, rows = 0;
  int64_t tail_tokens = 0;  // dropped tokens after the last complete row, of every batch
};

struct PackReport {
  int64_t documents = 0;  // read
  int64_t bytes = 0;
  int64_t invalid_utf8 = 0, empty = 0, too_short = 0;  // documents dropped
  int64_t short_tokens = 0;                            // in the documents that are too short
  std::string first_invalid;                           // "corpus.txt:17"
  PackedSplit train, valid;
  std::vector<std::string> samples;  // up to 3 rows of the training split, decoded
};

/// Keeps all tokens in memory (4 bytes each). Outputs are written atomically, and only if every output gets at least
/// one row. ConfigError for invalid options, DataError for the inputs, WriteError for the outputs.
PackReport pack_documents(const Tokenizer& tokenizer, const PackOptions& options);

}  // namespace trireme
