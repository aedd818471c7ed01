#pragma once
// logging.style fms and fms_2024: the report of a step interval under the labels that fms-fsdp prints, one line each.

#include "metrics.h"

#include <cstdint>
#include <string>

namespace trireme {

/// The labels and their order are those of fms-fsdp's train_utils.py: `fms` at its HEAD, `fms_2024` of March 2024,
/// which the AWS test case has, too. Loss and gradient norm are means over the interval. Differences: the learning rate
/// is the one that the last step used (fms-fsdp prints the next step's), memory in bytes is the peak of the whole run
/// (there: of the last step), and "tokens seen" counts all ranks' tokens in both.
class FmsReport {
 public:
  /// `tokens_per_rank`: of one step. `now`: steady_seconds() before the first step of this process.
  FmsReport(bool labels_of_2024, double tokens_per_rank, int64_t ranks, double now);
  void add(const TrainMetrics& metrics);
  /// The interval since the last call as lines with '\n' between them. At least one step was added since.
  std::string lines(double now, int64_t reserved_bytes, int64_t allocated_bytes);

 private:
  bool labels_of_2024_;
  double tokens_per_rank_, ranks_, run_start_, interval_start_;
  int64_t run_steps_ = 0, interval_steps_ = 0;
  double loss_sum_ = 0, grad_norm_sum_ = 0;
  TrainMetrics last_;
};

}  // namespace trireme
