// FP8 products of cuBLASLt against fp64 products of the same codes: scales, accumulation, result types, targets. 16-bit
// products against LibTorch's bits.
#include "block_testing.h"
#include "matmul/product.h"
#include "trireme/ops/dispatch.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

class Fp8ProductGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU found";
  }
};

Fp8Matrix on_gpu(const Fp8Matrix& matrix) { return {matrix.codes.to(at::kCUDA), matrix.inverse.to(at::kCUDA)}; }

/// The values of codes with one scale or one per row.
at::Tensor values(const Fp8Matrix& matrix) {
  const at::Tensor inverse = matrix.inverse.to(at::kDouble);
  return matrix.codes.to(at::kDouble) * (inverse.dim() == 1 ? inverse.unsqueeze(1) : inverse);
}

Fp8Matrix operand(const at::Tensor& x, bool by_rows, CurrentCodes format) {
  if (by_rows) return of_rows(quantize_rows(x));
  const Fp8Codes codes = make_current_codes(x, format, false).codes;
  return {codes.data, codes.inverse};
}

TEST_F(Fp8ProductGpu, EveryScalingAccumulationAndTarget) {
  const at::Tensor x = random({272, 528}, 1, at::kFloat), w = random({144, 528}, 2, at::kFloat);
  for (const bool by_rows : {false, true}) {
    const Fp8Matrix a = operand(x, by_rows, CurrentCodes::kE5m2), b = operand(w, by_rows, CurrentCodes::kE4m3);
    const at::Tensor exact = at::mm(values(a), values(b).t());
    for (const Accumulate accumulate : {Accumulate::kFast, Accumulate::kSplit})
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat})
        for (const bool adds : {false, true}) {
          const at::Tensor before = random({272, 144}, 3, dtype);
          const at::Tensor expected = adds ? exact + before.to(at::kDouble) : exact;
          at::Tensor first;
          for (int occurrence = 0; occurrence < 6; ++occurrence) {
            if (occurrence == 5) measure_products(at::Device(at::kCUDA, 0), ProductLoad::kBrief, /*alone=*/true);
            const at::Tensor sum = before.to(at::kCUDA, dtype, false, true);
            fp8_product_to({sum, adds}, on_gpu(a), on_gpu(b), accumulate);
            if (!first.defined()) first = sum;
            EXPECT_TRUE(at::equal(sum, first)) << "occurrence " << occurrence;
          }
          EXPECT_LT(relative_distance(first.to(at::kCPU, at::kDouble), expected), 5e-3)
              << "by rows " << by_rows << ", accumulation " << static_cast<int>(accumulate) << ", "
              << c10::toString(dtype) << ", adds " << adds;
        }
    const at::Tensor bias = random({144}, 4, at::kBFloat16);
    const at::Tensor y = fp8_product(on_gpu(a), on_gpu(b), Accumulate::kSplit, at::kBFloat16, bias.to(at::kCUDA))
                             .to(at::kCPU, at::kDouble);
    EXPECT_LT(relative_distance(y, exact + bias.to(at::kDouble)), 5e-3) << "with a bias, by rows " << by_rows;
  }
}

TEST_F(Fp8ProductGpu, ShortSumsIn16BitsHaveTheLibrarysBits) {
  const int64_t rows = 4096, columns = 3080, inner = 768;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (const bool a_by_columns : {false, true})
      for (const bool b_by_columns : {false, true})
        for (const bool with_bias : {false, true})
          for (const bool padded : {false, true}) {
            const auto matrix = [&](int64_t m, int64_t n, bool by_columns, int seed) {
              const at::Tensor x = random({by_columns ? n : m, by_columns ? m : n}, seed, dtype).to(at::kCUDA);
              return by_columns ? x.t() : x;
            };
            const at::Tensor a = matrix(rows, inner, a_by_columns, 1), b = matrix(inner, columns, b_by_columns, 2);
            const at::Tensor bias = with_bias ? random({columns}, 3, dtype).to(at::kCUDA) : at::Tensor();
            const auto empty = [&] {
              return at::full({rows, columns + (padded ? 8 : 0)}, NAN, a.options()).narrow(1, 0, columns);
            };
            // LibTorch may take another algorithm for a result of other strides.
            at::Tensor expected = empty();
            if (with_bias)
              at::addmm_out(expected, bias, a, b);
            else
              at::mm_out(expected, a, b);
            for (int occurrence = 0; occurrence < 6; ++occurrence) {
              if (occurrence == 5) measure_products(at::Device(at::kCUDA, 0), ProductLoad::kBrief, /*alone=*/true);
              at::Tensor out = empty();
              product_out(out, a, b, bias);
              ASSERT_TRUE(at::equal(out, expected))
                  << c10::toString(dtype) << ", by columns " << a_by_columns << b_by_columns << ", bias " << with_bias
                  << ", padded " << padded << ", occurrence " << occurrence;
            }
          }
}

