#include "kernels/fp8/fp8.h"

#include "fp8_testing.h"

#include <algorithm>

namespace trireme::kernels::testing::fp8_columns_tests {

namespace {

struct Shape {
  int64_t rows, columns;
};

class Fp8ColumnsTest : public KernelTest {};

Values transposed(const Values& x, int64_t rows, int64_t columns) {
  Values result(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      result[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * columns + c)];
  return result;
}

struct Columns {
  Columns(const Values& x, const Shape& s, Element element)
      : x_(x, element),
        codes(s.rows * s.columns),
        inverse(s.columns, Element::kF32),
        workspace(s.columns, Element::kF32) {
    arguments.x = x_.data(), arguments.transposed = codes.as<uint8_t>(), arguments.inverse = inverse.fp32(),
    arguments.workspace = workspace.fp32(), arguments.rows = s.rows, arguments.columns = s.columns,
    arguments.element = element;
  }
  DeviceArray x_;
  DeviceBytes codes;
  DeviceArray inverse, workspace;
  Fp8Columns arguments;
};

TEST_F(Fp8ColumnsTest, AreTheRowsOfTheTranspose) {
  constexpr Shape kShapes[] = {{16, 16},   {128, 128}, {144, 272}, {112, 16},    {16, 1040},
                               {384, 512}, {2064, 96}, {48, 8192}, {1024, 4112}, {8192, 64}};
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns));
      Values x = normal_values(s.rows * s.columns, element, 1);
      // Columns of different sizes; one of zeros, one of tiny values, one whose largest value is negative and in the
      // last row.
      for (int64_t r = 0; r < s.rows; ++r)
        for (int64_t c = 0; c < s.columns; ++c) {
          double& v = x[static_cast<size_t>(r * s.columns + c)];
          v = round_to(v * std::ldexp(1.0, static_cast<int>(c % 13) - 6), element);
          if (c == 2) v = 0;
          if (c == 5) v = round_to(v * (element == Element::kF16 ? 1e-7 : 1e-38), element);
          if (c == s.columns - 1 && r == s.rows - 1) v = -4096;
        }
      Columns run(x, s, element);
      CUDA_OK(fp8_columns(run.arguments, nullptr));
      expect_quantized_rows(transposed(x, s.rows, s.columns), run.codes.read(), run.inverse.values(), s.columns, s.rows,
                            Fp8Format::kE4M3, "columns");
      // The same from known maxima, one row of them with signs, whose other row has nothing.
      const std::vector<unsigned char> codes = run.codes.read(), inverse = run.inverse.read();
      Values top(static_cast<size_t>(2 * s.columns));
      for (size_t i = 0; i < x.size(); ++i) {
        double& most = top[i % static_cast<size_t>(s.columns)];
        if (std::abs(x[i]) > std::abs(most)) most = x[i];
      }
      const DeviceArray maxima(top, element);
      run.arguments.maxima = maxima.data(), run.arguments.maxima_rows = 2;
      run.codes.poison(), run.inverse.poison(), run.workspace.poison();
      CUDA_OK(fp8_columns(run.arguments, nullptr));
      EXPECT_TRUE(run.codes.read() == codes && run.inverse.read() == inverse);
    }
}

TEST_F(Fp8ColumnsTest, NonFiniteValuesShowInTheirColumnsOnly) {
  const Shape s{272, 144};
  for (const Element element : {Element::kBF16, Element::kF16}) {
    Values x = normal_values(s.rows * s.columns, element, 2);
    const auto at = [&](int64_t r, int64_t c) -> double& { return x[static_cast<size_t>(r * s.columns + c)]; };
    at(7, 0) = std::numeric_limits<double>::infinity();
    at(200, 65) = -std::numeric_limits<double>::infinity();
    at(271, 143) = std::numeric_limits<double>::quiet_NaN();
    Columns run(x, s, element);
    CUDA_OK(fp8_columns(run.arguments, nullptr));
    const Values inverse = run.inverse.values();
    const std::vector<unsigned char> codes = run.codes.read();
    for (int64_t c = 0; c < s.columns; ++c) {
      const bool bad = c == 0 || c == 65 || c == 143;
      EXPECT_EQ(std::isfinite(inverse[static_cast<size_t>(c)]), !bad) << name_of(element) << " column " << c;
      const auto first = codes.begin() + c * s.rows;
      EXPECT_EQ(std::any_of(first, first + s.rows, [](unsigned char code) { return (code & 0x7f) == 0x7f; }), bad)
          << name_of(element) << " column " << c;
    }
  }
}

TEST_F(Fp8ColumnsTest, SameBitsEveryTime) {
  const Shape s{1040, 528};
  Columns run(normal_values(s.rows * s.columns, Element::kBF16, 3), s, Element::kBF16);
  std::vector<std::vector<unsigned char>> first;
  for (int repeat = 0; repeat < 50; ++repeat) {
    run.codes.poison(), run.inverse.poison(), run.workspace.poison();
    CUDA_OK(fp8_columns(run.arguments, nullptr));
    std::vector<std::vector<unsigned char>> now = {run.codes.read(), run.inverse.read()};
    if (repeat == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << repeat;
  }
}

TEST_F(Fp8ColumnsTest, RefusesWhatItCannotDo) {
  Columns run(Values(64 * 64, 1.0), {64, 64}, Element::kBF16);
  Fp8Columns a = run.arguments;
  a.columns = 40;
  EXPECT_EQ(fp8_columns(a, nullptr), cudaErrorInvalidValue);
  a = run.arguments, a.rows = 60;
  EXPECT_EQ(fp8_columns(a, nullptr), cudaErrorInvalidValue);
  a = run.arguments, a.transposed += 1, a.rows = 48;
  EXPECT_EQ(fp8_columns(a, nullptr), cudaErrorInvalidValue);
  a = run.arguments, a.maxima = a.x;
  EXPECT_EQ(fp8_columns(a, nullptr), cudaErrorInvalidValue);
  a = run.arguments, a.workspace = nullptr;
  EXPECT_EQ(fp8_columns(a, nullptr), cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::fp8_columns_tests
