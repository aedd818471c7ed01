#include "kernels/layer_norm/layer_norm.h"

#include "fp8_testing.h"
#include "layer_norm_oracle.h"

#include <algorithm>

namespace trireme::kernels::testing::layer_norm_tests {

namespace {

constexpr double kEps = 1e-12;
constexpr uint32_t kT0 = 0x12345678, kT1 = 0x9abcdef0, kThreshold = 6554;

struct Shape {
  int64_t samples, length, columns, shift;
  int64_t rows() const { return samples * length; }
};
// Widths around the sizes of packs, warps and blocks, and odd ones. shift: offset of the data in elements from a
// 16-byte boundary.
constexpr Shape kShapes[] = {{1, 1, 1, 0},     {1, 3, 7, 0},     {2, 3, 8, 0},    {37, 1, 128, 0},   {3, 3, 1000, 0},
                             {1, 13, 1024, 0}, {11, 1, 1032, 0}, {2, 3, 1024, 1}, {1, 5, 4096, 0},   {3, 1, 4097, 0},
                             {7, 43, 5120, 0}, {2, 2, 8192, 0},  {1, 2, 8200, 0}, {4, 150, 1024, 0}, {1, 2, 16384, 0},
                             {1, 1, 16383, 0}, {7, 100, 200, 0}};

class LayerNormTest : public KernelTest {};

struct Inputs {
  Values x, bias, residual, gamma, beta, s, mask;
  std::vector<int64_t> ids;
};

/// mask: the dropout factor of each element.
Inputs make(const Shape& s, Element element, bool bias, bool dropout, bool residual) {
  const int64_t n = s.rows() * s.columns;
  Inputs in{normal_values(n, element, 1),         normal_values(s.columns, element, 2),
            normal_values(n, element, 3),         normal_values(s.columns, element, 4),
            normal_values(s.columns, element, 5), {},
            Values(static_cast<size_t>(n), 1.0),  {}};
  for (int64_t i = 0; i < s.samples; ++i) in.ids.push_back((int64_t{1} << 33) * (i % 2) + 17 * i);
  const float scale = 65536.0f / (65536.0f - kThreshold);
  for (int64_t r = 0; r < s.rows(); ++r)
    for (int64_t c = 0; c < s.columns; ++c) {
      const size_t i = static_cast<size_t>(r * s.columns + c);
      double t = in.x[i];
      if (bias) t = round_to(t + in.bias[static_cast<size_t>(c)], element);
      if (dropout) {
        in.mask[i] = oracle::dropout_factor(in.ids[static_cast<size_t>(r / s.length)],
                                            static_cast<uint64_t>(r % s.length * s.columns + c), kT0, kT1, kThreshold);
        t = in.mask[i] == 0 ? 0 : round_to(static_cast<float>(t) * scale, element);
      }
      if (residual) t = round_to(t + in.residual[i], element);
      in.s.push_back(t);
    }
  return in;
}

RowDropout row_dropout(const DeviceIntegers<int64_t>& ids, const Shape& s) {
  return {ids.as<int64_t>(), s.length, kT0, kT1, kThreshold, 65536.0f / (65536.0f - kThreshold)};
}

std::string text(Element element, const Shape& s, int variant) {
  return std::string(name_of(element)) + " " + std::to_string(s.rows()) + " x " + std::to_string(s.columns) +
         " shift " + std::to_string(s.shift) + " variant " + std::to_string(variant);
}

TEST_F(LayerNormTest, ForwardMatchesTheOracle) {
  for (const Element element : kElements)
    for (const Shape& s : kShapes)
      for (int variant = 0; variant < 8; ++variant) {
        const bool bias = variant & 1, dropout = variant & 2, residual = variant & 4;
        const int64_t n = s.rows() * s.columns;
        if (too_large(n) || (n > 200000 && variant % 7 != 0)) continue;
        SCOPED_TRACE(text(element, s, variant));
        const Inputs in = make(s, element, bias, dropout, residual);
        const oracle::LayerNorm expected = oracle::layer_norm(in.s, in.gamma, in.beta, s.rows(), s.columns, kEps);
        DeviceArray dx(in.x, element, s.shift), dbias(in.bias, element), dres(in.residual, element, s.shift),
            dgamma(in.gamma, element), dbeta(in.beta, element), sum(n, element, s.shift), y(n, element, s.shift),
            mean(s.rows(), Element::kF32), rstd(s.rows(), Element::kF32);
        DeviceIntegers<int64_t> ids(in.ids);
        LayerNormForward a;
        a.x = dx.data(), a.gamma = dgamma.data(), a.beta = dbeta.data(), a.y = y.data(), a.mean = mean.fp32(),
        a.rstd = rstd.fp32();
        if (bias) a.bias = dbias.data();
        if (dropout) a.dropout = row_dropout(ids, s);
        if (residual) a.residual = dres.data();
        if (variant != 0) a.sum = sum.data();
        a.rows = s.rows(), a.columns = s.columns, a.eps = static_cast<float>(kEps), a.element = element;
        CUDA_OK(layer_norm_forward(a, nullptr));
        if (variant != 0) {
          EXPECT_EQ(sum.values(), in.s);
        }
        if (s.columns == 1) continue;  // the variance is 0, so rstd has no correct digits
        const double tiny = 4e-6 + (element == Element::kF16 ? std::ldexp(1.0, -25) : 0);
        expect_close(y.values(), expected.y, element, 1.01, tiny, "y");
        expect_close(mean.values(), expected.mean, Element::kF32, 8, 1e-6, "mean");
        expect_close(rstd.values(), expected.rstd, Element::kF32, 16, 0, "rstd");
      }
}

TEST_F(LayerNormTest, LargeMeanKeepsItsVariance) {
  const int64_t rows = 5, columns = 1024;
  for (const int64_t shift : {0, 1}) {
    Values x = normal_values(rows * columns, Element::kF32, 1);
    for (double& v : x) v = round_to(v + 1000.0, Element::kF32);
    const Values gamma(columns, 1.0), beta(columns, 0.0);
    DeviceArray dx(x, Element::kF32, shift), dgamma(gamma, Element::kF32), dbeta(beta, Element::kF32),
        y(rows * columns, Element::kF32, shift);
    LayerNormForward a;
    a.x = dx.data(), a.gamma = dgamma.data(), a.beta = dbeta.data(), a.y = y.data(), a.rows = rows, a.columns = columns,
    a.eps = 1e-12f, a.element = Element::kF32;
    CUDA_OK(layer_norm_forward(a, nullptr));
    expect_close(y.values(), oracle::layer_norm(x, gamma, beta, rows, columns, kEps).y, Element::kF32, 0, 3e-4, "y");
  }
}

TEST_F(LayerNormTest, Fp8OutputMatchesThePlainOne) {
  for (const Element element : kElements)
    for (const Shape& s : {Shape{3, 3, 1024, 0}, Shape{1, 3, 8192, 0}, Shape{3, 1, 100, 0}, Shape{1, 3, 1024, 1}}) {
      if (too_large(s.rows() * s.columns)) continue;
      SCOPED_TRACE(text(element, s, 0));
      const Inputs in = make(s, element, false, false, false);
      const int64_t n = s.rows() * s.columns;
      DeviceArray dx(in.x, element, s.shift), dgamma(in.gamma, element), dbeta(in.beta, element),
          y(n, element, s.shift), inverse(s.rows(), Element::kF32);
      DeviceBytes codes(n);
      LayerNormForward a;
      a.x = dx.data(), a.gamma = dgamma.data(), a.beta = dbeta.data(), a.y = y.data(), a.rows = s.rows(),
      a.columns = s.columns, a.eps = 1e-12f, a.element = element;
      a.fp8.data = codes.as<uint8_t>(), a.fp8.row_inverse = inverse.fp32();
      CUDA_OK(layer_norm_forward(a, nullptr));
      const Values plain = y.values();
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows(), s.columns, Fp8Format::kE4M3, "by row");
      a.y = nullptr;
      codes.poison(), inverse.poison();
      CUDA_OK(layer_norm_forward(a, nullptr));
      expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows(), s.columns, Fp8Format::kE4M3, "codes only");
    }
}

