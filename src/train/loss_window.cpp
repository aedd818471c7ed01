#include "loss_window.h"

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

struct Spread {
  double mean = 0, deviation = 0;
};

template <class Range>
Spread spread_of(const Range& losses) {
  Spread spread;
  const auto count = static_cast<double>(losses.size());
  for (const double value : losses) spread.mean += value / count;
  double square = 0;
  for (const double value : losses) square += (value - spread.mean) * (value - spread.mean) / count;
  // At least 0.5 % of the mean: where losses hardly vary, small changes would otherwise be spikes.
  spread.deviation = std::max({std::sqrt(square), 0.005 * std::abs(spread.mean), 1e-12});
  return spread;
}

}  // namespace

std::optional<double> LossWindow::limit(bool last_added) const {
  LossWindow window = *this;
  if (!last_added) window.settle();
  if (window.losses_.size() < kLeast) return std::nullopt;
  const Spread spread = spread_of(window.losses_);
  return spread.mean + kSpike * spread.deviation;
}

void LossWindow::settle() {
  if (in_a_row_ >= kPatience - 1) {
    losses_.clear();
    in_a_row_ = 0;
  }
  if (newest_) losses_.push_back(*newest_);
  newest_.reset();
  if (losses_.size() > kSize) losses_.pop_front();
}

std::optional<double> LossWindow::add(double loss) {
  const std::optional<double> highest = limit(/*last_added=*/true);
  std::optional<double> spike;
  if (std::isfinite(loss) && highest && loss > *highest) {
    const Spread spread = spread_of(losses_);
    spike = (loss - spread.mean) / spread.deviation;
  }
  settle();
  if (!std::isfinite(loss)) return std::nullopt;
  if (spike && ++in_a_row_ < kPatience - 1) return spike;
  if (!spike) in_a_row_ = 0;
  newest_ = loss;
  return spike;
}

std::vector<double> LossWindow::state() const {
  std::vector<double> state(losses_.begin(), losses_.end());
  if (newest_) state.push_back(*newest_);
  // After a loss that was not finite, or a spike, the last of these losses is older than the step before.
  state.push_back(newest_ || losses_.empty() ? in_a_row_ : -1 - in_a_row_);
  return state;
}

void LossWindow::restore(const std::vector<double>& state) {
  losses_.clear();
  newest_.reset();
  in_a_row_ = 0;
  if (state.empty()) return;
  losses_.assign(state.begin(), state.end() - 1);
  in_a_row_ = static_cast<int>(state.back());
  const bool settled = in_a_row_ < 0;
  if (settled) in_a_row_ = -1 - in_a_row_;
  if (settled || losses_.empty() || (in_a_row_ > 0 && in_a_row_ < kPatience - 1)) return;
  // The last loss was no spike, or the one that starts a new window.
  newest_ = losses_.back();
  losses_.pop_back();
}

}  // namespace trireme
