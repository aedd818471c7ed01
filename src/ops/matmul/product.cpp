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

namespace {

/// a b (+ bias), or out + a b, by the algorithm that measure_products() chose, or the library.
void product_into(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                  bool adds) {
  constexpr int64_t kLarge = int64_t{1} << 22;
  const auto aligned = [](const at::Tensor& x, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % bytes == 0;
  };
  const auto fits = [&](const at::Tensor& x) {
    const bool by_rows = x.stride(1) == 1 && x.stride(0) >= x.size(1);
    const bool by_columns = x.stride(0) == 1 && x.stride(1) >= x.size(0);
    return (by_rows || by_columns) && aligned(x, 256);
  };
  const bool bias_fits =
      !bias_N.defined() || (bias_N.dim() == 1 && bias_N.size(0) == out_MN.size(1) && bias_N.is_contiguous() &&
                            aligned(bias_N, 16) && bias_N.scalar_type() == out_MN.scalar_type());
  const Choice choice = Dispatch("product", a_MK)
                            .needs(a_MK.element_size() == 2, "operands are not of 16 bits")
                            .needs(a_MK.size(1) > 0 && out_MN.numel() >= kLarge, "the result is small")
                            .needs(out_MN.stride(1) == 1 && fits(out_MN) && fits(a_MK) && fits(b_KN) && bias_fits,
                                   "an operand or the result is neither by rows nor by columns, or is not aligned")
                            .choice(Runs::kLibrary);
  TRIREME_RETURN_LAUNCH(choice, product_out(out_MN, a_MK, b_KN, bias_N, adds));
  library_product(out_MN, a_MK, b_KN, bias_N, adds);
}

}  // namespace

void library_product(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                     bool adds) {
  const bool same = out_MN.scalar_type() == a_MK.scalar_type();
  if (bias_N.defined())
    at::addmm_out(out_MN, bias_N, a_MK, b_KN);
  else if (adds && same)
    out_MN.addmm_(a_MK, b_KN);
  else if (adds)
    at::addmm_out(out_MN, out_MN, a_MK, b_KN, out_MN.scalar_type());
  else if (same)
    at::mm_out(out_MN, a_MK, b_KN);
  else
    at::mm_out(out_MN, a_MK, b_KN, out_MN.scalar_type());
}

void plain_product_to(const GradientTarget& target, const at::Tensor& a_MK, const at::Tensor& b_KN) {
  at::Tensor sum = target.sum;
  if (!sum.is_cuda()) return write_gradient(target, at::mm(a_MK, b_KN));
  product_into(sum, a_MK, b_KN, {}, target.adds);
}

void product_out(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N) {
  product_into(out_MN, a_MK, b_KN, bias_N, false);
}

at::Tensor plain_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                         const Addend& addend) {
  if (addend.overwritten) {
    at::Tensor y = addend.sum;
    product_into(y, a_MK, b_KN, {}, true);
    return bias_N.defined() ? y.add_(bias_N) : y;
  }
  at::Tensor y = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options());
  product_out(y, a_MK, b_KN, bias_N);
  return addend.sum.defined() ? y.add_(addend.sum) : y;
}

MeasuredProducts measure_products(at::Device device, ProductLoad load, bool alone) {
  if constexpr (kCudaBuild)
    if (kernel_class(device) != KernelClass::kNone) return launch::measure_products(device, load, alone);
  return {};
}

std::function<void()> plain_product_of(const at::Tensor& a_MK, const at::Tensor& b_KN) {
  return [a_MK, b_KN, out = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options())]() mutable {
    product_out(out, a_MK, b_KN);
  };
}

std::function<void()> fp8_product_of(const at::Tensor& a_MK, const at::Tensor& b_NK) {
  return [a = of_rows(quantize_rows(a_MK)), b = of_rows(quantize_rows(b_NK)), dtype = a_MK.scalar_type()] {
    (void)fp8_product(a, b, Accumulate::kFast, dtype);
  };
}

}  // namespace trireme
