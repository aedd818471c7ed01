#include "run_clock.h"

#include "trireme/base/rounding.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

namespace trireme {

namespace {
constexpr int64_t kFirst = 10, kEvery = 50;
constexpr double kRatio = 2, kShareOfStep = 0.25;
}  // namespace

RunClock::RunClock(const Config& config, std::optional<double> nominal_samples_per_step, at::Device device,
                   std::function<double()> now, double process_begin)
    : config_(config),
      batches_(config.batch),
      nominal_samples_per_step_(nominal_samples_per_step),
      device_(device),
      now_(std::move(now)),
      process_begin_(process_begin),
      run_begin_(now_()),
      last_save_time_(run_begin_) {
  if (config.train.max_time) max_seconds_ = parse_day_time(*config.train.max_time);
}

void RunClock::start_run(int64_t step, int64_t samples) {
  first_step_ = last_saved_step_ = last_straggler_step_ = step;
  first_samples_ = samples;
  run_begin_ = last_save_time_ = now_();
}

double RunClock::run_rate(int64_t samples) const {
  return static_cast<double>(samples - first_samples_) / std::max(1e-9, now_() - run_begin_);
}

int64_t RunClock::intervals(int64_t step, int64_t every) const {
  if (batches_.ramps()) return batches_.before(step) / every;
  return step / ceil_div(every, config_.batch.global_batch_size);
}

bool RunClock::evaluation_due(int64_t step) const {
  if (!config_.eval.every_samples) return false;
  if (nominal_samples_per_step_) {
    const auto every = static_cast<double>(*config_.eval.every_samples);
    const auto full_steps = [&](int64_t steps) {  // steps of the whole batch with as many rows
      return static_cast<double>(batches_.before(steps)) / static_cast<double>(batches_.largest());
    };
    return std::floor(full_steps(step) * *nominal_samples_per_step_ / every) >
           std::floor(full_steps(step - 1) * *nominal_samples_per_step_ / every);
  }
  const int64_t every = *config_.eval.every_samples;
  return intervals(step, every) > intervals(step - 1, every);
}

bool RunClock::skips_evaluation(int64_t index) const {
  const auto& skip = config_.eval.skip_first;
  if (!skip) return false;
  // MLPerf's rule for llama2_70b_lora: 0.125 * global batch size + 2.
  return index < (*skip == EvalSection::kSkipByMlperf
                      ? static_cast<int64_t>(0.125 * static_cast<double>(config_.batch.global_batch_size) + 2)
                      : *skip);
}

bool RunClock::save_due(int64_t step) const {
  if (step >= config_.train.max_steps) return false;
  if (save_requested_) return true;
  if (!config_.output.save_every_samples) return false;
  const int64_t every = *config_.output.save_every_samples, now = intervals(step, every);
  // The second condition: a step with non-finite numbers postponed a save.
  return now > intervals(step - 1, every) || now > intervals(std::max(last_saved_step_, first_step_), every);
}

bool RunClock::minutes_passed() const {
  return config_.output.save_every_minutes && now_() - last_save_time_ >= 60 * *config_.output.save_every_minutes;
}

void RunClock::saved(int64_t step, double seconds) {
  ++saves_;
  save_seconds_ += seconds;
  last_saved_step_ = step;
  last_save_time_ = now_();
  save_requested_ = false;
}

void RunClock::evaluated(double seconds) {
  ++evaluations_;
  evaluation_seconds_ += seconds;
}

bool RunClock::time_is_up(double save_seconds) const {
  if (!max_seconds_) return false;
  const double longest_step = newest_.empty() ? 0 : *std::max_element(newest_.begin(), newest_.end());
  return now_() - process_begin_ + 2 * longest_step + save_seconds >= static_cast<double>(*max_seconds_);
}

double RunClock::remaining_seconds(int64_t step) const {
  const int64_t last = config_.train.max_steps;
  const double newest = std::accumulate(newest_.begin(), newest_.end(), 0.0) / static_cast<double>(newest_.size());
  double seconds = newest * static_cast<double>(last - step);
  // How many times something that happens every so many steps happens after `step`.
  const auto times = [&](double every) {
    return std::floor(static_cast<double>(last) / every) - std::floor(static_cast<double>(step) / every);
  };
  if (evaluations_ > 0) {
    double left = 0;
    if (config_.eval.every_samples && nominal_samples_per_step_)
      left = times(static_cast<double>(*config_.eval.every_samples) / *nominal_samples_per_step_);
    else if (const auto every = config_.eval.every_samples)
      left = static_cast<double>(intervals(last, *every) - intervals(step, *every));
    if (!evaluation_due(last)) left += 1;  // the one after the last step
    seconds += left * evaluation_seconds_ / static_cast<double>(evaluations_);
  }
  if (const auto every = config_.output.save_every_samples; saves_ > 0 && every)
    seconds += static_cast<double>(intervals(last, *every) - intervals(step, *every)) * save_seconds_ /
               static_cast<double>(saves_);
  return seconds;
}

bool RunClock::goes_on_for(double seconds, int64_t step) const {
  return remaining_seconds(step) >= seconds &&
         (!max_seconds_ || process_begin_ + static_cast<double>(*max_seconds_) - now_() >= seconds);
}

std::optional<int64_t> RunClock::take_straggler_interval(int64_t step) {
  if (!straggler_report_due(step - first_step_)) return std::nullopt;
  return step - std::exchange(last_straggler_step_, step);
}

TimePoint RunClock::mark() const {
  TimePoint point;
  if (device_.is_cuda()) {
    point.event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    point.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  point.seconds = now_();
  return point;
}

double RunClock::median_step_seconds() const {
  std::vector<double> sorted = newest_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double RunClock::end_step(const TimePoint& end) {
  // On a GPU the host runs ahead: only the device knows when a step ended.
  const double seconds =
      end.event ? step_begin_.event->elapsedTime(*end.event) / 1000 : end.seconds - step_begin_.seconds;
  step_begin_ = end;
  timed_seconds_ += seconds;
  if (timed_steps_ < kNewestSteps)
    newest_.push_back(seconds);
  else
    newest_[static_cast<size_t>(timed_steps_ % kNewestSteps)] = seconds;
  ++timed_steps_;
  block_.seconds += seconds;
  ++block_.steps;
  return seconds;
}

void RunClock::start_block(int64_t samples) { block_ = {true, samples, 0, 0}; }

std::optional<MlperfBlock> RunClock::end_block(int64_t step, int64_t samples, double loss) {
  if (!std::exchange(block_.open, false)) return std::nullopt;
  const double rate = block_.seconds > 0 ? static_cast<double>(samples - block_.first_samples) / block_.seconds : 0;
  return MlperfBlock{step, samples, block_.steps, block_.seconds, loss, rate};
}

bool straggler_report_due(int64_t steps) { return steps == kFirst || (steps > 0 && steps % kEvery == 0); }

std::string encode_section_times(const std::vector<SectionTime>& times) {
  std::string text;
  for (const SectionTime& time : times) text += fmt::format("{} {} ", time.name, time.seconds);
  return text;
}

std::vector<std::string> find_stragglers(const std::vector<std::string>& per_rank,
                                         const std::vector<std::string>& hosts, int64_t steps, double step_seconds) {
  const size_t ranks = per_rank.size();
  std::map<std::string, std::vector<double>> sections;
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::istringstream in(per_rank[rank]);
    std::string name;
    for (double seconds; in >> name >> seconds;) {
      auto& of_ranks = sections[name];
      of_ranks.resize(ranks, 0);
      of_ranks[rank] = seconds / static_cast<double>(steps);
    }
  }
  std::vector<std::string> found;
  for (const auto& [name, seconds] : sections) {
    std::vector<double> sorted = seconds;
    // The lower of two middles: with two ranks, the faster one is the measure.
    const size_t middle = (ranks - 1) / 2;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<long>(middle), sorted.end());
    const double median = sorted[middle];
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (seconds[rank] <= kRatio * median || seconds[rank] - median < kShareOfStep * step_seconds) continue;
      const std::string ratio = median > 1e-6
                                    ? fmt::format("{:.1f} times the others' {:.3g} s", seconds[rank] / median, median)
                                    : std::string("the others need none");
      found.push_back(fmt::format("rank {} on {} is slow in section {}: {:.3g} s a step, {}; a step takes {:.3g} s",
                                  rank, hosts[rank], name, seconds[rank], ratio, step_seconds));
    }
  }
  return found;
}

}  // namespace trireme
