#include "kernels/gelu/gelu.h"

#include "gelu_oracle.h"
#include "testing.h"

#include <cmath>
#include <limits>

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
          DeviceArray dx(x, element, s.shift), db(b, element), y(n, element, s.shift);
          GeluForward a;
          a.x = dx.data(), a.y = y.data(), a.kind = kind, a.rows = s.rows, a.columns = s.columns, a.element = element;
          if (bias) a.bias = db.data();
          CUDA_OK(gelu_forward(a, nullptr));
          expect_close(y.values(), oracle::gelu(z, kind), element, 1.03, tiny(element), "y");
        }
}

TEST_F(GeluTest, BackwardMatchesTheOracle) {
  // Enough rows for several iterations of a block's loop.
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), {{1100, 8192, 0}, {600, 16384, 0}});
  for (const Element element : kElements)
    for (const Shape& s : shapes)
      for (const GeluKind kind : kKinds) {
        const int64_t n = s.rows * s.columns;
        if (too_large(n) || (n > 1000000 && (element != Element::kBF16 || kind != GeluKind::kTanh))) continue;
        SCOPED_TRACE(text(element, s, kind));
        const Values x = inputs(n, element, 1), b = normal_values(s.columns, element, 2),
                     dy = normal_values(n, element, 3);
        DeviceArray dx(x, element, s.shift), db(b, element), ddy(dy, element, s.shift), out(n, element, s.shift),
            sum(s.columns, element), workspace(gelu_backward_workspace(s.rows, s.columns), Element::kF32);
        GeluBackward a;
        a.dy = ddy.data(), a.x = dx.data(), a.bias = db.data(), a.dx = out.data(), a.kind = kind, a.rows = s.rows,
        a.columns = s.columns, a.element = element, a.d_bias = sum.data(), a.workspace = workspace.fp32();
        CUDA_OK(gelu_backward(a, nullptr));
        const Values plain = out.values();
        // The derivative changes sign near -0.75.
        expect_close(plain, oracle::gelu_backward(dy, with_bias(x, b, element), kind), element, 1.03, 4e-6, "dx");
        Values total(static_cast<size_t>(s.columns), 0.0);
        for (int64_t i = 0; i < n; ++i) total[static_cast<size_t>(i % s.columns)] += plain[static_cast<size_t>(i)];
        expect_close(sum.values(), total, element, 1.01, 1e-5 * std::sqrt(static_cast<double>(s.rows)), "d_bias");
        a.dx = ddy.data();  // in place
        CUDA_OK(gelu_backward(a, nullptr));
        EXPECT_EQ(ddy.values(), plain);
      }
}

TEST_F(GeluTest, NonFiniteGradientsStayInTheirColumn) {
  for (const Element element : {Element::kBF16, Element::kF16, Element::kF32})
    for (const int64_t columns : {2048, 8192}) {
      SCOPED_TRACE(std::string(name_of(element)) + " columns " + std::to_string(columns));
      const int64_t rows = 5, n = rows * columns, column = 1285;
      Values dy = normal_values(n, element, 1);
      const Values x = normal_values(n, element, 2);
      dy[static_cast<size_t>(3 * columns + column)] = std::numeric_limits<double>::infinity();
      DeviceArray ddy(dy, element), dx(x, element), out(n, element), sum(columns, element),
          workspace(gelu_backward_workspace(rows, columns), Element::kF32);
      GeluBackward a;
      a.dy = ddy.data(), a.x = dx.data(), a.dx = out.data(), a.d_bias = sum.data(), a.workspace = workspace.fp32();
      a.rows = rows, a.columns = columns, a.element = element;
      CUDA_OK(gelu_backward(a, nullptr));
      const Values sums = sum.values();
      for (int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(std::isfinite(sums[static_cast<size_t>(c)]), c != column) << "column " << c;
    }
}

TEST_F(GeluTest, SameBitsEveryTime) {
  for (const int64_t columns : {1001, 4096}) {
    const int64_t rows = 700;
    const Values x = inputs(rows * columns, Element::kBF16, 1), dy = normal_values(rows * columns, Element::kBF16, 2);
    DeviceArray dx(x, Element::kBF16), ddy(dy, Element::kBF16), y(rows * columns, Element::kBF16),
        out(rows * columns, Element::kBF16), sum(columns, Element::kBF16),
        workspace(gelu_backward_workspace(rows, columns), Element::kF32);
    GeluForward f;
    f.x = dx.data(), f.y = y.data(), f.rows = rows, f.columns = columns;
    GeluBackward a;
    a.dy = ddy.data(), a.x = dx.data(), a.dx = out.data(), a.d_bias = sum.data(), a.workspace = workspace.fp32(),
    a.rows = rows, a.columns = columns;
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < 100; ++run) {
      y.poison(), out.poison(), sum.poison(), workspace.poison();
      CUDA_OK(gelu_forward(f, nullptr));
      CUDA_OK(gelu_backward(a, nullptr));
      std::vector<std::vector<unsigned char>> now = {y.read(), out.read(), sum.read()};
      if (run == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << run;
    }
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::gelu_tests
