#pragma once
// Private to ops/: launches of kernels/cross_entropy and kernels/scale for the loss head.

#include <ATen/core/Tensor.h>

namespace trireme::launch {

/// Cross-entropy of logits [T, V] (rows may lie apart), which become gradient_weights * (softmax - one-hot) when
/// wanted. weights and gradient_weights fp32 [T], zero in the same places; losses fp32 [T] are weighted.
void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient);
/// fp32 scalar; fp64 inside, one fixed order.
at::Tensor sum(const at::Tensor& values);
/// x * factor (fp32 scalar), the product in fp32.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype);
/// x [T, D] contiguous, row t times factors[t] (fp32), the product in fp32.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors);

}  // namespace trireme::launch
