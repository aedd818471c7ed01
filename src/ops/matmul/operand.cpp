#include "matmul/operand.h"

#include "activations.h"
#include "dropout_parts.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace trireme {

namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
/// Elements converted at a time, because an fp32 copy of a whole weight would take too much memory.
constexpr int64_t kCastChunk = int64_t{1} << 26;

double largest_code(bool gradient) { return gradient ? kLargestE5m2 : kLargestE4m3; }
double largest_code(const Fp8Scale& scale) { return largest_code(scale.gradient); }

at::Tensor values_of(const CodesSource& source) {
  if (source.gelu == Activation::kNone) return source.x;
  if (!source.dy.defined()) return gelu_forward(source.x, source.bias, source.gelu);
  return gelu_backward(source.dy, source.x, source.bias, source.gelu).dx;
}

at::Tensor transposed_bytes(const at::Tensor& codes) {
  return codes.view(at::kByte).t().contiguous().view(codes.scalar_type());
}

/// `top` in fp32 / the largest code, at least the smallest normal number, so that its reciprocal is finite; 1 for 0.
at::Tensor inverse_scale_of(const at::Tensor& top, double largest) {
  const at::Tensor inverse = (top / largest).clamp_min_(std::numeric_limits<float>::min());
  return at::where(top.gt(0).logical_or(top.isnan()), inverse, 1.0);
}

Fp8Rows compose_rows(const at::Tensor& x_TD, int64_t groups) {
  const at::Tensor x = x_TD.to(at::kFloat).view({x_TD.size(0), groups, -1});
  const at::Tensor inverse = fp8_inverse_scale(x.abs().amax(-1));
  const at::Tensor data = x.div(inverse.unsqueeze(-1)).clamp_(-kLargestE4m3, kLargestE4m3).to(kE4m3);
  return {data.view(x_TD.sizes()), inverse};
}

Choice codes_choice(std::string_view operation, const at::Tensor& x) {
  return Dispatch(operation, x).needs(x.element_size() == 2, "elements do not have 16 bits").choice();
}

/// The composition of what the kernel does in one pass.
Operand compose_codes(const at::Tensor& values, const Fp8Scale& scale, bool want_column_sums) {
  scale.amax.copy_(at::maximum(scale.amax, fp8_amax(values)));
  const double largest = largest_code(scale);
  const at::Tensor data =
      values.to(at::kFloat).mul(scale.scale).clamp_(-largest, largest).to(scale.gradient ? at::kFloat8_e5m2 : kE4m3);
  Operand result;
  result.codes = {data, transposed_bytes(data), scale.inverse};
  if (want_column_sums) result.column_sums = at::sum(values, {0}, false, at::kFloat).to(values.scalar_type());
  return result;
}

}  // namespace

Fp8Rows quantize_rows(const at::Tensor& x_TD, int64_t groups, at::Tensor* found) {
  TRIREME_CHECK(x_TD.dim() == 2 && x_TD.size(1) % groups == 0, "quantize_rows: ", x_TD.sizes(), " in ", groups,
                " groups");
  const Choice choice = Dispatch("quantize_rows", x_TD)
                            .needs(groups == 1, "this kernel writes one scale per row; SwiGLU's writes several")
                            .choice();
  TRIREME_RETURN_LAUNCH(choice, quantize_rows(x_TD.contiguous(), found));
  return compose_rows(x_TD, groups);
}

Fp8Rows quantize_columns(const at::Tensor& x_TD, const at::Tensor& known) {
  TRIREME_CHECK(x_TD.dim() == 2, "quantize_columns: ", x_TD.sizes());
  TRIREME_RETURN_LAUNCH(codes_choice("quantize_columns", x_TD), quantize_columns(x_TD.contiguous(), known));
  return compose_rows(x_TD.t().contiguous(), 1);
}

at::Tensor dequantize_rows(const Fp8Rows& rows, at::ScalarType dtype) {
  const int64_t groups = rows.inverse_scale.size(1);
  return rows.data.to(at::kFloat)
      .view({rows.data.size(0), groups, -1})
      .mul_(rows.inverse_scale.unsqueeze(-1))
      .to(dtype)
      .view(rows.data.sizes());
}

