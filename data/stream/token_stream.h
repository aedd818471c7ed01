#pragma once
// Rows of token ids packed from documents, as logical shards. The order depends on the seed and the number of logical
// shards only, never on ranks.
//
// The documents of a part (a named sub-dataset) are numbered through; epoch e visits them in a permutation P_e that the
// seed chooses. The visits of all epochs in a row are the part's slots 0, 1, 2, …: slot j is document P_{j div N}(j mod
// N) of N. Logical shard s of L owns the slots s, s + L, s + 2L, …: a pseudo-random 1/L of every file in every epoch.
// Every slot is therefore visited once, for all N and L, and a shard's place in a part is one number.
//
// A shard packs its documents into rows of seq_length tokens without gaps; a document that does not fit continues in
// the shard's next row. Row k of a run comes from shard k mod L.

#include "data/stream/documents.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct StreamPart {
  std::string name;
  double weight = 1;  // > 0; only the ratios matter
  std::shared_ptr<const DocumentSet> documents;
};

struct StreamOptions {
  int64_t seq_length = 0, vocab_size = 0;
  int64_t logical_shards = 960;
  uint64_t seed = 0;
  bool shuffle = true;  // false: P_e is the order of the files
  // One token of `strip`, or of the four below, is removed from each end of a stored document; then bos and eos are put
  // around it. Documents with fewer than min_length tokens after that are skipped.
  std::optional<int64_t> bos = {}, eos = {};
  std::vector<int64_t> strip = {};
  int64_t min_length = 3;
  // A row that does not begin with bol, or end with eol, gets it; no token of the document is dropped for it.
  std::optional<int64_t> bol = {}, eol = {};
};

/// The position of a shard: after the last row that was taken from it, perhaps inside a document.
struct ShardState {
  int64_t part = -1;            // of the open document; -1: the next one is still to be chosen
  int64_t offset = 0;           // tokens of the open document, delimiters included, that rows hold
  std::vector<int64_t> slots;   // of each part: finished documents, skipped documents included
  std::vector<int64_t> tokens;  // of each part: tokens in rows, delimiters of documents included
  bool operator==(const ShardState&) const = default;
};

class TokenStream {
 public:
  /// DataError for a part without documents.
  TokenStream(std::vector<StreamPart> parts, StreamOptions options);

  ShardState start() const;
  /// The next row of logical shard `shard`, and its state after it. The next document comes from the part whose weight
  /// exceeds its share of the shard's tokens most, among equal parts from the last. The first document of a shard comes
  /// from the part at the shard's place among the weights, so that the first rows of all shards are mixed too.
  /// Thread-safe. DataError with place and value for an id outside the vocabulary.
  std::vector<int64_t> next_row(int64_t shard, ShardState& state) const;

  const std::vector<StreamPart>& parts() const { return parts_; }
  const StreamOptions& options() const { return options_; }
  /// Document of slot `slot` of a part.
  int64_t document_at(size_t part, int64_t slot) const;
  /// Reads document `index` of a part and puts the delimiters on; checks its ids.
  std::vector<int64_t> read_document(size_t part, int64_t index) const;
  /// DataError if no document of a part has min_length tokens.
  [[noreturn]] void fail_all_short(size_t part) const;

 private:
  int64_t choose_part(int64_t shard, const ShardState& state) const;
  std::vector<int64_t> open_document(int64_t shard, ShardState& state) const;
  bool is_stripped(int64_t token) const;
  bool is_short_class(size_t part, int64_t remainder) const;
  std::vector<StreamPart> parts_;  // weights sum to 1
  StreamOptions options_;
  // File order: (part, remainder) of documents that are all too short (open_document()).
  mutable std::set<std::pair<size_t, int64_t>> short_classes_;
  mutable std::mutex mutex_;
};

}  // namespace trireme
