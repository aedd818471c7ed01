#include "trireme/ops/fp8.h"

#include "fp8_bridge.h"
#include "fp8_products.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
/// Elements converted at a time where a whole fp32 copy of a weight would be too much.
constexpr int64_t kCastChunk = int64_t{1} << 26;

/// The matrix engine's path; the composition elsewhere is its oracle and the CPU's path.
bool has_fp8_engine(const at::Tensor& x) { return x.is_cuda() && bridge::has_fp8_kernels(x); }

at::Tensor product(const Fp8Rows& x, const at::Tensor& w_NK, const at::Tensor& inverse_scale, at::ScalarType dtype,
                   const Addend& addend) {
  TRIREME_CHECK(x.inverse_scale.size(1) == 1, "an FP8 product takes one scale per row, not ", x.inverse_scale.size(1));
  if (has_fp8_engine(x.data)) {
    // Scales per row on one side ask for a vector on the other.
    const at::Tensor of_columns = inverse_scale.expand({w_NK.size(0)}).contiguous();
    return bridge::fp8_product({x.data, x.inverse_scale.view(-1)}, {w_NK, of_columns}, dtype, {}, addend);
  }
  return added_and_rounded(
      at::mm(x.data.to(at::kFloat), w_NK.to(at::kFloat).t()).mul_(x.inverse_scale).mul_(inverse_scale), addend, dtype);
}

}  // namespace

Fp8Rows quantise_rows(const at::Tensor& x_TD, int64_t groups) {
  TRIREME_CHECK(x_TD.dim() == 2 && x_TD.size(1) % groups == 0, "quantise_rows: ", x_TD.sizes(), " in ", groups,
                " groups");
  if (bridge::has_fp8_kernels(x_TD) && groups == 1) return bridge::quantise_rows(x_TD.contiguous());
  const at::Tensor x = x_TD.to(at::kFloat).view({x_TD.size(0), groups, -1});
  const at::Tensor inverse = fp8_inverse_scale(x.abs().amax(-1));
  const at::Tensor data = x.div(inverse.unsqueeze(-1)).clamp_(-kFp8Max, kFp8Max).to(kE4m3);
  return {data.view(x_TD.sizes()), inverse};
}

at::Tensor dequantise_rows(const Fp8Rows& rows, at::ScalarType dtype) {
  const int64_t groups = rows.inverse_scale.size(1);
  return rows.data.to(at::kFloat)
      .view({rows.data.size(0), groups, -1})
      .mul_(rows.inverse_scale.unsqueeze(-1))
      .to(dtype)
      .view(rows.data.sizes());
}

at::Tensor fp8_product(const Fp8Rows& x, const Weight& weight, at::ScalarType dtype, const Addend& addend) {
  return product(x, weight.matrix, weight.inverse_scale, dtype, addend);
}

at::Tensor fp8_input_gradient(const Fp8Rows& dy, const Weight& weight, at::ScalarType dtype, const Addend& addend) {
  const at::Tensor transposed = bridge::has_fp8_kernels(weight.matrix)
                                    ? bridge::transpose_bytes(weight.matrix)
                                    : weight.matrix.view(at::kByte).t().contiguous().view(kE4m3);
  return product(dy, transposed, weight.inverse_scale, dtype, addend);
}

at::Tensor fp8_amax(const at::Tensor& w) {
  // aminmax reads any float type as it is; abs() would write a copy.
  const auto [low, high] = at::aminmax(w);
  return at::maximum(low.abs(), high.abs()).to(at::kFloat);
}

at::Tensor fp8_inverse_scale(const at::Tensor& amax) {
  return at::where(amax.gt(0).logical_or(amax.isnan()), amax / kFp8Max, 1.0);
}

void fp8_cast_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& inverse_scale) {
  const at::Tensor to = target.view(-1), from = w.reshape(-1);
  TRIREME_CHECK(to.numel() == from.numel(), "fp8_cast_: ", from.numel(), " values for ", to.numel());
  for (int64_t begin = 0; begin < to.numel(); begin += kCastChunk) {
    const int64_t count = std::min(kCastChunk, to.numel() - begin);
    to.narrow(0, begin, count)
        .copy_(from.narrow(0, begin, count).to(at::kFloat).div_(inverse_scale).clamp_(-kFp8Max, kFp8Max));
  }
}

}  // namespace trireme
