#include "trireme/optim/optimizer.h"

#include "trireme/base/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme {

double learning_rate(const ScheduleSection& schedule, double lr, int64_t max_steps, int64_t step) {
  const auto t = static_cast<double>(step), w = static_cast<double>(schedule.warmup_steps),
             n = static_cast<double>(max_steps);
  if (t < w) return lr * (t + 1) / (w + 1);
  if (schedule.name == "constant") return lr;
  const double fraction = n > w ? std::min(1.0, (t - w) / (n - w)) : 1.0;
  if (schedule.name == "linear") return schedule.min_lr + (lr - schedule.min_lr) * (1 - fraction);
  TRIREME_CHECK(schedule.name == "cosine", "schedule '", schedule.name, "'");
  return schedule.min_lr + (lr - schedule.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * fraction));
}

}  // namespace trireme
