#include "dropout_parts.h"
#include "kernels/column_sum/column_sum.h"
#include "kernels/fp8/fp8.h"
#include "kernels/scale/scale.h"
#include "launch.h"
#include "matmul/operand.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

/// `a` has what dropout or a second matrix needs, or nothing.
at::Tensor column_sums(const at::Tensor& x_TD, kernels::MatrixColumnSum a) {
  const at::Tensor sums =
      at::empty({x_TD.size(1)}, x_TD.options().dtype(a.other == nullptr ? x_TD.scalar_type() : at::kFloat));
  const at::Tensor workspace =
      at::empty({kernels::matrix_column_sum_workspace(x_TD.size(0), x_TD.size(1))}, x_TD.options().dtype(at::kFloat));
  a.x = x_TD.const_data_ptr();
  a.sums = sums.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr<float>();
  a.rows = x_TD.size(0);
  a.columns = x_TD.size(1);
  a.element = element(x_TD);
  launched(kernels::matrix_column_sum(a, stream_of(x_TD)), "matrix_column_sum");
  return sums;
}

}  // namespace

at::Tensor sum_columns(const at::Tensor& x_TD) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  return column_sums(x_TD, {});
}

at::Tensor scale_columns(const at::Tensor& x_TD, const at::Tensor& factors_D, const at::Tensor& bias_D,
                         const at::Tensor& addend_TD) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor y = at::empty(x_TD.sizes(), x_TD.options()), factors = factors_D.contiguous(),
                   bias = bias_D.defined() ? bias_D.contiguous() : bias_D,
                   addend = addend_TD.defined() ? addend_TD.contiguous() : addend_TD;
  launched(kernels::scale_columns(x_TD.const_data_ptr(), factors.const_data_ptr<float>(),
                                  bias.defined() ? bias.const_data_ptr() : nullptr,
                                  addend.defined() ? addend.const_data_ptr() : nullptr, y.mutable_data_ptr(),
                                  x_TD.size(0), x_TD.size(1), element(x_TD), stream_of(x_TD)),
           "scale_columns");
  return y;
}

std::pair<at::Tensor, at::Tensor> scale_and_sum_columns(const at::Tensor& x_TD, const at::Tensor& factors_D,
                                                        const at::Tensor& other_TD) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor y = at::empty(x_TD.sizes(), x_TD.options()), factors = factors_D.contiguous();
  kernels::MatrixColumnSum a;
  a.other = other_TD.const_data_ptr();
  a.factors = factors.const_data_ptr<float>();
  a.dropped = y.mutable_data_ptr();
  const at::Tensor sums = column_sums(x_TD, a);
  return {y, sums};
}

Operand dropout_with_sums(const at::Tensor& x_TD, const Dropout& dropout) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const DropoutPart part = dropout_parts(x_TD, dropout).front();
  const at::Tensor ids = dropout.sample_ids_B.narrow(0, part.first_sample, part.samples).contiguous();
  const DropoutKey key = dropout_key(dropout);
  Operand result;
  result.plain = at::empty(x_TD.sizes(), x_TD.options());
  kernels::MatrixColumnSum a;
  a.dropped = result.plain.mutable_data_ptr();
  a.ids = ids.const_data_ptr<int64_t>();
  a.rows_of_sample = part.rows;
  a.first_row = part.first_row;
  a.t0 = key.t0;
  a.t1 = key.t1;
  a.threshold = key.threshold;
  a.scale = static_cast<float>(key.scale);
  result.column_sums = column_sums(x_TD, a);
  return result;
}

Fp8Rows quantize_rows(const at::Tensor& x_TD, at::Tensor* found) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  Fp8Rows rows = empty_rows(x_TD, x_TD.size(0), x_TD.size(1), 1);
  const KnownMaxima maxima = launch_with_maxima(
      x_TD, x_TD.size(0), x_TD.size(1), {.columns = found != nullptr}, "quantize_rows", [&](const auto& wanted) {
        return kernels::quantize_rows(x_TD.const_data_ptr(), bytes(rows.data),
                                      rows.inverse_scale.mutable_data_ptr<float>(), x_TD.size(0), x_TD.size(1),
                                      element(x_TD), stream_of(x_TD), wanted);
      });
  if (found != nullptr) *found = maxima.columns;
  return rows;
}

