#include "kernels/gelu/gelu.h"

#include "fp8_testing.h"
#include "kernels/gelu/gelu_oracle.h"

#include <algorithm>

namespace trireme::kernels::testing::gelu_tests {

namespace {

struct Shape {
  int64_t rows, columns, shift;
};
constexpr Shape kShapes[] = {{1, 1, 0},     {3, 7, 0},     {9, 8, 0},    {600, 128, 0}, {4, 1001, 0},
                             {13, 1024, 0}, {3, 1024, 1},  {7, 4096, 0}, {3, 8200, 0},  {2, 16384, 0},
                             {2, 16392, 0}, {2, 28672, 0}, {1, 28680, 0}};
constexpr GeluKind kKinds[] = {GeluKind::kErf, GeluKind::kTanh};

class GeluTest : public KernelTest {};

std::string text(Element element, const Shape& s, GeluKind kind) {
  return std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) + " shift " +
         std::to_string(s.shift) + (kind == GeluKind::kErf ? " erf" : " tanh");
}

/// Values of all magnitudes, including both tails.
Values inputs(int64_t count, Element element, uint32_t seed) {
  Values x = normal_values(count, element, seed, 2.0);
  const Values edges = {0, -0.0, 12, -12, -4, 5, 100, -100, -6.5, 1e-6, -0.75};
  if (count > 64)
    for (size_t i = 0; i < edges.size(); ++i) x[i] = round_to(edges[i], element);
  return x;
}

Values with_bias(const Values& x, const Values& bias, Element element) {
  Values z = x;
  for (size_t i = 0; i < z.size(); ++i) z[i] = round_to(x[i] + bias[i % bias.size()], element);
  return z;
}

/// Below -5 the bound is absolute: the polynomial's error there is about 1e-6 of the value.
double tiny(Element element) { return element == Element::kF16 ? std::ldexp(1.0, -24) : 2e-9; }

TEST_F(GeluTest, ForwardMatchesTheOracle) {
  for (const Element element : kElements)
    for (const Shape& s : kShapes)
      for (const GeluKind kind : kKinds)
        for (const bool bias : {false, true}) {
          if (too_large(s.rows * s.columns)) continue;
          SCOPED_TRACE(text(element, s, kind));
          const int64_t n = s.rows * s.columns;
          const Values x = inputs(n, element, 1), b = normal_values(s.columns, element, 2);
          const Values z = bias ? with_bias(x, b, element) : x;
          DeviceArray dx(x, element, s.shift), db(b, element), y(n, element, s.shift), inverse(s.rows, Element::kF32),
              saved_inverse(s.rows, Element::kF32), scale(Values{60.0}, Element::kF32), top(Values{0.0}, Element::kF32);
          DeviceBytes codes(n), saved(n);
          GeluForward a;
          a.x = dx.data(), a.y = y.data(), a.kind = kind, a.rows = s.rows, a.columns = s.columns, a.element = element;
          if (bias) a.bias = db.data();
          CUDA_OK(gelu_forward(a, nullptr));
          const Values plain = y.values();
          expect_close(plain, oracle::gelu(z, kind), element, 1.03, tiny(element), "y");

          y.poison();
          a.fp8.data = codes.as<uint8_t>(), a.fp8.scaling = Fp8Scaling::kRow, a.fp8.row_inverse = inverse.fp32();
          a.saved.data = saved.as<uint8_t>(), a.saved.inverse = saved_inverse.fp32();
          CUDA_OK(gelu_forward(a, nullptr));
          EXPECT_EQ(y.values(), plain);
          expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE4M3, "y in FP8");
          expect_quantized_rows(z, saved.read(), saved_inverse.values(), s.rows, s.columns, Fp8Format::kE4M3,
                                "z in FP8");
          a.y = nullptr, a.saved.data = nullptr, a.fp8.scaling = Fp8Scaling::kTensor, a.fp8.scale = scale.fp32(),
          a.fp8.amax = top.fp32();
          codes.poison();
          CUDA_OK(gelu_forward(a, nullptr));
          expect_codes(codes.read(), oracle::quantized(plain, 60.0, Fp8Format::kE4M3), Fp8Format::kE4M3,
                       "under a known scale");
          double most = 0;
          for (const double v : plain) most = std::max(most, std::abs(v));
          EXPECT_EQ(top.values()[0], most);
        }
}

