#pragma once
// The state of delayed scaling (Recipe::kFp8Delayed) for all trained matrices of a run, as in the MLPerf BERT
// submissions: the amax history has length 1. A scale maps the amax to half of the largest code, so that values may
// double from one step to the next before they saturate. Scales stay on the device.

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
  /// fp32 [tensors]. With several ranks the caller reduces it with a maximum over the ranks before update().
  const at::Tensor& amax() const { return amax_; }
  /// Call before a step. Discards values of passes outside steps (warm-up on generated rows, a step that was computed
  /// again): the amax and, before the end of the first step, the scales.
  void begin_step();
  /// fp64 scalar: 0 if every amax recorded since begin_step() is finite, otherwise NaN. Products clamp an infinity, so
  /// that a step's results do not show it.
  at::Tensor nonfinite() const;
  /// Call after a step: computes the next step's scales from this step's amax; a scale whose amax is 0, infinite or NaN
  /// is kept. Returns the number of tensors with values beyond the range of their scale (infinities and NaN included; 0
  /// for the first step), fp64 scalar.
  at::Tensor update();
  /// The state for a checkpoint; exact. Empty before the end of the first step.
  std::vector<double> state() const;
  /// False if `state` does not belong to this number of tensors.
  bool restore(const std::vector<double>& state);

 private:
  at::Tensor scale_, inverse_, amax_, largest_;
  std::vector<Fp8LinearScales> linears_;
  bool known_ = false;
};

}  // namespace trireme
