#include "trireme/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme {

std::optional<double> min_lr_factor(const ScheduleSection& schedule) {
  using Name = ScheduleSection::Name;
  if (schedule.min_lr_factor) return schedule.min_lr_factor;
  if (schedule.name == Name::kWsd) return 0;
  if (schedule.name == Name::kFmsCosine) return 0.1;
  return std::nullopt;
}

namespace {

double half_cosine(double x) { return 0.5 * (1 + std::cos(std::numbers::pi * x)); }

/// torchtitan's factor. `w`, `n`: warm-up steps and steps of the run.
double warmup_stable_decay(const ScheduleSection& schedule, double t, double w, double n) {
  if (t < w) return (t + 1) / w;
  // nearbyint rounds half to even, as Python's round does.
  const double decay = schedule.decay_ratio ? std::min(std::nearbyint(n * *schedule.decay_ratio), n - w) : n - w;
  const double stable_end = n + 1 - decay;
  if (t < stable_end) return 1;
  const double progress = decay > 0 ? std::min(1.0, (t + 1 - stable_end) / decay) : 1.0;
  const double least = *min_lr_factor(schedule);
  using Decay = ScheduleSection::DecayType;
  const double rest = schedule.decay_type == Decay::kLinear ? 1 - progress
                      : schedule.decay_type == Decay::kSqrt ? 1 - std::sqrt(progress)
                                                            : half_cosine(progress);
  return least + (1 - least) * rest;
}

/// fms-fsdp's factor.
double quadratic_warmup_cosine(const ScheduleSection& schedule, double t, double w, double n) {
  const double least = *min_lr_factor(schedule);
  const double missing = w > 0 ? 1 - std::min(t, w) / w : 0;
  return std::min(1 - missing * missing, least + (1 - least) * half_cosine(std::min(t, n) / n));
}

/// NeMo's CosineAnnealing with constant steps. `d`, the steps of the decay, may be negative: the rate then falls to its
/// least after the warm-up.
double warmup_cosine_constant(const ScheduleSection& schedule, double lr, double t, double w, double n) {
  if (w > 0 && t <= w) return lr * t / w;
  const double d = n - static_cast<double>(schedule.constant_steps) - w;
  if (d <= 0 || t > w + d) return schedule.min_lr;
  return schedule.min_lr + (lr - schedule.min_lr) * half_cosine((t - w) / d);
}

}  // namespace

double learning_rate(const ScheduleSection& schedule, double lr, int64_t max_steps, int64_t step) {
  const auto t = static_cast<double>(step), w = static_cast<double>(schedule.warmup_steps),
             n = static_cast<double>(max_steps);
  using Name = ScheduleSection::Name;
  if (schedule.name == Name::kWsd) return lr * warmup_stable_decay(schedule, t, w, n);
  if (schedule.name == Name::kFmsCosine) return lr * quadratic_warmup_cosine(schedule, t, w, n);
  if (schedule.name == Name::kAnnealing) return lr * std::max(0.0, 1 - t / n);
  if (schedule.constant_steps > 0) return warmup_cosine_constant(schedule, lr, t, w, n);
  if (t < w) return lr * (t + 1) / (w + 1);
  if (schedule.name == Name::kConstant) return lr;
  const double fraction = n > w ? std::min(1.0, (t - w) / (n - w)) : 1.0;
  if (schedule.name == Name::kLinear) return schedule.min_lr + (lr - schedule.min_lr) * (1 - fraction);
  return schedule.min_lr + (lr - schedule.min_lr) * half_cosine(fraction);
}

}  // namespace trireme