TEST_F(GeluTest, BackwardMatchesTheOracle) {
  // Enough rows for several iterations of a block's loop, also for clusters of two and four.
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), {{1100, 8192, 0}, {600, 16384, 0}});
  for (const Element element : kElements)
    for (const Shape& s : shapes)
      for (const GeluKind kind : kKinds)
        for (const int variant : {0, 1, 2, 3}) {
          const bool from_codes = variant & 1, d_bias = variant & 2;
          const int64_t n = s.rows * s.columns;
          if (too_large(n) || (n > 1000000 && (element != Element::kBF16 || kind != GeluKind::kTanh || variant != 3)))
            continue;
          SCOPED_TRACE(text(element, s, kind) + " variant " + std::to_string(variant));
          const Values x = inputs(n, element, 1), b = normal_values(s.columns, element, 2),
                       dy = normal_values(n, element, 3);
          Values z = with_bias(x, b, element);
          const oracle::QuantizedRows kept = oracle::quantized_rows(z, s.rows, s.columns, Fp8Format::kE4M3);
          if (from_codes)
            for (int64_t i = 0; i < n; ++i)
              z[static_cast<size_t>(i)] =
                  static_cast<float>(oracle::fp8_value(kept.codes[static_cast<size_t>(i)], Fp8Format::kE4M3)) *
                  static_cast<float>(kept.inverse[static_cast<size_t>(i / s.columns)]);
          DeviceArray dx(x, element, s.shift), db(b, element), ddy(dy, element, s.shift), out(n, element, s.shift),
              sum(s.columns, element), inverse(s.rows, Element::kF32), saved_inverse(kept.inverse, Element::kF32),
              workspace(gelu_backward_workspace(s.rows, s.columns), Element::kF32);
          DeviceBytes codes(n), saved(n);
          saved.write(kept.codes.data());
          GeluBackward a;
          a.dy = ddy.data(), a.dx = out.data(), a.kind = kind, a.rows = s.rows, a.columns = s.columns,
          a.element = element;
          if (from_codes)
            a.saved = {saved.as<uint8_t>(), saved_inverse.fp32(), Fp8Format::kE4M3};
          else
            a.x = dx.data(), a.bias = db.data();
          if (d_bias) a.d_bias = sum.data(), a.workspace = workspace.fp32();
          CUDA_OK(gelu_backward(a, nullptr));
          const Values plain = out.values();
          // The derivative changes sign near -0.75.
          expect_close(plain, oracle::gelu_backward(dy, z, kind), element, 1.03, 4e-6, "dx");
          if (d_bias) {
            Values total(static_cast<size_t>(s.columns), 0.0);
            for (int64_t i = 0; i < n; ++i) total[static_cast<size_t>(i % s.columns)] += plain[static_cast<size_t>(i)];
            expect_close(sum.values(), total, element, 1.01, 1e-5 * std::sqrt(static_cast<double>(s.rows)), "d_bias");
          }
          workspace.read();
          a.fp8.data = codes.as<uint8_t>(), a.fp8.format = Fp8Format::kE5M2, a.fp8.scaling = Fp8Scaling::kRow,
          a.fp8.row_inverse = inverse.fp32();
          a.dx = d_bias ? ddy.data() : nullptr;  // in place, or only FP8
          CUDA_OK(gelu_backward(a, nullptr));
          expect_quantized_rows(plain, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE5M2,
                                "dx in FP8");
          if (d_bias) {
            EXPECT_EQ(ddy.values(), plain);
          }
        }
}

