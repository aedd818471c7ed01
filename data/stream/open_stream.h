#pragma once
// From the paths of a configuration to a TokenStream, and what a run says about it.

#include "data/row_scan.h"
#include "data/stream/open_documents.h"
#include "data/stream/token_stream.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

struct StreamFiles {
  std::string key;  // "data.train", for messages
  std::vector<std::filesystem::path> paths;
  std::vector<double> weights;     // of the paths; empty with names: equal
  std::vector<std::string> names;  // of the paths; empty with weights: their last parts
  std::string column;
  std::filesystem::path tokenizer;  // of texts: a model directory or a tokenizer file
};

/// True if the paths hold documents, false if none does. ConfigError for some of each.
bool are_documents(const std::string& key, const std::vector<std::filesystem::path>& paths);

/// With weights or names every path is a part; else all paths together are one. DataError, ConfigError.
std::shared_ptr<const TokenStream> open_token_stream(const StreamFiles& files, const StreamOptions& options);

/// All documents of all parts, to check before training.
RowSet document_rows(const std::string& key, const std::shared_ptr<const TokenStream>& stream);

/// "web (2,000 documents of Arrow, 75.0 %), code (100 documents of Arrow, 25.0 %)".
std::string describe_stream(const TokenStream& stream);

/// Rows that one epoch of the documents gives, from the mean length of a few hundred of them; at least 1.
/// DataError for a part of which no document is long enough.
int64_t estimate_rows(const TokenStream& stream);

/// The rows that one pass over a stream's documents in their order gives, the rest after the last whole row dropped;
/// reads all documents once, and keeps places, not tokens.
class PackedOnce {
 public:
  /// `stream`: of one part and one logical shard, not shuffled. DataError where there is no whole row.
  explicit PackedOnce(std::shared_ptr<const TokenStream> stream);
  int64_t size() const { return static_cast<int64_t>(starts_.size()); }
  /// Thread-safe.
  std::vector<int64_t> read(int64_t row) const;

 private:
  std::shared_ptr<const TokenStream> stream_;
  std::vector<ShardState> starts_;
};

}  // namespace trireme