// Outputs of FP8 codes only use their own kernels, chosen by the width of the row. Each row has a different mean, one
// of them far larger than its standard deviation.
TEST_F(LayerNormTest, Fp8AloneFollowsTheOracle) {
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const int64_t columns : {1024, 2048, 4096, 5120, 7680, 8192, 15360, 16384}) {
      const Shape s{1, 3, columns, 0};
      if (too_large(s.rows() * columns)) continue;
      SCOPED_TRACE(text(element, s, 0));
      Inputs in = make(s, element, false, false, false);
      for (size_t i = 0; i < in.x.size(); ++i)
        in.x[i] = round_to(in.x[i] + (i < static_cast<size_t>(columns) ? 50.0 : 0.5), element);
      const oracle::LayerNorm expected = oracle::layer_norm(in.x, in.gamma, in.beta, s.rows(), columns, kEps);
      DeviceArray x(in.x, element), gamma(in.gamma, element), beta(in.beta, element), mean(s.rows(), Element::kF32),
          rstd(s.rows(), Element::kF32), inverse(s.rows(), Element::kF32);
      DeviceBytes codes(s.rows() * columns);
      LayerNormForward a;
      a.x = x.data(), a.gamma = gamma.data(), a.beta = beta.data(), a.mean = mean.fp32(), a.rstd = rstd.fp32(),
      a.rows = s.rows(), a.columns = columns, a.eps = 1e-12f, a.element = element;
      a.fp8.data = codes.as<uint8_t>(), a.fp8.row_inverse = inverse.fp32();
      CUDA_OK(layer_norm_forward(a, nullptr));
      expect_close(mean.values(), expected.mean, Element::kF32, 1, 1e-5, "mean");
      expect_close(rstd.values(), expected.rstd, Element::kF32, 8, 0, "rstd");
      const std::vector<unsigned char> got = codes.read();
      const Values scales = inverse.values();
      const double u = roundoff(element);
      for (int64_t r = 0; r < s.rows(); ++r) {
        double top = 0;
        for (int64_t c = 0; c < columns; ++c)
          top = std::max(top, std::abs(expected.y[static_cast<size_t>(r * columns + c)]));
        const double scale = scales[static_cast<size_t>(r)];
        ASSERT_NEAR(scale, top / 448, 1.1 * u * top / 448) << "scale of row " << r;
        for (int64_t c = 0; c < columns; ++c) {
          const size_t i = static_cast<size_t>(r * columns + c);
          const double value = oracle::fp8_value(got[i], Fp8Format::kE4M3) * scale;
          // Half a step of E4M3 (near 0 half its smallest step), and one rounding before.
          ASSERT_NEAR(value, expected.y[i], (0.0625 + 1.1 * u) * std::abs(expected.y[i]) + 1.01 * scale / 1024 + 2e-5)
              << "row " << r << ", column " << c;
        }
      }
    }
}

