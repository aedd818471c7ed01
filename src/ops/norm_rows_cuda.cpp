#include "norm_rows.h"

#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "launch.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

kernels::RowDropout row_dropout(const Dropout& dropout, int64_t rows) {
  if (!dropout.active()) return {};
  const at::Tensor& ids = dropout.sample_ids_B;
  TRIREME_CHECK(ids.defined() && ids.scalar_type() == at::kLong && ids.numel() > 0 && rows % ids.numel() == 0,
                "dropout of ", rows, " rows needs int64 sample ids whose number divides them");
  TRIREME_CHECK(dropout.sample_rows == 0, "a layer norm after dropout needs whole samples");
  const DropoutKey key = dropout_key(dropout);
  return {ids.const_data_ptr<int64_t>(), rows / ids.numel(), key.t0, key.t1, key.threshold,
          static_cast<float>(key.scale)};
}

}  // namespace

LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm, bool keep_sum,
                               bool want_plain, bool want_rows) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor residual = branch.residual.defined() ? branch.residual.contiguous() : at::Tensor();
  const auto statistics = x.options().dtype(at::kFloat);
  LayerNormed result;
  result.sum = keep_sum ? at::empty_like(x) : x;
  result.mean = at::empty({x.size(0)}, statistics);
  result.rstd = at::empty({x.size(0)}, statistics);
  kernels::LayerNormForward a;
  a.x = x.const_data_ptr();
  a.bias = data_or_null(branch.bias);
  a.dropout = row_dropout(branch.dropout, x.size(0));
  a.residual = data_or_null(residual);
  a.gamma = norm.weight.const_data_ptr();
  a.beta = norm.bias.const_data_ptr();
  if (keep_sum) a.sum = result.sum.mutable_data_ptr();
  allocate_forms(result.y, x, x.size(0), x.size(1), want_plain, want_rows, a.y, a.fp8);
  a.mean = result.mean.mutable_data_ptr<float>();
  a.rstd = result.rstd.mutable_data_ptr<float>();
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.eps = static_cast<float>(norm.eps);
  a.element = element(x);
  launched(kernels::layer_norm_forward(a, stream_of(x)), "layer_norm_forward");
  return result;
}

LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias, const Fp8Scale* codes) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous(), other = d_sum.defined() ? d_sum.contiguous() : at::Tensor();
  const int64_t num_rows = kept.sum.size(0), columns = kept.sum.size(1);
  LayerNormGradients result;
  result.d_sum = at::empty_like(kept.sum);
  kernels::LayerNormBackward a;
  a.dy = gradient.const_data_ptr();
  a.sum = kept.sum.const_data_ptr();
  a.mean = kept.mean.const_data_ptr<float>();
  a.rstd = kept.rstd.const_data_ptr<float>();
  a.gamma = norm.weight.const_data_ptr();
  a.dropout = row_dropout(dropout, num_rows);
  a.d_sum = data_or_null(other);
  a.ds = result.d_sum.mutable_data_ptr();
  if (want_norm) {
    result.d_weight = at::empty_like(norm.weight);
    result.d_bias = at::empty_like(norm.bias);
    a.d_gamma = result.d_weight.mutable_data_ptr();
    a.d_beta = result.d_bias.mutable_data_ptr();
  }
  if (want_branch_bias) {
    result.d_branch_bias = at::empty_like(norm.weight);
    a.d_bias = result.d_branch_bias.mutable_data_ptr();
  }
  at::Tensor workspace;
  if (want_norm || want_branch_bias) {
    workspace =
        at::empty({kernels::layer_norm_backward_workspace(num_rows, columns)}, norm.weight.options().dtype(at::kFloat));
    a.workspace = workspace.mutable_data_ptr<float>();
  }
  a.rows = num_rows;
  a.columns = columns;
  a.element = element(kept.sum);
  const bool turns = num_rows % 16 == 0 && columns % 16 == 0;
  if (codes != nullptr && codes->gradient && turns && kernels::layer_norm_backward_writes_codes(a)) {
    result.codes.data = at::empty(kept.sum.sizes(), kept.sum.options().dtype(at::kFloat8_e5m2));
    a.codes = bytes(result.codes.data);
    a.codes_scale = codes->scale.const_data_ptr<float>();
    a.codes_amax = codes->amax.mutable_data_ptr<float>();
  } else if (dropout.active()) {
    result.dx = at::empty_like(kept.sum);
    a.dx = result.dx.mutable_data_ptr();
  } else {
    result.dx = result.d_sum;
  }
  launched(kernels::layer_norm_backward(a, stream_of(gradient)), "layer_norm_backward");
  if (result.codes.defined()) {
    result.codes.transposed = transpose_bytes(result.codes.data, {});
    result.codes.inverse = codes->inverse;
  }
  return result;
}

RmsNormed rms_norm_forward(const at::Tensor& x_TD, const Norm& norm, const OperandForms& wanted) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor x = x_TD.contiguous();
  RmsNormed result;
  result.rstd = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  kernels::RmsNormForward a;
  a.x = x.const_data_ptr();
  a.weight = norm.weight.const_data_ptr();
  a.plus_one = norm.kind == NormKind::kRmsPlusOne;
  a.rstd = result.rstd.mutable_data_ptr<float>();
  allocate_forms(result.y, x, x.size(0), x.size(1), wanted.plain, wanted.rows, a.y, a.fp8);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.eps = static_cast<float>(norm.eps);
  a.element = element(x);
  result.y.maxima = launch_with_maxima(x, a.rows, a.columns, {.current = wanted.current}, "rms_norm_forward",
                                       [&](const auto& maxima) {
                                         a.maxima = maxima;
                                         return kernels::rms_norm_forward(a, stream_of(x));
                                       });
  return result;
}

at::Tensor rms_norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd, const Norm& norm,
                             const at::Tensor& d_residual, at::Tensor* d_weight) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor dy = dy_TD.contiguous(), x = x_TD.contiguous();
  const at::Tensor residual = d_residual.defined() ? d_residual.contiguous() : at::Tensor();
  at::Tensor dx = at::empty_like(x), workspace;
  kernels::RmsNormBackward a;
  a.dy = dy.const_data_ptr();
  a.x = x.const_data_ptr();
  a.weight = norm.weight.const_data_ptr();
  a.plus_one = norm.kind == NormKind::kRmsPlusOne;
  a.rstd = rstd.const_data_ptr<float>();
  a.d_residual = data_or_null(residual);
  a.dx = dx.mutable_data_ptr();
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  if (d_weight != nullptr) {
    *d_weight = at::empty_like(norm.weight);
    a.dw = d_weight->mutable_data_ptr();
    workspace = at::empty({kernels::rms_norm_backward_workspace(a.rows, a.columns)}, x.options().dtype(at::kFloat));
    a.workspace = workspace.mutable_data_ptr<float>();
  }
  launched(kernels::rms_norm_backward(a, stream_of(x)), "rms_norm_backward");
  return dx;
}

}  // namespace trireme::launch
