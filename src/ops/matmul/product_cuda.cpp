// Products by cuBLASLt directly: FP8, because LibTorch's interface cannot add the product to a matrix, and 16-bit ones
// for which the library has a faster algorithm than the one that LibTorch takes.
#include "matmul/product.h"

#include "launch.h"
#include "matmul/cublas_lt.h"

#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate, at::ScalarType dtype,
                       const at::Tensor& bias_N, const Addend& addend, const at::Tensor& into) {
  using namespace lt;
  const at::Tensor &a = a_MK.codes, &b = b_NK.codes;
  const c10::cuda::CUDAGuard guard(a.device());
  const bool adds = addend.sum.defined();
  TRIREME_CHECK(!addend.overwritten || (adds && addend.sum.is_contiguous()),
                "a product can overwrite contiguous addends only");
  const at::Tensor out = addend.overwritten ? addend.sum
                         : into.defined()   ? into
                                            : at::empty({a.size(0), b.size(0)}, a.options().dtype(dtype));
  const at::Tensor sum = adds ? addend.sum.contiguous() : out;
  TRIREME_CHECK(out.is_contiguous() && out.size(0) == a.size(0) && out.size(1) == b.size(0), "an FP8 product of ",
                a.sizes(), " and ", b.sizes(), " into ", out.sizes());
  TRIREME_CHECK(sum.size(0) == a.size(0) && sum.size(1) == b.size(0) && sum.scalar_type() == dtype,
                "an FP8 product of ", a.sizes(), " and ", b.sizes(), " in ", dtype, " is to be added to ", sum.sizes(),
                " of ", sum.scalar_type());
  TRIREME_CHECK(a.is_contiguous() && b.is_contiguous(), "operands of an FP8 product must be contiguous");
  const bool by_rows = a_MK.inverse.dim() == 1;
  TRIREME_CHECK(a_MK.inverse.numel() == (by_rows ? a.size(0) : 1) && b_NK.inverse.numel() == (by_rows ? b.size(0) : 1),
                "an FP8 product of ", a.sizes(), " and ", b.sizes(), " with scales ", a_MK.inverse.sizes(), " and ",
                b_NK.inverse.sizes());
#if CUBLAS_VERSION < 120900
  if (by_rows) {  // cuBLASLt has no scales per row for these types yet
    const at::Tensor product = at::_scaled_mm(a, b.t(), a_MK.inverse.view({-1, 1}), b_NK.inverse.view({1, -1}), bias_N,
                                              {}, dtype, accumulate == Accumulate::kFast);
    if (!adds) return into.defined() ? out.copy_(product) : product;
    return addend.overwritten ? addend.sum.add_(product) : product.add_(addend.sum);
  }
#endif
  TRIREME_CHECK(!bias_N.defined() || (bias_N.numel() == b.size(0) && bias_N.scalar_type() == dtype), "an FP8 product ",
                out.sizes(), " of ", dtype, " with a bias ", bias_N.sizes(), " of ", bias_N.scalar_type());
  // In both operands the inner dimension is the contiguous one.
  const at::Tensor b_KN = b.t();
  Product product(a, b_KN, out, adds ? sum : at::Tensor(), bias_N);
  const bool fast = accumulate == Accumulate::kFast;
  product.scale(a_MK.inverse, b_NK.inverse, by_rows, fast);
  Form form = form_of(a, b_KN, out, adds, bias_N);
  form.scales_by_rows = by_rows, form.fast = fast;
  const Algorithm algorithm = chosen(form, [&]() -> Algorithm {
    const auto candidates = product.candidates();
    if (candidates.empty()) return {};
    return candidates[0];
  });
  if (!algorithm) {
    // Not every version of the library writes fp32 or fp16 results of products with scales per row.
    TRIREME_CHECK(by_rows && dtype != at::kBFloat16, "cuBLASLt offers no algorithm for the FP8 product of ", a.sizes(),
                  " and ", b.sizes(), " in ", dtype);
    at::Tensor rounded = fp8_product(a_MK, b_NK, accumulate, at::kBFloat16, {}, {}, {}).to(at::kFloat);
    if (bias_N.defined()) rounded.add_(bias_N);
    if (adds) rounded.add_(sum);
    return out.copy_(rounded);
  }
  succeeded(product.run(*algorithm, out), "cublasLtMatmul");
  return out;
}

void product_out(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                 bool adds) {
  using namespace lt;
  const c10::cuda::CUDAGuard guard(a_MK.device());
  const Algorithm algorithm = chosen(form_of(a_MK, b_KN, out_MN, adds, bias_N), [] { return Algorithm(); });
  if (!algorithm) return library_product(out_MN, a_MK, b_KN, bias_N, adds);
  succeeded(Product(a_MK, b_KN, out_MN, adds ? out_MN : at::Tensor(), bias_N).run(*algorithm, out_MN),
            "cublasLtMatmul");
}

}  // namespace trireme::launch
