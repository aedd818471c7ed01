#include "trireme/ops/matmul/fp8_scales.h"

#include "matmul/operand.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

namespace trireme {

namespace {

/// Fraction of the largest code that a scale maps the amax to.
constexpr double kHeadroom = 0.5;
/// Distance of one tensor's scalars to the next, in floats: cuBLASLt requires aligned scalars.
constexpr int64_t kStride = 32;
enum Member { kInput, kWeight, kGradient, kMembers };

}  // namespace

void follow_amax(const at::Tensor& scale, const at::Tensor& inverse, const at::Tensor& amax,
                 const at::Tensor& largest) {
  const at::Tensor wanted = (largest * kHeadroom / amax).clamp_max_(std::numeric_limits<float>::max());
  scale.copy_(at::where(amax.gt(0).logical_and(amax.isfinite()), wanted, scale));
  inverse.copy_(scale.reciprocal());
}

Fp8Scales::Fp8Scales(int64_t linears, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const int64_t tensors = linears * kMembers;
  scale_ = at::ones({tensors}, options);
  inverse_ = at::ones({tensors, kStride}, options).select(1, 0);
  amax_ = at::zeros({tensors}, options);
  largest_ = at::full({linears, kMembers}, kLargestE4m3, options);
  largest_.select(1, kGradient).fill_(kLargestE5m2);
  largest_ = largest_.view({tensors});
  const auto scale_of = [&](int64_t linear, Member member) {
    const int64_t i = linear * kMembers + member;
    return Fp8Scale{scale_.select(0, i), inverse_.select(0, i), amax_.select(0, i), member == kGradient};
  };
  for (int64_t i = 0; i < linears; ++i)
    linears_.push_back({scale_of(i, kInput), scale_of(i, kWeight), scale_of(i, kGradient), &known_});
}

void Fp8Scales::begin_step() {
  amax_.zero_();
  if (known_) return;
  scale_.fill_(1);
  inverse_.fill_(1);
}

at::Tensor Fp8Scales::nonfinite() const {
  const at::NoGradGuard no_grad;
  return amax_.sum(at::kDouble) * 0.0;
}

at::Tensor Fp8Scales::update() {
  const at::NoGradGuard no_grad;
  // Counts infinities and NaN too. In the first step every matrix has the scale of its own amax, not of the whole
  // step's amax.
  const at::Tensor beyond = known_ ? (amax_ * scale_).le(largest_ * (1 + 1e-6)).logical_not().sum().to(at::kDouble)
                                   : at::zeros({}, amax_.options().dtype(at::kDouble));
  follow_amax(scale_, inverse_, amax_, largest_);
  amax_.zero_();
  known_ = true;
  return beyond;
}

std::vector<double> Fp8Scales::state() const {
  if (!known_) return {};
  const at::Tensor host = scale_.to(at::kCPU, at::kDouble);
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

bool Fp8Scales::restore(const std::vector<double>& state) {
  if (state.empty()) return true;  // saved before the end of the first step
  if (static_cast<int64_t>(state.size()) != tensors()) return false;
  const at::Tensor host = at::empty({tensors()}, at::kDouble);
  std::copy(state.begin(), state.end(), host.mutable_data_ptr<double>());
  scale_.copy_(host);
  inverse_.copy_(scale_.reciprocal());
  known_ = true;
  return true;
}

}  // namespace trireme
