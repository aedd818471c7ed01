#pragma once
// Private to data/megatron: the rows of one file.

#include "data/megatron/megatron_dataset.h"

#include <mutex>

namespace trireme {

/// The documents [first, last) of a file as rows, in the order of their index maps.
class MegatronPart {
 public:
  MegatronPart(const std::filesystem::path& path, Split split, int64_t samples, const MegatronOptions& options);

  const MegatronFile& file() const { return file_; }
  int64_t rows() const { return shape_.rows; }
  int64_t rows_per_epoch() const { return (request_.tokens - 1) / request_.seq_length; }
  int64_t epochs() const { return shape_.epochs; }
  /// The part of the rows' order that depends on the number of samples; "" where they come in the order of the file.
  std::string order() const;
  int64_t first() const { return request_.first; }
  int64_t documents() const { return request_.last - request_.first; }
  /// The files of the cache without "_doc_idx.npy" and so on.
  const std::filesystem::path& cache_name() const { return cache_; }

  /// Tokens of row `row` and the one after: [S + 1]. DataError for ids outside the vocabulary and for index maps of
  /// other documents. Thread-safe.
  std::vector<int64_t> read(int64_t row) const;
  bool fill_cache() const;                   // true if maps were built and written
  void check_document(int64_t index) const;  // from first()

 private:
  const IndexMaps& maps() const;
  std::optional<IndexMaps> read_cache() const;
  std::string unlike(const IndexMaps& maps, bool all) const;
  [[noreturn]] void fail(const NpyValues& map, int64_t row, const std::string& what) const;

  MegatronFile file_;
  int64_t vocab_size_;
  IndexRequest request_;
  IndexShape shape_;
  std::filesystem::path cache_;
  mutable std::once_flag loaded_;
  mutable IndexMaps maps_;
};

}  // namespace trireme