TEST_F(LayerNormTest, BackwardMatchesTheOracle) {
  // With sums over rows, several iterations of the blocks' loops: with single blocks, groups and clusters.
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), {{3, 3000, 128, 0},
                               {2, 1301, 1024, 0},
                               {2, 1701, 768, 0},
                               {1, 600, 3072, 0},
                               {1, 1101, 4096, 0},
                               {1, 1101, 5120, 0},
                               {1, 1100, 8192, 0},
                               {1, 700, 8208, 0}});
  for (const Element element : kElements)
    for (const Shape& s : shapes)
      for (int variant = 0; variant < 8; ++variant) {
        const bool sums = variant & 1, dropout = variant & 2, more = variant & 4;
        const int64_t n = s.rows() * s.columns;
        const bool large = n > 1000000;
        if (too_large(n) || s.columns == 1 || (n > 200000 && !sums && variant != 0) ||
            (large && (element != Element::kBF16 || !sums)))
          continue;
        SCOPED_TRACE(text(element, s, variant));
        const Inputs in = make(s, element, false, dropout, false);
        const Values dy = normal_values(n, element, 7), d_sum = more ? normal_values(n, element, 8) : Values();
        const oracle::LayerNorm forward = oracle::layer_norm(in.x, in.gamma, in.beta, s.rows(), s.columns, kEps);
        const oracle::LayerNormGradients expected =
            oracle::layer_norm_backward(dy, in.x, in.gamma, d_sum, s.rows(), s.columns, kEps);
        DeviceArray ddy(dy, element, s.shift), dsum(in.x, element, s.shift), dgamma(in.gamma, element),
            dmore(more ? d_sum : dy, element, s.shift), mean(forward.mean, Element::kF32),
            rstd(forward.rstd, Element::kF32), ds(n, element, s.shift), dx(n, element, s.shift),
            out_gamma(s.columns, element), out_beta(s.columns, element), out_bias(s.columns, element),
            workspace(layer_norm_backward_workspace(s.rows(), s.columns), Element::kF32);
        DeviceIntegers<int64_t> ids(in.ids);
        LayerNormBackward a;
        a.dy = ddy.data(), a.sum = dsum.data(), a.mean = mean.fp32(), a.rstd = rstd.fp32(), a.gamma = dgamma.data(),
        a.ds = ds.data();
        a.rows = s.rows(), a.columns = s.columns, a.element = element;
        if (dropout) a.dropout = row_dropout(ids, s), a.dx = dx.data();
        if (more) a.d_sum = dmore.data();
        if (sums) a.d_gamma = out_gamma.data(), a.d_beta = out_beta.data(), a.workspace = workspace.fp32();
        if (sums && (dropout || s.length % 2 == 0)) a.d_bias = out_bias.data();
        CUDA_OK(layer_norm_backward(a, nullptr));
        const Values got = ds.values();
        double rstd_top = 0;
        for (const double v : forward.rstd) rstd_top = std::max(rstd_top, v);
        // Terms may cancel, so the bound refers to their size.
        expect_close(got, expected.ds, element, 1.01, 2e-5 * std::max(1.0, rstd_top), "ds");
        Values through = got;
        if (dropout) {
          const float scale = 65536.0f / (65536.0f - kThreshold);
          for (size_t i = 0; i < through.size(); ++i)
            through[i] = in.mask[i] == 0 ? 0 : round_to(static_cast<float>(got[i]) * scale, element);
          EXPECT_EQ(dx.values(), through);
        }
        workspace.read();
        const double root = std::sqrt(static_cast<double>(s.rows()));
        if (sums) {
          expect_close(out_gamma.values(), expected.d_gamma, element, 1.01, 2e-5 * root + 1e-5, "d_gamma");
          expect_close(out_beta.values(), expected.d_beta, element, 1.01, 1e-5 * root, "d_beta");
        }
        if (a.d_bias != nullptr) {
          Values total(static_cast<size_t>(s.columns), 0.0);
          for (int64_t i = 0; i < n; ++i) total[static_cast<size_t>(i % s.columns)] += through[static_cast<size_t>(i)];
          expect_close(out_bias.values(), total, element, 1.01, 2e-5 * root * std::max(1.0, rstd_top), "d_bias");
        }
      }
}

