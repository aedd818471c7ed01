#include "kernels/rms_norm/rms_norm.h"

#include "fp8_testing.h"
#include "kernels/rms_norm/rms_norm_oracle.h"

#include <algorithm>

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
      const Values x = normal_values(n, element, 1), w = normal_values(s.columns, element, 3);
      DeviceArray in(x, element, s.shift), weight(w, element), y(n, element, s.shift), rstd(s.rows, Element::kF32),
          inverse(s.rows, Element::kF32);
      DeviceBytes codes(n);
      RmsNormForward f;
      f.x = in.data(), f.weight = weight.data(), f.y = y.data(), f.rstd = rstd.fp32();
      f.fp8.data = codes.as<uint8_t>(), f.fp8.scaling = Fp8Scaling::kRow, f.fp8.row_inverse = inverse.fp32();
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

TEST_F(RmsNormTest, ForwardMatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) +
                     " shift " + std::to_string(s.shift));
        const int64_t n = s.rows * s.columns;
        const Values x = normal_values(n, element, 1), r = normal_values(n, element, 2),
                     w = normal_values(s.columns, element, 3);
        Values sum = x;
        if (residual)
          for (int64_t i = 0; i < n; ++i) sum[i] = round_to(x[i] + r[i], element);
        const oracle::RmsNorm expected = oracle::rms_norm(sum, w, s.rows, s.columns, kEps);
        DeviceArray dx(x, element, s.shift), dr(r, element, s.shift), dw(w, element), ds(n, element, s.shift),
            dy(n, element, s.shift), rstd(s.rows, Element::kF32);
        RmsNormForward a;
        a.x = dx.data(), a.weight = dw.data(), a.y = dy.data(), a.rstd = rstd.fp32();
        if (residual) a.residual = dr.data(), a.sum = ds.data();
        a.rows = s.rows, a.columns = s.columns, a.eps = static_cast<float>(kEps), a.element = element;
        CUDA_OK(rms_norm_forward(a, nullptr));
        // Below 2^-14 fp16 has fewer significant bits.
        expect_close(dy.values(), expected.y, element, 2.1, element == Element::kF16 ? std::ldexp(1.0, -23) : 0, "y");
        expect_close(rstd.values(), expected.rstd, Element::kF32, 8, 0, "rstd");
        if (residual) {
          EXPECT_EQ(ds.values(), sum);
        }
      }
    }
  }
}

TEST_F(RmsNormTest, SumMayReplaceItsInput) {
  const int64_t rows = 7, columns = 4096;
  const Values x = normal_values(rows * columns, Element::kBF16, 1),
               r = normal_values(rows * columns, Element::kBF16, 2), w(columns, 1.0);
  Values sum = x;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = round_to(x[i] + r[i], Element::kBF16);
  for (const int64_t shift : {0, 1}) {
    DeviceArray dx(x, Element::kBF16, shift), dr(r, Element::kBF16, shift), dw(w, Element::kBF16),
        dy(rows * columns, Element::kBF16, shift);
    RmsNormForward a;
    a.x = dx.data(), a.residual = dr.data(), a.sum = dr.data(), a.weight = dw.data(), a.y = dy.data();
    a.rows = rows, a.columns = columns, a.eps = 1e-5f, a.element = Element::kBF16;
    CUDA_OK(rms_norm_forward(a, nullptr));
    EXPECT_EQ(dr.values(), sum);
    expect_close(dy.values(), oracle::rms_norm(sum, w, rows, columns, kEps).y, Element::kBF16, 2.1, 0, "y");
  }
}