TEST_F(GeluTest, BiasGradientAccumulatesInFp32) {
  const int64_t rows = 77, columns = 4096;
  const Values x = inputs(rows * columns, Element::kBF16, 1), dy = normal_values(rows * columns, Element::kBF16, 2),
               before = normal_values(columns, Element::kF32, 3);
  DeviceArray dx(x, Element::kBF16), ddy(dy, Element::kBF16), out(rows * columns, Element::kBF16),
      sum(before, Element::kF32), workspace(gelu_backward_workspace(rows, columns), Element::kF32);
  GeluBackward a;
  a.dy = ddy.data(), a.x = dx.data(), a.dx = out.data(), a.d_bias = sum.fp32(), a.fp32 = a.accumulate = true,
  a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns;
  CUDA_OK(gelu_backward(a, nullptr));
  const Values plain = out.values();
  Values total = before;
  for (int64_t i = 0; i < rows * columns; ++i) total[static_cast<size_t>(i % columns)] += plain[static_cast<size_t>(i)];
  expect_close(sum.values(), total, Element::kF32, 0, 5e-5, "d_bias");
}

TEST_F(GeluTest, NonFiniteGradientsStayInTheirColumn) {
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const bool from_codes : {false, true})
      for (const int64_t columns : {2048, 8192}) {
        SCOPED_TRACE(std::string(name_of(element)) + " columns " + std::to_string(columns) +
                     (from_codes ? " from codes" : ""));
        const int64_t rows = 5, n = rows * columns, column = 1285;
        Values dy = normal_values(n, element, 1);
        const Values x = normal_values(n, element, 2);
        dy[static_cast<size_t>(3 * columns + column)] = std::numeric_limits<double>::infinity();
        const oracle::QuantizedRows kept = oracle::quantized_rows(x, rows, columns, Fp8Format::kE4M3);
        DeviceArray ddy(dy, element), dx(x, element), out(n, element), sum(columns, Element::kF32),
            saved_inverse(kept.inverse, Element::kF32),
            workspace(gelu_backward_workspace(rows, columns), Element::kF32);
        DeviceBytes saved(n);
        saved.write(kept.codes.data());
        GeluBackward a;
        a.dy = ddy.data(), a.dx = out.data(), a.d_bias = sum.fp32(), a.fp32 = true;
        a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns, a.element = element;
        if (from_codes)
          a.saved = {saved.as<uint8_t>(), saved_inverse.fp32(), Fp8Format::kE4M3};
        else
          a.x = dx.data();
        CUDA_OK(gelu_backward(a, nullptr));
        const Values gradient = out.values(), sums = sum.values();
        for (int64_t c = 0; c < columns; ++c) {
          double total = 0;
          for (int64_t r = 0; r < rows; ++r) total += gradient[static_cast<size_t>(r * columns + c)];
          if (c == column)
            EXPECT_FALSE(std::isfinite(sums[static_cast<size_t>(c)]));
          else
            ASSERT_NEAR(sums[static_cast<size_t>(c)], total, 1e-5) << "column " << c;
        }
      }
}

TEST_F(GeluTest, SameBitsEveryTime) {
  for (const int64_t columns : {1001, 4096}) {
    const int64_t rows = 700;
    const Values x = inputs(rows * columns, Element::kBF16, 1), dy = normal_values(rows * columns, Element::kBF16, 2);
    DeviceArray dx(x, Element::kBF16), ddy(dy, Element::kBF16), out(rows * columns, Element::kBF16),
        sum(columns, Element::kF32), inverse(rows, Element::kF32),
        workspace(gelu_backward_workspace(rows, columns), Element::kF32);
    DeviceBytes codes(rows * columns), d_codes(rows * columns);
    GeluForward f;
    f.x = dx.data(), f.rows = rows, f.columns = columns, f.fp8.data = codes.as<uint8_t>(),
    f.fp8.scaling = Fp8Scaling::kRow, f.fp8.row_inverse = inverse.fp32();
    GeluBackward a;
    a.dy = ddy.data(), a.x = dx.data(), a.dx = out.data(), a.d_bias = sum.fp32(), a.fp32 = true,
    a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns;
    a.fp8 = f.fp8, a.fp8.data = d_codes.as<uint8_t>();
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      out.poison(), sum.poison(), workspace.poison(), codes.poison(), d_codes.poison();
      CUDA_OK(gelu_forward(f, nullptr));
      CUDA_OK(gelu_backward(a, nullptr));
      std::vector<std::vector<unsigned char>> now = {codes.read(), d_codes.read(), out.read(), sum.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::gelu_tests
