#include "trireme/config/batch_sizes.h"

#include "trireme/base/error.h"

#include <algorithm>

namespace trireme {

BatchSizes::BatchSizes(const BatchSection& batch) {
  if (batch.rampup.empty()) {
    stages_.push_back({0, 0, batch.global_batch_size});
    return;
  }
  const int64_t start = batch.rampup[0], increment = batch.rampup[1], samples = batch.rampup[2];
  const double each = static_cast<double>(samples) / static_cast<double>((batch.global_batch_size - start) / increment);
  const auto size_after = [&](int64_t seen) {
    if (seen > samples) return batch.global_batch_size;
    return start + static_cast<int64_t>(static_cast<double>(seen) / each) * increment;
  };
  Stage stage{0, 0, start};
  for (;;) {
    stages_.push_back(stage);
    if (stage.rows == batch.global_batch_size) return;
    // The steps of this size: an estimate from the end of its increment, and the rule itself around it.
    const double end = static_cast<double>((stage.rows - start) / increment + 1) * each;
    auto steps = std::max<int64_t>(
        1, static_cast<int64_t>((end - static_cast<double>(stage.first_row)) / static_cast<double>(stage.rows)));
    const auto still = [&](int64_t count) { return size_after(stage.first_row + count * stage.rows) == stage.rows; };
    while (steps > 1 && !still(steps - 1)) --steps;
    while (still(steps)) ++steps;
    stage = {stage.first_step + steps, stage.first_row + steps * stage.rows, 0};
    stage.rows = size_after(stage.first_row);
  }
}

const BatchSizes::Stage& BatchSizes::stage(int64_t step) const {
  TRIREME_CHECK(step >= 0, "step ", step);
  return *std::prev(std::upper_bound(stages_.begin(), stages_.end(), step,
                                     [](int64_t value, const Stage& stage) { return value < stage.first_step; }));
}

int64_t BatchSizes::before(int64_t step) const {
  const Stage& last = stage(step);
  return last.first_row + (step - last.first_step) * last.rows;
}

int64_t least_context_size(const Config& config, int64_t ranks, bool shares_rows) {
  if (!shares_rows || config.train.objective != TrainSection::Objective::kSft) return 1;
  if (config.parallel.context_size != ParallelSection::kAutoSize) return config.parallel.context_size;
  if (ranks <= config.batch.global_batch_size) return 1;
  for (int64_t size = 2; size <= ranks; ++size)
    if (ranks % size == 0 && config.data.seq_length % size == 0 &&
        config.batch.global_batch_size % (ranks / size * config.batch.micro_batch_size) == 0)
      return size;
  return 1;
}

}  // namespace trireme