Fp8Rows quantize_columns(const at::Tensor& x_TD, const at::Tensor& known) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const int64_t num_rows = x_TD.size(0), columns = x_TD.size(1);
  TRIREME_CHECK(num_rows % 16 == 0 && columns % 16 == 0, "FP8 columns of a matrix ", x_TD.sizes(),
                " need multiples of 16 on a GPU: use precision.linear: compute");
  Fp8Rows turned = empty_rows(x_TD, columns, num_rows, 1);
  const at::Tensor amax = at::empty({columns}, x_TD.options().dtype(at::kFloat));
  kernels::Fp8Columns a;
  a.x = x_TD.const_data_ptr();
  a.maxima = data_or_null(known);
  a.maxima_rows = known.defined() ? known.size(0) : 0;
  a.transposed = bytes(turned.data);
  a.inverse = turned.inverse_scale.mutable_data_ptr<float>();
  a.workspace = amax.mutable_data_ptr<float>();
  a.rows = num_rows;
  a.columns = columns;
  a.element = element(x_TD);
  launched(kernels::fp8_columns(a, stream_of(x_TD)), "fp8_columns");
  return turned;
}

Operand make_current_codes(const at::Tensor& x_TD, CurrentCodes format, bool want_column_sums,
                           const at::Tensor& known) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const auto fp32 = x_TD.options().dtype(at::kFloat);
  at::Tensor amax = known;
  if (!known.defined()) {
    amax = at::zeros({}, fp32);
    launched(kernels::amax(x_TD.const_data_ptr(), x_TD.numel(), element(x_TD), amax.mutable_data_ptr<float>(),
                           stream_of(x_TD)),
             "amax");
  }
  return make_codes({x_TD, {}, {}}, {{}, at::empty({}, fp32), amax, format == CurrentCodes::kE5m2}, want_column_sums);
}

at::Tensor transpose_bytes(const at::Tensor& matrix, const at::Tensor& given) {
  const c10::cuda::CUDAGuard guard(matrix.device());
  const at::Tensor out = given.defined() ? given : at::empty({matrix.size(1), matrix.size(0)}, matrix.options());
  launched(kernels::transpose_bytes(static_cast<const uint8_t*>(matrix.const_data_ptr()), bytes(out), matrix.size(0),
                                    matrix.size(1), stream_of(matrix)),
           "transpose_bytes");
  return out;
}

void write_codes(const at::Tensor& target, const at::Tensor& w, const at::Tensor& scale) {
  const c10::cuda::CUDAGuard guard(w.device());
  launched(kernels::quantize_values(w.const_data_ptr(), bytes(target), scale.const_data_ptr<float>(), w.numel(),
                                    element(w), stream_of(w)),
           "quantize_values");
}

Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool want_column_sums) {
  const c10::cuda::CUDAGuard guard(source.x.device());
  const at::Tensor x = source.x.contiguous(), dy = source.dy.defined() ? source.dy.contiguous() : at::Tensor();
  const int64_t num_rows = x.size(0), columns = x.size(1);
  TRIREME_CHECK(num_rows % 16 == 0 && columns % 16 == 0, "FP8 codes of a matrix ", x.sizes(),
                " need multiples of 16 on a GPU: use precision.linear: compute");
  const auto type = x.options().dtype(scale.gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
  Operand result;
  result.codes = {at::empty({num_rows, columns}, type), at::empty({columns, num_rows}, type), scale.inverse};
  at::Tensor workspace;
  kernels::Fp8Operands a;
  a.x = x.const_data_ptr();
  if (source.gelu != Activation::kNone) {
    a.values = dy.defined() ? kernels::OperandValues::kGeluGradient : kernels::OperandValues::kGelu;
    a.bias = source.bias.const_data_ptr();
    if (dy.defined()) a.dy = dy.const_data_ptr();
    a.gelu = source.gelu == Activation::kGeluTanh ? kernels::GeluKind::kTanh : kernels::GeluKind::kErf;
  }
  a.data = bytes(result.codes.data);
  a.transposed = bytes(result.codes.transposed);
  if (scale.scale.defined()) {
    a.scale = scale.scale.const_data_ptr<float>();
    if (scale.amax.defined()) a.amax = scale.amax.mutable_data_ptr<float>();
  } else {
    a.own_amax = scale.amax.const_data_ptr<float>();
    a.inverse = scale.inverse.mutable_data_ptr<float>();
  }
  if (want_column_sums) {
    result.column_sums = at::empty({columns}, x.options());
    workspace = at::empty({kernels::fp8_operands_workspace(num_rows, columns)}, x.options().dtype(at::kFloat));
    a.sums = result.column_sums.mutable_data_ptr();
    a.workspace = workspace.mutable_data_ptr<float>();
  }
  a.rows = num_rows;
  a.columns = columns;
  a.element = element(x);
  a.format = scale.gradient ? kernels::Fp8Format::kE5M2 : kernels::Fp8Format::kE4M3;
  launched(kernels::fp8_operands(a, stream_of(x)), "fp8_operands");
  return result;
}

}  // namespace trireme::launch
