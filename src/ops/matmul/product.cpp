#include "matmul/product.h"

#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

/// A product whose operands fit and, if our kernel computes it, have sizes that it supports.
Choice fp8_choice(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK) {
  TRIREME_CHECK(a_MK.codes.size(1) == b_NK.codes.size(1), "an FP8 product of ", a_MK.codes.sizes(), " and ",
                b_NK.codes.sizes(), ": their inner dimensions differ");
  const bool by_rows = a_MK.inverse.dim() == 1;
  const Choice choice = Dispatch("fp8_product", a_MK.codes)
                            .needs(multiplies_fp8(compute_capability(a_MK.codes.device()), by_rows),
                                   "scales per row need compute capability 9.0, scales per matrix 8.9 or more")
                            .choice();
  if (choice.kernel())
    for (const int64_t size : {by_rows ? 0 : a_MK.codes.size(0), a_MK.codes.size(1), by_rows ? 0 : b_NK.codes.size(0)})
      TRIREME_CHECK(size % 16 == 0, "an FP8 product of ", a_MK.codes.sizes(), " and ", b_NK.codes.sizes(),
                    " needs multiples of 16 on a GPU: use precision.linear: compute");
  return choice;
}

at::Tensor composed_fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK) {
  const bool by_rows = a_MK.inverse.dim() == 1;
  at::Tensor product = at::mm(a_MK.codes.to(at::kFloat), b_NK.codes.to(at::kFloat).t());
  if (by_rows)
    product.mul_(a_MK.inverse.unsqueeze(1)).mul_(b_NK.inverse);
  else
    product.mul_(a_MK.inverse * b_NK.inverse);
  return product;
}

}  // namespace

void write_gradient(const GradientTarget& target, const at::Tensor& gradient) {
  if (target.adds)
    target.sum.add_(gradient);
  else
    target.sum.copy_(gradient);
}

Fp8Matrix of_rows(const at::Tensor& codes, const at::Tensor& inverse_scale) {
  TRIREME_CHECK(inverse_scale.numel() == 1, "a matrix ", codes.sizes(), " with ", inverse_scale.numel(),
                " scales as an operand that has one");
  return {codes, inverse_scale.expand({codes.size(0)}).contiguous()};
}

Fp8Matrix of_rows(const Fp8Rows& rows) {
  TRIREME_CHECK(rows.inverse_scale.size(1) == 1, "an FP8 product needs one scale per row, not ",
                rows.inverse_scale.size(1));
  return {rows.data, rows.inverse_scale.view(-1)};
}

at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate, at::ScalarType dtype,
                       const at::Tensor& bias_N, const Addend& addend) {
  const Choice choice = fp8_choice(a_MK, b_NK);
  TRIREME_RETURN_LAUNCH(choice, fp8_product(a_MK, b_NK, accumulate, dtype, bias_N, addend, {}));
  at::Tensor product = composed_fp8_product(a_MK, b_NK);
  if (bias_N.defined()) product.add_(bias_N);
  if (addend.sum.defined()) product.add_(addend.sum);
  return addend.overwritten ? addend.sum.copy_(product) : product.to(dtype);
}

void fp8_product_to(const GradientTarget& target, const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate) {
  const Choice choice = fp8_choice(a_MK, b_NK);
  if constexpr (kCudaBuild) {
    if (choice.kernel()) {
      const Addend addend = target.adds ? Addend{target.sum, true} : Addend{};
      (void)launch::fp8_product(a_MK, b_NK, accumulate, target.sum.scalar_type(), {}, addend, target.sum);
      return;
    }
  }
  write_gradient(target, composed_fp8_product(a_MK, b_NK));
}

void plain_product_to(const GradientTarget& target, const at::Tensor& a_MK, const at::Tensor& b_KN) {
  at::Tensor sum = target.sum;
  if (!sum.is_cuda()) return write_gradient(target, at::mm(a_MK, b_KN));
  if (sum.scalar_type() == a_MK.scalar_type()) {
    if (target.adds)
      sum.addmm_(a_MK, b_KN);
    else
      at::mm_out(sum, a_MK, b_KN);
  } else if (target.adds) {
    at::addmm_out(sum, sum, a_MK, b_KN, sum.scalar_type());
  } else {
    at::mm_out(sum, a_MK, b_KN, sum.scalar_type());
  }
}

at::Tensor plain_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                         const Addend& addend) {
  if (addend.overwritten) {
    const at::Tensor y = addend.sum.addmm_(a_MK, b_KN);
    return bias_N.defined() ? y.add_(bias_N) : y;
  }
  const at::Tensor y = bias_N.defined() ? at::addmm(bias_N, a_MK, b_KN) : at::mm(a_MK, b_KN);
  return addend.sum.defined() ? y.add_(addend.sum) : y;
}

std::function<at::Tensor()> fp8_product_of(const at::Tensor& a_MK, const at::Tensor& b_NK) {
  return [a = of_rows(quantize_rows(a_MK)), b = of_rows(quantize_rows(b_NK)), dtype = a_MK.scalar_type()] {
    return fp8_product(a, b, Accumulate::kFast, dtype);
  };
}

}  // namespace trireme
