#pragma once
// Assigns sequences to rows: non-negative least-squares histogram packing (Krell et al., "Efficient sequence packing
// without cross-contamination", 2021), with the constants and the assignment order of MLPerf's BERT submissions.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace trireme {

/// Lengths that fill a row, ascending; 0 = no further sequence.
using PackStrategy = std::array<uint16_t, 3>;

/// All ways to fill `max_length` with one to three lengths, in lexicographic order.
std::vector<PackStrategy> pack_strategies(int max_length);

struct PackPlan {
  int max_length = 0;
  std::vector<PackStrategy> strategies;
  std::vector<int64_t> mixture;  // [strategies] rows made by each
  std::vector<int64_t> padding;  // [max_length + 1] by length: slots that stay empty
  int64_t rows() const;          // includes rows without any sequence
  int rounds = 0;
  double first_residual_norm = 0;  // of the first round's least-squares problem
};

/// `counts`: [max_length + 1] sequences by length. ConfigError without any sequence.
PackPlan plan_packing(const std::vector<int64_t>& counts, int max_length);

struct PackMember {
  uint16_t length;
  uint32_t index;  // index among the sequences of that length
};

/// Assigns sequences to rows and rows to shards, with Python's random numbers. Rows without any sequence are omitted.
class Packing {
 public:
  /// ConfigError when the rows cannot fill the shards.
  Packing(PackPlan plan, const std::vector<int64_t>& counts, uint32_t seed, int shards);
  const PackPlan& plan() const { return plan_; }
  int64_t rows() const { return rows_; }
  int64_t rows(size_t shard) const { return first_row_[shard + 1] - first_row_[shard]; }
  /// Visits the rows of a shard in order. Thread-safe.
  void visit(size_t shard, const std::function<void(std::span<const PackMember>)>& row) const;

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  /// Position in the assignment: the next strategy, and the next index into the list of each length.
  struct Cursor {
    size_t strategy = 0;
    std::vector<uint32_t> places;
  };
  std::span<const PackMember> deal(Cursor& cursor, std::array<PackMember, 3>& members) const;

  PackPlan plan_;
  std::vector<std::vector<uint32_t>> sequences_;  // [max_length + 1] by length, shuffled; kEmpty: padding
  std::vector<uint16_t> order_;                   // strategy of each row, shuffled
  std::vector<Cursor> shard_starts_;
  std::vector<int64_t> first_row_;  // [shards + 1]
  int64_t rows_ = 0;
};

}  // namespace trireme
