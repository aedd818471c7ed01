#include "kernels/rms_norm/rms_norm.h"

#include "fp8_testing.h"
#include "rms_norm_oracle.h"

#include <algorithm>
#include <cmath>

namespace trireme::kernels::testing::rms_norm_tests {

namespace {

constexpr double kEps = 1e-5;

struct Shape {
  int64_t rows, columns, shift;
};
// Widths around the sizes of packs, warps and blocks, and odd ones. shift: offset of the data in elements from a
// 16-byte boundary. The last two: with the weight's gradient, more rows than are processed at once.
constexpr Shape kShapes[] = {{1, 1, 0},     {3, 7, 0},     {5, 8, 0},      {37, 128, 0},  {9, 1000, 0},
                             {13, 1024, 0}, {11, 1032, 0}, {6, 1024, 1},   {5, 4096, 0},  {3, 4097, 0},
                             {31, 5120, 0}, {4, 8192, 0},  {3, 8192, 3},   {60, 1024, 0}, {2, 11008, 0},
                             {2, 16384, 0}, {1, 16383, 0}, {410, 2560, 0}, {4500, 200, 0}};

class RmsNormTest : public KernelTest {};

TEST_F(RmsNormTest, RowsInFp8HaveTheScaleOfTheirLargestMagnitude) {
  for (const Element element : {Element::kBF16, Element::kF16, Element::kF32}) {
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns));
      const int64_t n = s.rows * s.columns;
      Values x = normal_values(n, element, 1);
      if (s.rows > 2) std::fill_n(x.begin(), s.columns, 0.0);  // its scale is 1
      const Values w = normal_values(s.columns, element, 3);
      DeviceArray in(x, element, s.shift), weight(w, element), y(n, element, s.shift), rstd(s.rows, Element::kF32),
          inverse(s.rows, Element::kF32);
      DeviceBytes codes(n);
      RmsNormForward f;
      f.x = in.data(), f.weight = weight.data(), f.y = y.data(), f.rstd = rstd.fp32();
      f.fp8.data = codes.as<uint8_t>(), f.fp8.row_inverse = inverse.fp32();
      f.rows = s.rows, f.columns = s.columns, f.eps = static_cast<float>(kEps), f.element = element;
      CUDA_OK(rms_norm_forward(f, nullptr));
      const Values plain = y.values();
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE4M3, "with y");
      f.y = nullptr;
      CUDA_OK(rms_norm_forward(f, nullptr));
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE4M3, "codes only");
    }
  }
}

/// The factors of the normalised values.
Values factors(Values weight, bool plus_one) {
  for (double& w : weight) w += plus_one ? 1 : 0;
  return weight;
}

TEST_F(RmsNormTest, ForwardMatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      for (const bool plus_one : {false, true}) {
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) +
                     " shift " + std::to_string(s.shift) + (plus_one ? " plus one" : ""));
        const int64_t n = s.rows * s.columns;
        const Values x = normal_values(n, element, 1), w = normal_values(s.columns, element, 3);
        const oracle::RmsNorm expected = oracle::rms_norm(x, factors(w, plus_one), s.rows, s.columns, kEps);
        DeviceArray dx(x, element, s.shift), dw(w, element), dy(n, element, s.shift), rstd(s.rows, Element::kF32);
        RmsNormForward a;
        a.x = dx.data(), a.weight = dw.data(), a.y = dy.data(), a.rstd = rstd.fp32(), a.plus_one = plus_one;
        a.rows = s.rows, a.columns = s.columns, a.eps = static_cast<float>(kEps), a.element = element;
        CUDA_OK(rms_norm_forward(a, nullptr));
        // Below 2^-14 fp16 has fewer significant bits. Near a weight of -1 the sum 1 + w is small.
        const double tiny = (element == Element::kF16 ? std::ldexp(1.0, -23) : 0) + (plus_one ? 1e-6 : 0);
        expect_close(dy.values(), expected.y, element, plus_one ? 1.05 : 2.1, tiny, "y");
        expect_close(rstd.values(), expected.rstd, Element::kF32, 8, 0, "rstd");
      }
    }
  }
}

