#pragma once
// E4M3 with one scale a tensor, as frozen weights are stored: value = code * inverse_scale, largest code 448. Scales
// are formed and used on the device.

#include <ATen/core/Tensor.h>

namespace trireme {

constexpr double kLargestE4m3 = 448.0, kLargestE5m2 = 57344.0;

/// The largest |w|, fp32 scalar on w's device, without a copy of w in fp32.
at::Tensor fp8_amax(const at::Tensor& w);
/// amax / 448 as fp32; 1 where amax is 0.
at::Tensor fp8_inverse_scale(const at::Tensor& amax);
/// target (E4M3) = w / inverse_scale, rounded to nearest, saturated; any shape.
void fp8_cast_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& inverse_scale);

}  // namespace trireme