TEST_F(LayerNormTest, DsMayReplaceItsInput) {
  const int64_t rows = 3000, columns = 1024;
  const Element element = Element::kBF16;
  const Values dy = normal_values(rows * columns, element, 1), x = normal_values(rows * columns, element, 2),
               gamma = normal_values(columns, element, 3), more = normal_values(rows * columns, element, 4);
  const oracle::LayerNorm forward = oracle::layer_norm(x, gamma, gamma, rows, columns, kEps);
  const oracle::LayerNormGradients expected = oracle::layer_norm_backward(dy, x, gamma, more, rows, columns, kEps);
  for (const int64_t shift : {0, 1}) {  // offset of the workspace, whose alignment is up to the caller
    SCOPED_TRACE("workspace shift " + std::to_string(shift));
    DeviceArray ddy(dy, element), dx(x, element), dgamma(gamma, element), ds(more, element),
        mean(forward.mean, Element::kF32), rstd(forward.rstd, Element::kF32), sum_gamma(columns, element),
        sum_beta(columns, element), workspace(layer_norm_backward_workspace(rows, columns), Element::kF32, shift);
    LayerNormBackward a;
    a.dy = ddy.data(), a.sum = dx.data(), a.mean = mean.fp32(), a.rstd = rstd.fp32(), a.gamma = dgamma.data(),
    a.d_sum = a.ds = ds.data();
    a.d_gamma = sum_gamma.data(), a.d_beta = sum_beta.data(), a.workspace = workspace.fp32(), a.rows = rows,
    a.columns = columns;
    CUDA_OK(layer_norm_backward(a, nullptr));
    expect_close(ds.values(), expected.ds, element, 1.01, 2e-5, "ds");
    expect_close(sum_gamma.values(), expected.d_gamma, element, 1.01, 1.2e-3, "d_gamma");
    expect_close(sum_beta.values(), expected.d_beta, element, 1.01, 1.2e-3, "d_beta");
  }
}

