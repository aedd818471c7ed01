#pragma once
// Loss spikes: how far a step's loss lies from those before it.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace trireme {

/// z-score of a loss against the mean and standard deviation of the last kSize finite losses. A spike does not enter the window, so that
/// a second one is measured against the same past; kPatience spikes in a row are the new normal.
class LossWindow {
 public:
  static constexpr size_t kSize = 128, kLeast = 16;
  static constexpr double kSpike = 6;
  static constexpr int kPatience = 8;

  /// The z-score where it exceeds kSpike, once kLeast losses are there. Losses that are not finite are ignored.
  std::optional<double> add(double loss);

  /// For checkpoints: the losses, oldest first, then the number of spikes in a row.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state);

 private:
  std::deque<double> losses_;
  int in_a_row_ = 0;
};

}  // namespace trireme