namespace {

Choice column_sum_choice(const at::Tensor& x_TD) {
  return Dispatch("sum_columns", x_TD)
      .needs(x_TD.is_contiguous(), "the matrix is not contiguous")
      .needs(
          x_TD.size(1) * x_TD.element_size() % 16 == 0 && reinterpret_cast<uintptr_t>(x_TD.const_data_ptr()) % 16 == 0,
          "the rows are not aligned to 16 bytes")
      .choice();
}

}  // namespace

at::Tensor sum_columns(const at::Tensor& x_TD) {
  TRIREME_RETURN_LAUNCH(column_sum_choice(x_TD), sum_columns(x_TD));
  return at::sum(x_TD, {0}, false, accumulate_type(x_TD)).to(x_TD.scalar_type());
}

at::Tensor scale_columns(const at::Tensor& x_TD, const at::Tensor& factors_D, const at::Tensor& bias_D,
                         const at::Tensor& addend_TD) {
  TRIREME_RETURN_LAUNCH(
      Dispatch("scale_columns", x_TD).needs(x_TD.is_contiguous(), "the matrix is not contiguous").choice(),
      scale_columns(x_TD, factors_D, bias_D, addend_TD));
  at::Tensor y = at::empty(x_TD.sizes(), x_TD.options());
  at::mul_out(y, x_TD, factors_D);
  if (bias_D.defined()) y.add_(bias_D);
  if (addend_TD.defined()) y.add_(addend_TD);
  return y;
}

std::pair<at::Tensor, at::Tensor> scale_and_sum_columns(const at::Tensor& x_TD, const at::Tensor& factors_D,
                                                        const at::Tensor& other_TD) {
  const Choice choice = Dispatch("scale_and_sum_columns", x_TD)
                            .needs(x_TD.is_contiguous() && other_TD.is_contiguous(), "a matrix is not contiguous")
                            .needs(x_TD.size(1) * x_TD.element_size() % 16 == 0 &&
                                       reinterpret_cast<uintptr_t>(x_TD.const_data_ptr()) % 16 == 0,
                                   "the rows are not aligned to 16 bytes")
                            .choice();
  TRIREME_RETURN_LAUNCH(choice, scale_and_sum_columns(x_TD, factors_D, other_TD));
  const at::ScalarType type = factors_D.scalar_type();
  return {scale_columns(x_TD, factors_D), at::sum(x_TD.to(type).mul(other_TD), {0}, false, type)};
}

Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool known, bool want_column_sums) {
  // In the first step no earlier amax exists, so the tensor's own is used.
  if (!known)
    follow_amax(scale.scale, scale.inverse, fp8_amax(values_of(source)),
                at::full_like(scale.scale, largest_code(scale)));
  TRIREME_RETURN_LAUNCH(codes_choice("fp8_codes", source.x), make_codes(source, scale, want_column_sums));
  return compose_codes(values_of(source), scale, want_column_sums);
}

Operand make_current_codes(const at::Tensor& x_TD, CurrentCodes format, bool want_column_sums,
                           const at::Tensor& known) {
  TRIREME_CHECK(x_TD.dim() == 2 && format != CurrentCodes::kNone, "make_current_codes: ", x_TD.sizes());
  TRIREME_RETURN_LAUNCH(codes_choice("fp8_current_codes", x_TD),
                        make_current_codes(x_TD.contiguous(), format, want_column_sums, known));
  const bool gradient = format == CurrentCodes::kE5m2;
  const at::Tensor amax = fp8_amax(x_TD), inverse = inverse_scale_of(amax, largest_code(gradient));
  return compose_codes(x_TD, {inverse.reciprocal(), inverse, amax, gradient}, want_column_sums);
}

at::Tensor transpose_codes(const at::Tensor& codes, const at::Tensor& out) {
  TRIREME_CHECK(!out.defined() || (out.is_contiguous() && out.scalar_type() == codes.scalar_type() &&
                                   out.sizes() == at::IntArrayRef{codes.size(1), codes.size(0)}),
                "the transpose of codes ", codes.sizes(), " has no place in a tensor ", out.sizes());
  const Choice choice = Dispatch("transpose_bytes", codes)
                            .needs(codes.size(0) % 16 == 0 && codes.size(1) % 16 == 0, "sizes are not multiples of 16")
                            .choice();
  TRIREME_RETURN_LAUNCH(choice, transpose_bytes(codes, out));
  if (!out.defined()) return transposed_bytes(codes);
  out.view(at::kByte).copy_(codes.view(at::kByte).t());
  return out;
}

