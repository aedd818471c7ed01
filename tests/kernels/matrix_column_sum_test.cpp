#include "kernels/column_sum/column_sum.h"

#include "kernels/dropout/dropout.h"
#include "testing.h"

namespace trireme::kernels::testing::matrix_column_sum_tests {

namespace {

struct Shape {
  int64_t samples, tokens, columns;
  int64_t rows() const { return samples * tokens; }
  int64_t count() const { return rows() * columns; }
};

constexpr Shape kShapes[] = {{1, 1, 8},     {1, 7, 64},   {3, 5, 256},     {2, 33, 264},
                             {4, 512, 768}, {1, 31, 520}, {2, 1000, 2304}, {3, 2048, 4096}};

class MatrixColumnSumTest : public KernelTest {};

/// Sums of `values` with the error bound that fp32 sums and one rounding have.
void expect_sums(const Values& got, const Values& values, const Shape& s, Element element) {
  Values sums(static_cast<size_t>(s.columns)), sizes(sums);
  for (size_t i = 0; i < values.size(); ++i) {
    sums[i % static_cast<size_t>(s.columns)] += values[i];
    sizes[i % static_cast<size_t>(s.columns)] += std::abs(values[i]);
  }
  for (size_t c = 0; c < sums.size(); ++c)
    ASSERT_NEAR(got[c], sums[c], roundoff(element) * std::abs(sums[c]) + 1e-6 * sizes[c]) << "column " << c;
}

TEST_F(MatrixColumnSumTest, SumsOfAMatrix) {
  for (const Element element : kElements)
    for (const Shape& s : kShapes) {
      if (too_large(s.count())) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows()) + " x " + std::to_string(s.columns));
      const Values x = normal_values(s.count(), element, 1);
      const DeviceArray in(x, element), sums(s.columns, element),
          workspace(matrix_column_sum_workspace(s.rows(), s.columns), Element::kF32);
      MatrixColumnSum a;
      a.x = in.data(), a.sums = sums.data(), a.workspace = workspace.fp32(), a.rows = s.rows(), a.columns = s.columns;
      a.element = element;
      CUDA_OK(matrix_column_sum(a, nullptr));
      expect_sums(sums.values(), x, s, element);
      const Values first = sums.values();
      CUDA_OK(matrix_column_sum(a, nullptr));
      EXPECT_EQ(sums.values(), first) << "not deterministic";
    }
}

TEST_F(MatrixColumnSumTest, DropsAsTheDropoutKernelAndSumsWhatItWrites) {
  for (const Element element : kElements)
    for (const Shape& s : kShapes)
      for (const bool in_place : {false, true}) {
        if (too_large(s.count())) continue;
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows()) + " x " +
                     std::to_string(s.columns) + (in_place ? ", in place" : ""));
        const Values x = normal_values(s.count(), element, 2);
        const int64_t first_row = in_place ? 6 : 0;
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < s.samples; ++i) ids.push_back(i * 0x1234567890ll + 3);
        const DeviceIntegers<int64_t> device_ids(ids);
        const DeviceArray in(x, element), expected(s.count(), element), out(s.count(), element),
            sums(s.columns, element), workspace(matrix_column_sum_workspace(s.rows(), s.columns), Element::kF32);
        CUDA_OK(dropout({in.data(), nullptr, expected.data(), device_ids.as<int64_t>(), s.samples, s.tokens * s.columns,
                         11, 22, 6554, 1.1f, element, first_row * s.columns},
                        nullptr));
        MatrixColumnSum a;
        a.x = in.data(), a.sums = sums.data(), a.workspace = workspace.fp32(), a.rows = s.rows();
        a.columns = s.columns, a.element = element, a.dropped = in_place ? in.data() : out.data();
        a.ids = device_ids.as<int64_t>(), a.rows_of_sample = s.tokens, a.first_row = first_row;
        a.t0 = 11, a.t1 = 22, a.threshold = 6554, a.scale = 1.1f;
        CUDA_OK(matrix_column_sum(a, nullptr));
        const Values dropped = (in_place ? in : out).values();
        EXPECT_EQ(dropped, expected.values());
        expect_sums(sums.values(), dropped, s, element);
      }
}

TEST_F(MatrixColumnSumTest, SumsAProductAndScalesColumns) {
  for (const Element element : kElements)
    for (const Shape& s : kShapes) {
      if (too_large(s.count())) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows()) + " x " + std::to_string(s.columns));
      const Values x = normal_values(s.count(), element, 1), other = normal_values(s.count(), element, 2),
                   factors = normal_values(s.columns, Element::kF32, 3);
      Values products(x.size()), expected(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        products[i] = x[i] * other[i];
        const double factor = factors[i % static_cast<size_t>(s.columns)];
        expected[i] = round_to(static_cast<float>(x[i]) * static_cast<float>(factor), element);
      }
      const DeviceArray in(x, element), second(other, element), by(factors, Element::kF32), out(s.count(), element),
          sums(s.columns, Element::kF32), workspace(matrix_column_sum_workspace(s.rows(), s.columns), Element::kF32);
      MatrixColumnSum a;
      a.x = in.data(), a.sums = sums.data(), a.workspace = workspace.fp32(), a.rows = s.rows(), a.columns = s.columns;
      a.element = element, a.other = second.data(), a.factors = by.fp32(), a.dropped = out.data();
      CUDA_OK(matrix_column_sum(a, nullptr));
      EXPECT_EQ(out.values(), expected);
      expect_sums(sums.values(), products, s, Element::kF32);
      const Values first = sums.values();
      CUDA_OK(matrix_column_sum(a, nullptr));
      EXPECT_EQ(sums.values(), first) << "not deterministic";
    }
}

TEST_F(MatrixColumnSumTest, NoRowsHaveSumsOfZero) {
  const DeviceArray sums(Values(16, 7.0), Element::kBF16);
  MatrixColumnSum a;
  a.sums = sums.data(), a.columns = 16;
  CUDA_OK(matrix_column_sum(a, nullptr));
  EXPECT_EQ(sums.values(), Values(16, 0.0));
}

TEST_F(MatrixColumnSumTest, RefusesRowsThatAreNotAligned) {
  const DeviceArray x(64, Element::kBF16), sums(12, Element::kBF16), workspace(64, Element::kF32);
  MatrixColumnSum a;
  a.x = x.data(), a.sums = sums.data(), a.workspace = workspace.fp32(), a.rows = 5, a.columns = 12;
  EXPECT_EQ(matrix_column_sum(a, nullptr), cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::matrix_column_sum_tests
