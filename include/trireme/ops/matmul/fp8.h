#pragma once
// E4M3 with one scale per tensor, the format of FP8 weights in the store: value = code * inverse_scale, largest code
// 448. Scales are fp32 scalars, computed and used on the device. Defined in src/ops/matmul/operand.cpp and product.cpp.

#include <ATen/core/Tensor.h>

namespace trireme {

constexpr double kLargestE4m3 = 448.0, kLargestE5m2 = 57344.0;

/// max |w| as fp32 scalar on w's device; does not copy w to fp32.
at::Tensor fp8_amax(const at::Tensor& w);
/// amax / 448 in fp32, at least the smallest normal number; 1 if amax is 0.
at::Tensor fp8_inverse_scale(const at::Tensor& amax);
/// For frozen weights: target (E4M3) = w / inverse_scale, rounded to nearest and saturated. w of any float type and any
/// shape; different numbers of elements are an internal error.
void fp8_cast_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& inverse_scale);

/// For trained weights, after each optimizer step: target (E4M3) = w * scale, rounded to nearest and saturated, in one
/// pass. w fp32 or bf16, `scale` fp32 scalar on its device. Matrices that are not contiguous, or have different numbers
/// of elements, are an internal error.
void fp8_codes_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& scale);

}  // namespace trireme