void complete(Operand& operand, const OperandForms& wanted) {
  const bool columns = wanted.columns && !operand.columns.defined();
  if (wanted.rows && !operand.rows.defined())
    operand.rows = quantize_rows(operand.plain, 1,
                                 columns && !operand.maxima.columns.defined() ? &operand.maxima.columns : nullptr);
  if (columns) operand.columns = quantize_columns(operand.plain, operand.maxima.columns);
  const bool current = wanted.current != CurrentCodes::kNone;
  if ((wanted.codes != nullptr || current) && !operand.codes.defined()) {
    const bool sums = wanted.column_sums && !operand.column_sums.defined();
    Operand made = current ? make_current_codes(operand.plain, wanted.current, sums, operand.maxima.amax)
                           : make_codes({operand.plain, {}, {}}, *wanted.codes, wanted.codes_known, sums);
    operand.codes = std::move(made.codes);
    if (sums) operand.column_sums = std::move(made.column_sums);
  }
  if (wanted.column_sums && !operand.column_sums.defined()) operand.column_sums = sum_columns(operand.plain);
  if (!wanted.plain) operand.plain = at::Tensor();
  operand.maxima = {};
}

Operand make_dropped_operand(const at::Tensor& x_TD, const Dropout& dropout, const OperandForms& wanted) {
  if (!dropout.active()) return make_operand(x_TD, wanted);
  // The kernel that makes codes sums the columns as well.
  const bool sums = wanted.column_sums && wanted.codes == nullptr && wanted.current == CurrentCodes::kNone &&
                    dropout_parts(x_TD, dropout).size() == 1;
  if (!kCudaBuild || !sums || !column_sum_choice(x_TD).kernel())
    return make_operand(apply_dropout(x_TD, dropout), wanted);
  Operand result = launch::dropout_with_sums(x_TD, dropout);
  complete(result, wanted);
  return result;
}

Operand make_operand(const at::Tensor& plain, const OperandForms& wanted) {
  Operand result;
  result.plain = plain;
  complete(result, wanted);
  return result;
}

at::Tensor fp8_amax(const at::Tensor& w) {
  // aminmax reads any float type directly; abs() would write a copy.
  const auto [low, high] = at::aminmax(w);
  return at::maximum(low.abs(), high.abs()).to(at::kFloat);
}

at::Tensor fp8_inverse_scale(const at::Tensor& amax) { return inverse_scale_of(amax, kLargestE4m3); }

namespace {

/// target = saturate(scaled(w)) a part at a time; `scaled` makes fp32 values of its own.
template <class F>
void cast_parts(const at::Tensor& target, const at::Tensor& w, const F& scaled) {
  const at::Tensor to = target.view(-1), from = w.reshape(-1);
  TRIREME_CHECK(to.numel() == from.numel(), "a cast to FP8: ", from.numel(), " values for ", to.numel());
  for (int64_t begin = 0; begin < to.numel(); begin += kCastChunk) {
    const int64_t count = std::min(kCastChunk, to.numel() - begin);
    to.narrow(0, begin, count).copy_(scaled(from.narrow(0, begin, count)).clamp_(-kLargestE4m3, kLargestE4m3));
  }
}

}  // namespace

void fp8_codes_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& scale) {
  TRIREME_CHECK(target.scalar_type() == kE4m3 && (w.scalar_type() == at::kFloat || w.scalar_type() == at::kBFloat16) &&
                    target.numel() == w.numel() && target.is_contiguous() && w.is_contiguous(),
                "fp8_codes_: ", w.numel(), ' ', w.scalar_type(), " values for ", target.numel(), ' ',
                target.scalar_type());
  TRIREME_RETURN_LAUNCH(Dispatch("fp8_weight_codes", w).choice(), write_codes(target, w, scale));
  cast_parts(target, w, [&](const at::Tensor& part) { return part.to(at::kFloat).mul(scale); });
}

void fp8_cast_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& inverse_scale) {
  cast_parts(target, w, [&](const at::Tensor& part) {
    return part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).div_(inverse_scale);
  });
}

}  // namespace trireme
