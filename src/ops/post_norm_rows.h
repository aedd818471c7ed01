#pragma once
// Private to ops/: the elementwise work of a post-norm block, each in one pass over its rows where a
// kernel serves, as at:: compositions elsewhere (the oracle of the kernels' tests). Nothing here
// records autograd. Matrices [T, D] contiguous; mean, rstd fp32 (fp64 for fp64) [T].

#include "trireme/ops/bert_layers.h"
#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace trireme::rows {

/// sum = residual + dropout(x + bias),  y = (sum - mean) * rstd * gamma + beta. bias and residual may be undefined.
struct PostNormed {
  at::Tensor y, sum, mean, rstd;
};
PostNormed post_norm_forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                             const LayerNormWeights& norm, const Dropout& dropout, uint64_t stream);

struct PostNormGradients {
  at::Tensor d_sum;  // the residual's gradient
  at::Tensor dx;     // d_sum itself without dropout
  at::Tensor d_gamma, d_beta, d_bias;
};
PostNormGradients post_norm_backward(const at::Tensor& dy, const PostNormed& kept, const at::Tensor& gamma,
                                     const Dropout& dropout, uint64_t stream, bool want_bias);

/// gelu(x + bias).
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, GeluForm form);
/// {dx, d_bias}.
std::array<at::Tensor, 2> gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        GeluForm form);

/// The shapes and dtypes of x W^T + b.
void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const char* what);

}  // namespace trireme::rows
