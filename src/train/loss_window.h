#pragma once
// Loss spikes: how far a step's loss is above those before it.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace trireme {

/// z-score of a loss against the mean and standard deviation of kSize finite losses before it. A spike does not enter
/// the window, so that a second one is measured against the same losses. kPatience spikes in a row are a new level: the
/// window starts again with them.
///
/// The loss just before is not in the window, so that the device's decision by limit(), made before the host has read
/// that loss, is the same as the host's by add().
class LossWindow {
 public:
  static constexpr size_t kSize = 128, kLeast = 16;
  static constexpr double kSpike = 6;
  static constexpr int kPatience = 8;

  /// The z-score where it exceeds kSpike, once kLeast losses are there. Losses that are not finite are ignored.
  std::optional<double> add(double loss);

  /// The loss above which the current step is a spike. `last_added`: add() has seen the step before it.
  std::optional<double> limit(bool last_added) const;

  /// For checkpoints: the losses, oldest first, then the number n of spikes in a row; -1 - n when the loss added last
  /// is not one of them.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state);

 private:
  void settle();

  std::deque<double> losses_;
  std::optional<double> newest_;  // enters the window when the next one has been measured
  int in_a_row_ = 0;
};

}  // namespace trireme
