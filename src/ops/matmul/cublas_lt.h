#pragma once
// Private to ops/: a matrix product by cuBLASLt, and the algorithm that products of a form run by.

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme::launch::lt {

/// An internal error with the library's words for it, unless the call succeeded.
void succeeded(cublasStatus_t status, const char* call);

/// What the choice of an algorithm depends on: a [m, k] times b [k, n].
struct Form {
  int device = 0;
  int64_t m = 0, n = 0, k = 0, stride_a = 0, stride_b = 0, stride_out = 0;  // strides: of rows, or of columns
  bool a_by_columns = false, b_by_columns = false, adds = false, bias = false;
  at::ScalarType a = at::kFloat, b = at::kFloat, out = at::kFloat;
  bool scales_by_rows = false, fast = false;  // FP8

  auto operator<=>(const Form&) const = default;
  [[nodiscard]] bool fp8() const { return c10::isFloat8Type(a); }
  [[nodiscard]] double operations() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
Form form_of(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& out_MN, bool adds,
             const at::Tensor& bias_N);

/// a b (+ sum) (+ bias) for cuBLASLt: out^T = b^T a^T. Operands and result of any row stride, operands also transposed.
class Product {
 public:
  Product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& out_MN, const at::Tensor& sum_MN,
          const at::Tensor& bias_N);

  /// FP8 operands: fp32 inverse scales, and fast or split accumulation.
  void scale(const at::Tensor& a_inverse, const at::Tensor& b_inverse, bool by_rows, bool fast);
  [[nodiscard]] cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm, const at::Tensor& out_MN) const;
  /// The library's first candidates, the one it believes fastest first; none if it has no such product. Those that need
  /// no workspace share out the tiles beforehand: no counter is set to 0 before the product.
  enum class Workspace { kAny, kNone };
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> candidates(Workspace workspace = Workspace::kAny) const;

 private:
  struct Handles {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, out = nullptr;
    Handles() = default;
    Handles(const Handles&) = delete;
    Handles& operator=(const Handles&) = delete;
    ~Handles();
  };

  const at::Tensor a_, b_, sum_, bias_;
  const bool adds_;
  Handles handles_;
};

/// CUBLASLT_MATMUL_TILE_* of an algorithm.
uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm);

using Algorithm = std::optional<cublasLtMatmulAlgo_t>;  // none: LibTorch's call

/// What measure_products() chose for products of the form; until then `first`, which is asked when the form first
/// occurs.
Algorithm chosen(const Form& form, const std::function<Algorithm()>& first);

}  // namespace trireme::launch::lt
