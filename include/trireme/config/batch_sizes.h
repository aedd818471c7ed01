#pragma once
// The number of rows of each step of a run.

#include "trireme/config/config.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// batch.global_batch_size for every step, or with batch.rampup Megatron's rule (core/num_microbatches_calculator.py):
/// a step before which c rows were seen has global_batch_size rows where c > samples, else start + increment * int(c /
/// (samples / increments)), in fp64. The sizes depend only on the section, so a resumed run has the same sizes. Steps
/// count from 0.
class BatchSizes {
 public:
  /// `batch` has passed the configuration's checks.
  explicit BatchSizes(const BatchSection& batch);

  bool ramps() const { return stages_.size() > 1; }
  /// Rows of step `step`.
  int64_t of(int64_t step) const { return stage(step).rows; }
  /// Rows of all steps before `step`: the place of its first row in the run's order.
  int64_t before(int64_t step) const;
  int64_t largest() const { return stages_.back().rows; }
  /// The first step that has largest() rows.
  int64_t first_largest() const { return stages_.back().first_step; }

 private:
  /// A run of steps of one size; the last run has no end.
  struct Stage {
    int64_t first_step, first_row, rows;
  };

  const Stage& stage(int64_t step) const;

  std::vector<Stage> stages_;
};

/// parallel.context_size on so many ranks: as configured; with auto the smallest size with which the rows of a global
/// batch, and the tokens of a row, divide, which is 1 unless there are more ranks than rows. 1 where no size does, and
/// for programs whose ranks do not share rows (`shares_rows`), and objectives of pairs.
int64_t least_context_size(const Config& config, int64_t ranks, bool shares_rows);

}  // namespace trireme
