#pragma once
// The state of delayed scaling (Recipe::kFp8Delayed) of all trained matrices of a run, as the MLPerf BERT submissions
// run it: the newest amax counts. Scales aim at half of the largest code, so that a tensor may double from one step to
// the next before it saturates. Scales stay on the device.

#include "trireme/nn/weight.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

class Fp8Scales {
 public:
  Fp8Scales(int64_t linears, at::Device device);
  Fp8Scales(const Fp8Scales&) = delete;
  Fp8Scales& operator=(const Fp8Scales&) = delete;

  const Fp8LinearScales& linear(int64_t index) const { return linears_[static_cast<size_t>(index)]; }
  int64_t tensors() const { return amax_.numel(); }
  /// fp32 [tensors]: what a run on several ranks brings to the maximum over them before update().
  const at::Tensor& amax() const { return amax_; }
  /// Before a step: where no step has ended yet, forgets the amax of passes that were no step (warm-up on made-up
  /// rows).
  void begin_step();
  /// After a step: scales of the next from the amax of this; kept where that is 0, infinite or NaN. Returns how many
  /// tensors had values beyond what their scale could hold (infinities and NaN among them), fp64 scalar.
  at::Tensor update();
  /// What a checkpoint keeps; exact. Empty before the first step has ended.
  std::vector<double> state() const;
  /// False: not the state of this many tensors.
  bool restore(const std::vector<double>& state);

 private:
  at::Tensor scale_, inverse_, amax_, largest_;
  std::vector<Fp8LinearScales> linears_;
  bool known_ = false;
};

}  // namespace trireme