TEST_F(Fp8ProductGpu, MeasuredProductsKeepTheirBits) {
  if (kernel_class(at::Device(at::kCUDA, 0)) == KernelClass::kNone) GTEST_SKIP() << "nothing is measured";
  const at::Tensor w = random({3072, 1536}, 2, at::kBFloat16).to(at::kCUDA);
  const at::Tensor before = random({3072, 1536}, 4, at::kFloat).to(at::kCUDA);
  const Fp8Matrix weight = of_rows(quantize_rows(w));
  const auto products_of = [&](const at::Tensor& x, const at::Tensor& dy) {
    const at::Tensor y = plain_product(x, w.t()), added = plain_product(x, w.t(), {}, {dy.clone(), true}),
                     dx = plain_product(dy, w), dw = before.clone(), dw_added = before.clone();
    plain_product_to({dw, false}, dy.t(), x);
    plain_product_to({dw_added, true}, dy.t(), x);
    const at::Tensor of_codes = fp8_product(of_rows(quantize_rows(x)), weight, Accumulate::kFast, at::kBFloat16);
    return std::vector<at::Tensor>{y, added, dx, dw, dw_added, of_codes};
  };
  const at::Tensor x = random({4096, 1536}, 1, at::kBFloat16).to(at::kCUDA),
                   dy = random({4096, 3072}, 3, at::kBFloat16).to(at::kCUDA);
  const auto all = [&] { return products_of(x, dy); };
  const auto fewer = [&] { return products_of(x.narrow(0, 0, 3840), dy.narrow(0, 0, 3840)); };
  const std::vector<at::Tensor> expected = all();
  EXPECT_LT(relative_distance(expected[4].to(at::kDouble) - before, at::mm(dy.t().to(at::kDouble), x.to(at::kDouble))),
            1e-3);
  const std::vector<at::Tensor> expected_of_fewer = fewer();
  for (int occurrence = 1; occurrence < 4; ++occurrence) (void)all();
  for (const ProductLoad load : {ProductLoad::kBrief, ProductLoad::kSustained}) {
    EXPECT_GE(measure_products(at::Device(at::kCUDA, 0), load).count, 6);
    const std::vector<at::Tensor> found = all();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << "product " << i;
  }
  EXPECT_EQ(measure_products(at::Device(at::kCUDA, 0), ProductLoad::kBrief).count, 0) << "they are measured";
  // Another number of tokens takes what was found, without results of its own.
  for (int occurrence = 1; occurrence < 4; ++occurrence) (void)fewer();
  EXPECT_GE(measure_products(at::Device(at::kCUDA, 0), ProductLoad::kSustained).count, 6);
  const std::vector<at::Tensor> found = fewer();
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::equal(found[i], expected_of_fewer[i])) << "product " << i << " of fewer tokens";
}

TEST_F(Fp8ProductGpu, SplitAccumulationIsMoreExactInLongSums) {
  if (kernel_class(at::Device(at::kCUDA, 0)) == KernelClass::kNone) GTEST_SKIP() << "products are emulated in fp32";
  // Positive values: the sum grows, and what the accumulators of the tensor cores cut off does not cancel.
  const at::Tensor x = random({128, 16384}, 5, at::kFloat).abs(), w = random({256, 16384}, 6, at::kFloat).abs();
  const Fp8Matrix a = operand(x, false, CurrentCodes::kE4m3), b = operand(w, false, CurrentCodes::kE4m3);
  const at::Tensor exact = at::mm(values(a), values(b).t());
  const auto error = [&](Accumulate accumulate) {
    const at::Tensor y = fp8_product(on_gpu(a), on_gpu(b), accumulate, at::kFloat);
    return relative_distance(y.to(at::kCPU, at::kDouble), exact);
  };
  const double fast = error(Accumulate::kFast), split = error(Accumulate::kSplit);
  EXPECT_LT(split, 2e-3);
  EXPECT_LT(split, fast) << "the two accumulations are the same";
}

}  // namespace
}  // namespace trireme
