#include "post_norm_bridge.h"

#include "bridge_tools.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace trireme::bridge {

namespace {

const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

kernels::RowDropout row_dropout(const Dropout& dropout, uint64_t stream, int64_t rows) {
  if (!dropout.active()) return {};
  TRIREME_CHECK(dropout.sample_ids_B.numel() == rows && dropout.sample_ids_B.scalar_type() == at::kLong,
                "dropout needs one int64 id for each of ", rows, " rows, got ", dropout.sample_ids_B.numel());
  const DropoutKey key = dropout_key(dropout, stream);
  return {
      dropout.sample_ids_B.const_data_ptr<int64_t>(), 1, key.t0, key.t1, key.threshold, static_cast<float>(key.scale)};
}

kernels::GeluKind kind(GeluForm form) {
  return form == GeluForm::kTanh ? kernels::GeluKind::kTanh : kernels::GeluKind::kErf;
}

}  // namespace

rows::PostNormed post_norm_forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                                   const LayerNormWeights& norm, const Dropout& dropout, uint64_t stream) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor added = residual.defined() ? residual.contiguous() : at::Tensor();
  const auto statistics = x.options().dtype(at::kFloat);
  rows::PostNormed result{at::empty_like(x), at::empty_like(x), at::empty({x.size(0)}, statistics),
                          at::empty({x.size(0)}, statistics)};
  kernels::LayerNormForward a;
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.dropout = row_dropout(dropout, stream, x.size(0));
  a.residual = data_or_null(added);
  a.gamma = norm.gamma.const_data_ptr();
  a.beta = norm.beta.const_data_ptr();
  a.sum = result.sum.mutable_data_ptr();
  a.y = result.y.mutable_data_ptr();
  a.mean = result.mean.mutable_data_ptr<float>();
  a.rstd = result.rstd.mutable_data_ptr<float>();
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.eps = static_cast<float>(norm.eps);
  a.element = element(x);
  launched(kernels::layer_norm_forward(a, stream_of(x)), "layer_norm_forward");
  return result;
}

rows::PostNormGradients post_norm_backward(const at::Tensor& dy, const rows::PostNormed& kept, const at::Tensor& gamma,
                                           const Dropout& dropout, uint64_t stream, bool want_bias) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous();
  const int64_t num_rows = kept.sum.size(0), columns = kept.sum.size(1);
  rows::PostNormGradients result;
  result.d_sum = at::empty_like(kept.sum);
  result.d_gamma = at::empty_like(gamma);
  result.d_beta = at::empty_like(gamma);
  const at::Tensor workspace =
      at::empty({kernels::layer_norm_backward_workspace(num_rows, columns)}, gamma.options().dtype(at::kFloat));
  kernels::LayerNormBackward a;
  a.dy = gradient.const_data_ptr();
  a.sum = kept.sum.const_data_ptr();
  a.mean = kept.mean.const_data_ptr<float>();
  a.rstd = kept.rstd.const_data_ptr<float>();
  a.gamma = gamma.const_data_ptr();
  a.dropout = row_dropout(dropout, stream, num_rows);
  a.ds = result.d_sum.mutable_data_ptr();
  if (dropout.active()) {
    result.dx = at::empty_like(kept.sum);
    a.dx = result.dx.mutable_data_ptr();
  } else {
    result.dx = result.d_sum;
  }
  a.d_gamma = result.d_gamma.mutable_data_ptr();
  a.d_beta = result.d_beta.mutable_data_ptr();
  if (want_bias) {
    result.d_bias = at::empty_like(gamma);
    a.d_bias = result.d_bias.mutable_data_ptr();
  }
  a.workspace = workspace.mutable_data_ptr<float>();
  a.rows = num_rows;
  a.columns = columns;
  a.element = element(kept.sum);
  launched(kernels::layer_norm_backward(a, stream_of(gradient)), "layer_norm_backward");
  return result;
}

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, GeluForm form) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  kernels::GeluForward a;
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.y = y.mutable_data_ptr();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_forward(a, stream_of(x)), "gelu_forward");
  return y;
}

std::array<at::Tensor, 2> gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        GeluForm form) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor gradient = dy.contiguous();
  at::Tensor dx = at::empty_like(x), d_bias = at::empty_like(bias);
  const at::Tensor workspace =
      at::empty({kernels::gelu_backward_workspace(x.size(0), x.size(1))}, x.options().dtype(at::kFloat));
  kernels::GeluBackward a;
  a.dy = gradient.const_data_ptr();
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.dx = dx.mutable_data_ptr();
  a.d_bias = d_bias.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr<float>();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_backward(a, stream_of(x)), "gelu_backward");
  return {dx, d_bias};
}

}  // namespace trireme::bridge
