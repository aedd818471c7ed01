#pragma once
// Private to ops/: launches of kernels/cross_entropy and kernels/scale, used by the loss head.

#include <ATen/core/Tensor.h>

namespace trireme::launch {

/// Cross-entropy of logits [T, V] (the row stride may exceed V). If gradients are wanted, logits become
/// gradient_weights * (softmax - one-hot). weights and gradient_weights: fp32 [T], zero for the same tokens. losses:
/// fp32 [T], weighted.
void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient);
/// Sum of `values` as fp32 scalar; fp64 inside, in one fixed order.
at::Tensor sum(const at::Tensor& values);
/// x * factor in `dtype`; factor is an fp32 scalar, the product is computed in fp32.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype);
/// Row t of x [T, D] (contiguous) times factors[t] (fp32); the product is computed in fp32.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors);

}  // namespace trireme::launch
