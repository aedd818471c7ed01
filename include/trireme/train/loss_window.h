#pragma once
// Loss spikes: how far a step's loss lies from those before it.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace trireme {

/// z-score of a loss against the mean and standard deviation of kSize finite losses before it. A spike does not enter
/// the window, so that a second one is measured against the same past; kPatience spikes in a row are the new normal.
///
/// The loss just before is not part of the past: a device that decides by limit() before the host has read that loss
/// decides the same.
class LossWindow {
 public:
  static constexpr size_t kSize = 128, kLeast = 16;
  static constexpr double kSpike = 6;
  static constexpr int kPatience = 8;

  /// The z-score where it exceeds kSpike, once kLeast losses are there. Losses that are not finite are ignored.
  std::optional<double> add(double loss);

  /// The loss above which the step under way is a spike. `last_added`: the loss of the step before it has been added
  /// already.
  std::optional<double> limit(bool last_added) const;

  /// For checkpoints: the losses, oldest first, then the number n of spikes in a row; -1 - n when the loss added last
  /// is not among them.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state);

 private:
  void settle();

  std::deque<double> losses_;
  std::optional<double> newest_;  // enters the past when the next one has been measured
  int in_a_row_ = 0;
};

}  // namespace trireme
