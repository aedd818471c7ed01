#include "trireme/train/loss_window.h"

#include <algorithm>
#include <cmath>

namespace trireme {

std::optional<double> LossWindow::add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  std::optional<double> spike;
  if (losses_.size() >= kLeast) {
    double mean = 0, square = 0;
    for (const double value : losses_) mean += value / static_cast<double>(losses_.size());
    for (const double value : losses_) square += (value - mean) * (value - mean) / static_cast<double>(losses_.size());
    // A loss that hardly varies makes every wobble an outlier: half a percent is never a spike's unit.
    const double deviation = std::max(std::sqrt(square), 0.005 * std::abs(mean));
    if (const double z = (loss - mean) / std::max(deviation, 1e-12); z > kSpike) spike = z;
  }
  if (spike && ++in_a_row_ < kPatience) return spike;
  if (spike) losses_.clear();
  in_a_row_ = 0;
  losses_.push_back(loss);
  if (losses_.size() > kSize) losses_.pop_front();
  return spike;
}

std::vector<double> LossWindow::state() const {
  std::vector<double> state(losses_.begin(), losses_.end());
  state.push_back(in_a_row_);
  return state;
}

void LossWindow::restore(const std::vector<double>& state) {
  losses_.clear();
  in_a_row_ = 0;
  if (state.empty()) return;
  losses_.assign(state.begin(), state.end() - 1);
  in_a_row_ = static_cast<int>(state.back());
}

}  // namespace trireme