TEST_F(LayerNormTest, SameBitsEveryTime) {
  for (const int64_t columns : {1024, 1023, 5120}) {
    const Shape s{7, 100, columns, 0};
    const Element element = Element::kBF16;
    const Inputs in = make(s, element, true, true, true);
    const int64_t n = s.rows() * columns;
    DeviceArray x(in.x, element), bias(in.bias, element), residual(in.residual, element), gamma(in.gamma, element),
        beta(in.beta, element), sum(n, element), y(n, element), mean(s.rows(), Element::kF32),
        rstd(s.rows(), Element::kF32), ds(n, element), dx(n, element), d_gamma(columns, element),
        d_beta(columns, element), d_bias(columns, element),
        workspace(layer_norm_backward_workspace(s.rows(), columns), Element::kF32);
    DeviceIntegers<int64_t> ids(in.ids);
    LayerNormForward f;
    f.x = x.data(), f.bias = bias.data(), f.dropout = row_dropout(ids, s), f.residual = residual.data(),
    f.gamma = gamma.data(), f.beta = beta.data();
    f.sum = sum.data(), f.y = y.data(), f.mean = mean.fp32(), f.rstd = rstd.fp32(), f.rows = s.rows(),
    f.columns = columns, f.eps = 1e-12f;
    LayerNormBackward b;
    b.dy = residual.data(), b.sum = sum.data(), b.mean = mean.fp32(), b.rstd = rstd.fp32(), b.gamma = gamma.data(),
    b.dropout = f.dropout, b.ds = ds.data(), b.dx = dx.data();
    b.d_gamma = d_gamma.data(), b.d_beta = d_beta.data(), b.d_bias = d_bias.data(), b.workspace = workspace.fp32(),
    b.rows = s.rows(), b.columns = columns;
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      for (DeviceBytes* array : std::initializer_list<DeviceBytes*>{&sum, &y, &mean, &rstd, &ds, &dx, &d_gamma, &d_beta,
                                                                    &d_bias, &workspace})
        array->poison();
      CUDA_OK(layer_norm_forward(f, nullptr));
      CUDA_OK(layer_norm_backward(b, nullptr));
      std::vector<std::vector<unsigned char>> now = {sum.read(), y.read(),       mean.read(),   rstd.read(),  ds.read(),
                                                     dx.read(),  d_gamma.read(), d_beta.read(), d_bias.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

TEST_F(LayerNormTest, CodesAreThoseOfThePlainGradient) {
  for (const Element element : {Element::kBF16, Element::kF16}) {
    for (const int64_t columns : {16, 128, 1008, 1024, 2048}) {
      const Shape s{7, 80, columns, 0};
      SCOPED_TRACE(text(element, s, 0));
      const Inputs in = make(s, element, true, true, true);
      const int64_t n = s.rows() * columns;
      DeviceArray sum(in.s, element), dy(in.residual, element), gamma(in.gamma, element),
          mean(Values(static_cast<size_t>(s.rows()), 0.1), Element::kF32),
          rstd(Values(static_cast<size_t>(s.rows()), 0.7), Element::kF32), ds(n, element), dx(n, element),
          d_gamma(columns, element), d_beta(columns, element), d_bias(columns, element),
          workspace(layer_norm_backward_workspace(s.rows(), columns), Element::kF32), scale(Values{3.7}, Element::kF32),
          amax(Values{0.25}, Element::kF32), amax_of_plain(Values{0.25}, Element::kF32);
      DeviceBytes codes(static_cast<size_t>(n)), codes_of_plain(static_cast<size_t>(n)),
          transposed(static_cast<size_t>(n));
      DeviceIntegers<int64_t> ids(in.ids);
      LayerNormBackward b;
      b.dy = dy.data(), b.sum = sum.data(), b.mean = mean.fp32(), b.rstd = rstd.fp32(), b.gamma = gamma.data(),
      b.dropout = row_dropout(ids, s), b.ds = ds.data(), b.dx = dx.data(), b.d_gamma = d_gamma.data(),
      b.d_beta = d_beta.data(), b.d_bias = d_bias.data(), b.workspace = workspace.fp32(), b.rows = s.rows(),
      b.columns = columns, b.element = element;
      CUDA_OK(layer_norm_backward(b, nullptr));
      Fp8Operands plain;
      plain.x = dx.data(), plain.data = codes_of_plain.as<uint8_t>(), plain.transposed = transposed.as<uint8_t>(),
      plain.scale = scale.fp32(), plain.amax = amax_of_plain.fp32(), plain.rows = s.rows(), plain.columns = columns,
      plain.element = element, plain.format = Fp8Format::kE5M2;
      CUDA_OK(fp8_operands(plain, nullptr));
      const Values d_bias_of_plain = d_bias.values();
      const std::vector<unsigned char> ds_of_plain = ds.read();
      for (DeviceBytes* array : std::initializer_list<DeviceBytes*>{&ds, &d_bias, &codes, &workspace}) array->poison();
      ASSERT_TRUE(layer_norm_backward_writes_codes(b));
      b.dx = nullptr, b.codes = codes.as<uint8_t>(), b.codes_scale = scale.fp32(), b.codes_amax = amax.fp32();
      CUDA_OK(layer_norm_backward(b, nullptr));
      EXPECT_EQ(codes.read(), codes_of_plain.read());
      EXPECT_EQ(amax.values(), amax_of_plain.values());
      EXPECT_GT(amax.values()[0], 0.25);
      EXPECT_EQ(ds.read(), ds_of_plain);
      EXPECT_EQ(d_bias.values(), d_bias_of_plain);
      b.d_bias = nullptr;
      EXPECT_FALSE(layer_norm_backward_writes_codes(b));
      EXPECT_EQ(layer_norm_backward(b, nullptr), cudaErrorInvalidValue);
    }
  }
}

TEST_F(LayerNormTest, RefusesWhatItCannotDo) {
  LayerNormForward a;
  a.rows = 1, a.columns = 16385;
  EXPECT_EQ(layer_norm_forward(a, nullptr), cudaErrorInvalidValue);
  LayerNormBackward b;
  b.rows = 1, b.columns = 8, b.dx = &b;
  EXPECT_EQ(layer_norm_backward(b, nullptr), cudaErrorInvalidValue);
  a.columns = b.columns = 8, a.y = &a, b.dx = nullptr;
  a.dropout.threshold = b.dropout.threshold = 65536;  // would drop everything
  EXPECT_EQ(layer_norm_forward(a, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(layer_norm_backward(b, nullptr), cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::layer_norm_tests
