#pragma once
// Root-mean-square norm as Hugging Face's LlamaRMSNorm.

#include <ATen/core/Tensor.h>

namespace trireme {

/// y = weight * to(x.dtype, x32 * rsqrt(mean(x32^2) + eps)), over the last dimension; x32 is x in
/// fp32 (fp64 stays fp64).
/// x [.., D], weight [D] of the same dtype. Backward saves x and the reciprocal root (fp32, one per
/// row); the weight's gradient is formed only when the weight is trained, summed in fp32. On
/// sm_90 our kernels serve; on other GPUs LibTorch's fused one, which rounds once, after the product
/// with weight, instead of twice.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// The plain composition; records autograd. Oracle of the tests.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace trireme