TEST_F(RmsNormTest, BackwardMatchesTheOracle) {
  for (const Element element : kElements) {
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      for (const int variant : {0, 1, 2, 3}) {
        const bool residual = variant % 2 != 0, weight = variant / 2 != 0;
        SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) +
                     " variant " + std::to_string(variant));
        const int64_t n = s.rows * s.columns;
        const Values dy = normal_values(n, element, 1), x = normal_values(n, element, 2),
                     w = normal_values(s.columns, element, 3), r = residual ? normal_values(n, element, 4) : Values();
        const oracle::RmsNormGradients expected = oracle::rms_norm_backward(dy, x, w, r, s.rows, s.columns, kEps);
        DeviceArray ddy(dy, element, s.shift), dx(x, element, s.shift), dw(w, element),
            dr(residual ? r : x, element, s.shift),
            rstd(oracle::rms_norm(x, w, s.rows, s.columns, kEps).rstd, Element::kF32), out(n, element, s.shift),
            out_w(s.columns, element), workspace(rms_norm_backward_workspace(s.rows, s.columns), Element::kF32);
        RmsNormBackward a;
        a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.dx = out.data();
        if (residual) a.d_residual = dr.data();
        if (weight) a.dw = out_w.data(), a.workspace = workspace.fp32();
        a.rows = s.rows, a.columns = s.columns, a.element = element;
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

TEST_F(RmsNormTest, WeightGradientAccumulatesInFp32) {
  const int64_t rows = 50, columns = 1024;
  const Values dy = normal_values(rows * columns, Element::kBF16, 1),
               x = normal_values(rows * columns, Element::kBF16, 2), w(columns, 1.0),
               before = normal_values(columns, Element::kF32, 3);
  Values expected = oracle::rms_norm_backward(dy, x, w, {}, rows, columns, kEps).dw;
  for (int64_t c = 0; c < columns; ++c) expected[c] += before[c];
  DeviceArray ddy(dy, Element::kBF16), dx(x, Element::kBF16), dw(w, Element::kBF16),
      rstd(oracle::rms_norm(x, w, rows, columns, kEps).rstd, Element::kF32), sum(before, Element::kF32),
      workspace(rms_norm_backward_workspace(rows, columns), Element::kF32);
  RmsNormBackward a;
  a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.dw_fp32 = sum.fp32(),
  a.accumulate = true;
  a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns, a.element = Element::kBF16;
  CUDA_OK(rms_norm_backward(a, nullptr));
  expect_close(sum.values(), expected, Element::kF32, 0, 0.05, "dw");
}

TEST_F(RmsNormTest, Fp8OutputMatchesThePlainOne) {
  for (const Element element : kElements)
    for (const Shape& s :
         {Shape{5, 1024, 0}, Shape{4, 8192, 0}, Shape{3, 100, 0}, Shape{3, 4096, 1}, Shape{3, 16384, 0}}) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns));
      const int64_t n = s.rows * s.columns;
      Values x = normal_values(n, element, 1);
      for (int64_t c = 0; c < s.columns; ++c) x[static_cast<size_t>(c)] = 0;  // a row of zeros
      const Values w = normal_values(s.columns, element, 2);
      DeviceArray dx(x, element, s.shift), dw(w, element), y(n, element, s.shift), inverse(s.rows, Element::kF32),
          scale(Values{200.0}, Element::kF32), amax(Values{0.0}, Element::kF32);
      DeviceBytes codes(n);
      RmsNormForward a;
      a.x = dx.data(), a.weight = dw.data(), a.y = y.data(), a.rows = s.rows, a.columns = s.columns, a.eps = 1e-5f,
      a.element = element;
      a.fp8.data = codes.as<uint8_t>(), a.fp8.scaling = Fp8Scaling::kRow, a.fp8.row_inverse = inverse.fp32();
      CUDA_OK(rms_norm_forward(a, nullptr));
      const Values plain = y.values();
      EXPECT_EQ(inverse.values()[0], 1.0);
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE4M3, "by row");
      double top = 0;
      for (const double v : plain) top = std::max(top, std::abs(v));
      a.fp8.scaling = Fp8Scaling::kTensor, a.fp8.scale = scale.fp32(), a.fp8.amax = amax.fp32(), a.y = nullptr;
      codes.poison();
      CUDA_OK(rms_norm_forward(a, nullptr));
      expect_codes(codes.read(), oracle::quantized(plain, 200.0, Fp8Format::kE4M3), Fp8Format::kE4M3,
                   "under a known scale");
      EXPECT_EQ(amax.values()[0], top);
    }
}

TEST_F(RmsNormTest, BackwardWritesFp8) {
  for (const Element element : kElements)
    for (const Shape& s : {Shape{9, 100, 0}, Shape{9, 1024, 0}, Shape{5, 4096, 1}, Shape{3, 5120, 0}, Shape{3, 8192, 0},
                           Shape{2, 16384, 0}}) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns));
      const int64_t n = s.rows * s.columns;
      const Values dy = normal_values(n, element, 1), x = normal_values(n, element, 2),
                   w = normal_values(s.columns, element, 3), r = normal_values(n, element, 4);
      DeviceArray ddy(dy, element, s.shift), dx(x, element, s.shift), dw(w, element), out(r, element, s.shift),
          rstd(oracle::rms_norm(x, w, s.rows, s.columns, kEps).rstd, Element::kF32), inverse(s.rows, Element::kF32);
      DeviceBytes codes(n);
      RmsNormBackward a;
      a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.rows = s.rows,
      a.columns = s.columns, a.element = element;
      a.d_residual = out.data();  // dx overwrites it
      a.fp8.data = codes.as<uint8_t>(), a.fp8.format = Fp8Format::kE5M2, a.fp8.scaling = Fp8Scaling::kRow,
      a.fp8.row_inverse = inverse.fp32();
      CUDA_OK(rms_norm_backward(a, nullptr));
      const std::vector<unsigned char> alone = codes.read();
      a.dx = out.data();
      codes.poison(), inverse.poison();
      CUDA_OK(rms_norm_backward(a, nullptr));
      const Values plain = out.values();
      expect_close(plain, oracle::rms_norm_backward(dy, x, w, r, s.rows, s.columns, kEps).dx, element, 1.01, 2e-5,
                   "dx");
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE5M2, "dx in FP8");
      EXPECT_TRUE(alone == codes.read());
    }
}

TEST_F(RmsNormTest, SameBitsEveryTime) {
  for (const int64_t columns : {1024, 1023, 5120}) {
    const int64_t rows = 700;
    const Values dy = normal_values(rows * columns, Element::kBF16, 1),
                 x = normal_values(rows * columns, Element::kBF16, 2), w = normal_values(columns, Element::kBF16, 3);
    DeviceArray ddy(dy, Element::kBF16), dx(x, Element::kBF16), dw(w, Element::kBF16), rstd(rows, Element::kF32),
        y(rows * columns, Element::kBF16), out(rows * columns, Element::kBF16), sum(columns, Element::kF32),
        workspace(rms_norm_backward_workspace(rows, columns), Element::kF32);
    RmsNormForward f;
    f.x = dx.data(), f.weight = dw.data(), f.y = y.data(), f.rstd = rstd.fp32(), f.rows = rows, f.columns = columns,
    f.eps = 1e-5f;
    RmsNormBackward a;
    a.dy = ddy.data(), a.x = dx.data(), a.weight = dw.data(), a.rstd = rstd.fp32(), a.dx = out.data(),
    a.dw_fp32 = sum.fp32();
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