// y is that of kernels without maxima.
TEST_F(RmsNormTest, AmaxIsThatOfTheResult) {
  constexpr Shape kAmaxShapes[] = {{1, 3584, 0}, {37, 3584, 0}, {300, 4096, 0}, {31, 5120, 0}, {9, 8192, 0},
                                   {1, 1024, 0}, {60, 1024, 0}, {4500, 200, 0}, {5, 8, 0},     {2, 16384, 0},
                                   {9, 1000, 0}, {3, 4097, 0},  {6, 1024, 1}};
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Element element : kElements)
    for (const Shape& s : kAmaxShapes)
      for (const double special : {0.0, infinity, -infinity, std::nan("")}) {
        if (too_large(s.rows * s.columns)) continue;
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) +
                     " shift " + std::to_string(s.shift) + " with " + std::to_string(special));
        const int64_t n = s.rows * s.columns;
        Values x = normal_values(n, element, 1), w = normal_values(s.columns, element, 3);
        // The largest magnitude is the last element of the last row, or a special value of the weight shows.
        w.back() = -40, x.back() = 8;
        if (special != 0) w[static_cast<size_t>(s.columns / 2)] = special;
        DeviceArray in(x, element, s.shift), weight(w, element), y(n, element, s.shift), amax(1, Element::kF32),
            rstd(s.rows, Element::kF32), inverse(s.rows, Element::kF32);
        DeviceBytes codes(n);
        for (const bool plus_one : {false, true}) {
          RmsNormForward a;
          a.x = in.data(), a.weight = weight.data(), a.y = y.data(), a.rstd = rstd.fp32(), a.plus_one = plus_one;
          a.rows = s.rows, a.columns = s.columns, a.eps = static_cast<float>(kEps), a.element = element;
          y.poison(), rstd.poison();
          CUDA_OK(rms_norm_forward(a, nullptr));
          const std::vector<unsigned char> expected = y.read(), expected_rstd = rstd.read();
          FoundMaxima found{true, 99};
          a.maxima = {amax.fp32(), nullptr, &found};
          y.poison(), rstd.poison(), amax.poison();
          CUDA_OK(rms_norm_forward(a, nullptr));
          EXPECT_TRUE(y.read() == expected && rstd.read() == expected_rstd);
          const bool fast = element != Element::kF32 && s.shift == 0 && s.columns % 8 == 0;
          EXPECT_EQ(found.amax, fast);
          EXPECT_EQ(found.column_rows, 0);
          if (found.amax) expect_amax(amax, y, n, element);
          if (plus_one) continue;
          a.fp8.data = codes.as<uint8_t>(), a.fp8.row_inverse = inverse.fp32();
          CUDA_OK(rms_norm_forward(a, nullptr));
          EXPECT_FALSE(found.amax);
        }
      }
}

TEST_F(RmsNormTest, BackwardMatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      for (const int variant : {0, 1, 2, 3, 4, 7}) {
        const bool residual = variant % 2 != 0, weight = variant / 2 % 2 != 0, plus_one = variant / 4 != 0;
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) +
                     " variant " + std::to_string(variant));
        const int64_t n = s.rows * s.columns;
        const Values dy = normal_values(n, element, 1), x = normal_values(n, element, 2),
                     w = normal_values(s.columns, element, 3), r = residual ? normal_values(n, element, 4) : Values();
        const oracle::RmsNormGradients expected =
            oracle::rms_norm_backward(dy, x, factors(w, plus_one), r, s.rows, s.columns, kEps);
        DeviceArray ddy(dy, element, s.shift), dx(x, element, s.shift), dw(w, element),
            dr(residual ? r : x, element, s.shift),
            rstd(oracle::rms_norm(x, w, s.rows, s.columns, kEps).rstd, Element::kF32), out(n, element, s.shift),
            out_w(s.columns, element), workspace(rms_norm_backward_workspace(s.rows, s.columns), Element::kF32);
        RmsNormBackward a;
        a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.dx = out.data();
        if (residual) a.d_residual = dr.data();
        if (weight) a.dw = out_w.data(), a.workspace = workspace.fp32();
        a.rows = s.rows, a.columns = s.columns, a.element = element, a.plus_one = plus_one;
        CUDA_OK(rms_norm_backward(a, nullptr));
        // Two terms may cancel, so the bound refers to their size, about 4 rstd.
        expect_close(out.values(), expected.dx, element, 1.01, 2e-5, "dx");
        workspace.read();
        if (weight) {
          // Every addend carries one rounding error of the normalised value.
          expect_close(out_w.values(), expected.dw, element, 1.01,
                       (2 * roundoff(element) + 1e-5) * 3 * std::sqrt(static_cast<double>(s.rows)) + 1e-5, "dw");
        }
      }
    }
  }
}

TEST_F(RmsNormTest, SameBitsEveryTime) {
  for (const int64_t columns : {1024, 1023, 5120}) {
    const int64_t rows = 700;
    const Values dy = normal_values(rows * columns, Element::kBF16, 1),
                 x = normal_values(rows * columns, Element::kBF16, 2), w = normal_values(columns, Element::kBF16, 3);
    DeviceArray ddy(dy, Element::kBF16), dx(x, Element::kBF16), dw(w, Element::kBF16), rstd(rows, Element::kF32),
        y(rows * columns, Element::kBF16), out(rows * columns, Element::kBF16), sum(columns, Element::kBF16),
        workspace(rms_norm_backward_workspace(rows, columns), Element::kF32);
    RmsNormForward f;
    f.x = dx.data(), f.weight = dw.data(), f.y = y.data(), f.rstd = rstd.fp32(), f.rows = rows, f.columns = columns,
    f.eps = 1e-5f;
    RmsNormBackward a;
    a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.dx = out.data(),
    a.dw = sum.data();
    a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns;
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      y.poison(), rstd.poison(), out.poison(), sum.poison(), workspace.poison();
      CUDA_OK(rms_norm_forward(f, nullptr));
      CUDA_OK(rms_norm_backward(a, nullptr));
      std::vector<std::vector<unsigned char>> now = {y.read(), rstd.read(), out.read(), sum.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

TEST_F(RmsNormTest, RefusesWhatItCannotDo) {
  RmsNormForward a;
  a.rows = 1, a.columns = 16385;
  EXPECT_EQ(rms_norm_forward(a, nullptr), cudaErrorInvalidValue);
  a.rows = 0;
  EXPECT_EQ(rms_norm_forward(a, nullptr), cudaSuccess);
}

}  // namespace

}  // namespace trireme::kernels::testing::rms_norm_tests
