#include "post_norm_rows.h"

#include "post_norm_bridge.h"
#include "trireme/base/error.h"
#include "trireme/ops/kernels.h"

#include <ATen/ATen.h>

namespace trireme::rows {

namespace {

/// The widest rows that our kernels take: with gradients of vectors, half as many in fp32.
constexpr int64_t kKernelBytes = 16384;

bool kernels_serve(const at::Tensor& x) {
  return bridge::has_kernels(x) && x.is_contiguous() && x.size(-1) * x.element_size() <= kKernelBytes && x.size(0) > 0;
}

at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// One token is one sample of dropout: [T, D] as [T, 1, D].
at::Tensor drop(const at::Tensor& x, const Dropout& dropout, uint64_t stream) {
  return apply_dropout(x.unsqueeze(1), dropout, stream).squeeze(1);
}

const char* approximation(GeluForm form) { return form == GeluForm::kTanh ? "tanh" : "none"; }

}  // namespace

PostNormed post_norm_forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                             const LayerNormWeights& norm, const Dropout& dropout, uint64_t stream) {
  if (kernels_serve(x)) return bridge::post_norm_forward(x, bias, residual, norm, dropout, stream);
  at::Tensor sum = bias.defined() ? x + bias : x;
  if (dropout.active()) sum = drop(sum, dropout, stream);
  if (residual.defined()) sum = sum + residual;
  const at::Tensor wide = sum.to(accumulate_type(x));
  const at::Tensor mean = wide.mean(-1);
  const at::Tensor centred = wide - mean.unsqueeze(-1);
  const at::Tensor rstd = at::rsqrt(centred.square().mean(-1).add_(norm.eps));
  const at::Tensor normed = centred.mul_(rstd.unsqueeze(-1));
  return {(normed * norm.gamma + norm.beta).to(x.scalar_type()), sum, mean, rstd};
}

PostNormGradients post_norm_backward(const at::Tensor& dy, const PostNormed& kept, const at::Tensor& gamma,
                                     const Dropout& dropout, uint64_t stream, bool want_bias) {
  if (kernels_serve(kept.sum)) return bridge::post_norm_backward(dy, kept, gamma, dropout, stream, want_bias);
  const at::ScalarType type = accumulate_type(kept.sum), narrow = kept.sum.scalar_type();
  const at::Tensor rstd = kept.rstd.unsqueeze(-1), d = dy.to(type);
  const at::Tensor normed = (kept.sum.to(type) - kept.mean.unsqueeze(-1)).mul_(rstd);
  PostNormGradients result;
  result.d_gamma = d.mul(normed).sum(0).to(narrow);
  result.d_beta = d.sum(0).to(narrow);
  const at::Tensor g = d.mul(gamma);
  result.d_sum = (g - g.mean(-1, true) - normed * g.mul(normed).mean(-1, true)).mul_(rstd).to(narrow);
  result.dx = dropout.active() ? drop(result.d_sum, dropout, stream) : result.d_sum;
  if (want_bias) result.d_bias = result.dx.to(type).sum(0).to(narrow);
  return result;
}

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, GeluForm form) {
  if (kernels_serve(x)) return bridge::gelu_forward(x, bias, form);
  return at::gelu(x + bias, approximation(form));
}

std::array<at::Tensor, 2> gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        GeluForm form) {
  if (kernels_serve(x)) return bridge::gelu_backward(dy, x, bias, form);
  const at::Tensor dx = at::gelu_backward(dy, x + bias, approximation(form));
  return {dx, dx.to(accumulate_type(dx)).sum(0).to(dx.scalar_type())};
}

void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const char* what) {
  TRIREME_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && bias.dim() == 1 &&
                    bias.size(0) == weight.size(0),
                what, ": x ", x.sizes(), ", weight ", weight.sizes(), ", bias ", bias.sizes());
  TRIREME_CHECK(x.scalar_type() == weight.scalar_type(), what, ": x is ", x.scalar_type(), ", weight ",
                weight.scalar_type());
}

}  // namespace trireme::rows
