#include "fms_report.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <vector>

namespace trireme {

FmsReport::FmsReport(bool labels_of_2024, double tokens_per_rank, int64_t ranks, double now)
    : labels_of_2024_(labels_of_2024),
      tokens_per_rank_(tokens_per_rank),
      ranks_(static_cast<double>(ranks)),
      run_start_(now),
      interval_start_(now) {}

void FmsReport::add(const TrainMetrics& metrics) {
  ++run_steps_;
  ++interval_steps_;
  loss_sum_ += metrics.loss;
  grad_norm_sum_ += metrics.grad_norm;
  last_ = metrics;
}

std::string FmsReport::lines(double now, int64_t reserved_bytes, int64_t allocated_bytes) {
  TRIREME_CHECK(interval_steps_ > 0, "a report without a step");
  const auto steps = static_cast<double>(interval_steps_), all_steps = static_cast<double>(run_steps_);
  const double step_time = (now - interval_start_) / steps, overall_time = (now - run_start_) / all_steps;
  const auto rate = [&](double seconds) { return seconds > 0 ? static_cast<int64_t>(tokens_per_rank_ / seconds) : 0; };
  const int64_t per_day = overall_time > 0 ? static_cast<int64_t>(tokens_per_rank_ * ranks_ / overall_time * 86400) : 0;
  const std::string step = fmt::format("step: {}", last_.step), loss = "loss: " + format_exact(loss_sum_ / steps),
                    lr = "LR: " + format_exact(last_.lr), tokens = fmt::format("tokens seen: {}", last_.tokens),
                    norm = "gradient norm: " + format_exact(grad_norm_sum_ / steps),
                    reserved = fmt::format("reserved memory: {}", reserved_bytes),
                    allocated = fmt::format("allocated memory: {}", allocated_bytes),
                    overall = fmt::format("overall token per gpu per sec: {}", rate(overall_time));
  std::vector<std::string> all;
  if (labels_of_2024_)
    all = {step,
           tokens,
           loss,
           norm,
           fmt::format("speed for these {} steps: {}", interval_steps_, format_exact(step_time)),
           "overall speed: " + format_exact(overall_time),
           lr,
           reserved,
           allocated,
           overall,
           fmt::format("token per day: {}", per_day)};
  else
    all = {step,
           loss,
           lr,
           tokens,
           norm,
           reserved,
           allocated,
           "current step time: " + format_exact(step_time),
           "overall step time: " + format_exact(overall_time),
           fmt::format("current token per gpu per sec: {}", rate(step_time)),
           overall,
           fmt::format("overall token per day: {}", per_day)};
  interval_steps_ = 0;
  loss_sum_ = grad_norm_sum_ = 0;
  interval_start_ = now;
  return join(all, "\n");
}

}  // namespace trireme
