#include "kernels/fp8/fp8.h"

#include "fp8_testing.h"
#include "gelu_oracle.h"
#include "kernels/launch.h"

#include <algorithm>

namespace trireme::kernels::testing::fp8_operands_tests {

namespace {

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{16, 16},   {128, 128}, {144, 272}, {112, 16},
                             {16, 1040}, {384, 512}, {2064, 96}, {48, 8192}};

class Fp8OperandsTest : public KernelTest {};

struct Case {
  Values x, bias, dy;
  OperandValues values;
  GeluKind kind;
  bool bias_given;
};

/// The expected values of the codes, from the formulas in fp64.
Values expected_values(const Case& c, Element element) {
  if (c.values == OperandValues::kPlain) return c.x;
  Values z = c.x;
  if (c.bias_given)
    for (size_t i = 0; i < z.size(); ++i) z[i] = round_to(z[i] + c.bias[i % c.bias.size()], element);
  return c.values == OperandValues::kGelu ? oracle::gelu(z, c.kind) : oracle::gelu_backward(c.dy, z, c.kind);
}

/// Checks that the codes' values are within the format's spacing of the expected ones: the kernel's gelu may round its
/// 16-bit value to a neighbour of the oracle's.
void expect_near(const std::vector<unsigned char>& codes, const Values& expected, double scale, Fp8Format format,
                 Element element, const char* what) {
  const double spacing = format == Fp8Format::kE4M3 ? 1.0 / 16 : 1.0 / 8,
               most = format == Fp8Format::kE4M3 ? 448 : 57344,
               smallest = format == Fp8Format::kE4M3 ? std::ldexp(1.0, -9) : std::ldexp(1.0, -16),
               subnormal = element == Element::kF16 ? std::ldexp(scale, -24) : 2e-9 * scale;
  ASSERT_EQ(codes.size(), expected.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const double got = oracle::fp8_value(codes[i], format), want = std::clamp(expected[i] * scale, -most, most);
    ASSERT_LE(std::abs(got - want), 1.02 * spacing * std::abs(want) + 0.6 * smallest + subnormal)
        << what << " " << i << ": " << got << ", expected " << want;
  }
}

TEST_F(Fp8OperandsTest, MatchTheOracle) {
  for (const Element element : {Element::kBF16, Element::kF16})
    for (const Fp8Format format : kFormats)
      for (const Shape& s : kShapes)
        for (const OperandValues values : {OperandValues::kPlain, OperandValues::kGelu, OperandValues::kGeluGradient})
          for (const GeluKind kind : {GeluKind::kErf, GeluKind::kTanh})
            for (const bool option : {false, true}) {  // bias, sums
              const int64_t n = s.rows * s.columns;
              if (too_large(n) || (values == OperandValues::kPlain && kind == GeluKind::kErf)) continue;
              SCOPED_TRACE(std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " +
                           std::to_string(s.columns) + " values " + std::to_string(static_cast<int>(values)));
              Case c{normal_values(n, element, 1, 3.0),
                     normal_values(s.columns, element, 2),
                     normal_values(n, element, 3),
                     values,
                     kind,
                     option};
              const bool gradient = values == OperandValues::kGeluGradient;
              const double scale = format == Fp8Format::kE4M3 ? 70.0 : 9000.0;  // some saturate
              DeviceArray x(c.x, element), bias(c.bias, element), dy(c.dy, element),
                  device_scale(Values{scale}, Element::kF32), top(Values{0.25}, Element::kF32),
                  sums(s.columns, element), workspace(fp8_operands_workspace(s.rows, s.columns), Element::kF32);
              DeviceBytes data(n), transposed(n);
              Fp8Operands a;
              a.values = values, a.x = x.data(), a.gelu = kind, a.data = data.as<uint8_t>(),
              a.transposed = transposed.as<uint8_t>(), a.scale = device_scale.fp32(), a.amax = top.fp32(),
              a.rows = s.rows, a.columns = s.columns, a.element = element, a.format = format;
              if (gradient) a.dy = dy.data();
              if (option && values != OperandValues::kPlain) a.bias = bias.data();
              if (option) a.sums = sums.data(), a.workspace = workspace.fp32();
              CUDA_OK(fp8_operands(a, nullptr));
              const Values expected = expected_values(c, element);
              const std::vector<unsigned char> codes = data.read(), turned = transposed.read();
              if (values == OperandValues::kPlain)
                expect_codes(codes, oracle::quantized(expected, scale, format), format, "data");
              else
                expect_near(codes, expected, scale, format, element, "data");
              for (int64_t r = 0; r < s.rows; ++r)
                for (int64_t column = 0; column < s.columns; ++column)
                  ASSERT_EQ(turned[static_cast<size_t>(column * s.rows + r)],
                            codes[static_cast<size_t>(r * s.columns + column)])
                      << "row " << r << " column " << column;
              double most = 0.25;
              for (const double v : expected) most = std::max(most, std::abs(v));
              EXPECT_NEAR(top.values()[0], most, (2 * roundoff(element) + 64 * roundoff(Element::kF32)) * most);
              if (!option) continue;
              Values column_sums(static_cast<size_t>(s.columns)), sizes(column_sums);
              for (int64_t i = 0; i < n; ++i) {
                column_sums[static_cast<size_t>(i % s.columns)] += expected[static_cast<size_t>(i)];
                sizes[static_cast<size_t>(i % s.columns)] += std::abs(expected[static_cast<size_t>(i)]);
              }
              const Values got = sums.values();
              for (size_t i = 0; i < got.size(); ++i)
                ASSERT_NEAR(got[i], column_sums[i],
                            roundoff(element) * (sizes[i] + 1.5 * std::abs(column_sums[i])) + 2e-6 * sizes[i])
                    << "sum of column " << i;
            }
}

TEST_F(Fp8OperandsTest, SameBitsEveryTimeAndNonFiniteValuesShow) {
  const int64_t rows = 272, columns = 1040, n = rows * columns;
  Values values = normal_values(n, Element::kF16, 1);
  DeviceArray dy(normal_values(n, Element::kF16, 2), Element::kF16), scale(Values{30.0}, Element::kF32),
      top(Values{0.0}, Element::kF32), sums(columns, Element::kF16),
      workspace(fp8_operands_workspace(rows, columns), Element::kF32);
  DeviceBytes data(n), transposed(n);
  const auto run = [&](const DeviceArray& x) {
    Fp8Operands a;
    a.values = OperandValues::kGeluGradient, a.x = x.data(), a.dy = dy.data(), a.gelu = GeluKind::kTanh,
    a.data = data.as<uint8_t>(), a.transposed = transposed.as<uint8_t>(), a.scale = scale.fp32(), a.amax = top.fp32(),
    a.sums = sums.data(), a.workspace = workspace.fp32(), a.rows = rows, a.columns = columns, a.element = Element::kF16,
    a.format = Fp8Format::kE5M2;
    return fp8_operands(a, nullptr);
  };
  std::vector<std::vector<unsigned char>> first;
  {
    DeviceArray x(values, Element::kF16);
    for (int repeat = 0; repeat < 100; ++repeat) {
      data.poison(), transposed.poison(), sums.poison(), workspace.poison();
      CUDA_OK(run(x));
      std::vector<std::vector<unsigned char>> now = {data.read(), transposed.read(), sums.read(), top.read()};
      if (repeat == 0)
        first = std::move(now);
      else
        ASSERT_TRUE(now == first) << "run " << repeat;
    }
  }
  values[static_cast<size_t>(n / 2)] = std::numeric_limits<double>::quiet_NaN();
  DeviceArray x(values, Element::kF16);
  CUDA_OK(run(x));
  EXPECT_TRUE(std::isnan(top.values()[0]));
  const Values after = sums.values();
  for (int64_t c = 0; c < columns; ++c)
    EXPECT_EQ(std::isnan(after[static_cast<size_t>(c)]), c == n / 2 % columns) << "sum of column " << c;
}

TEST_F(Fp8OperandsTest, RefusesWhatItCannotDo) {
  DeviceBytes bytes(64 * 64 * 2), codes(64 * 64);
  DeviceArray scale(Values{1.0}, Element::kF32);
  Fp8Operands a;
  a.x = bytes.data(), a.data = a.transposed = codes.as<uint8_t>(), a.scale = scale.fp32(), a.rows = 64, a.columns = 40;
  EXPECT_EQ(fp8_operands(a, nullptr), cudaErrorInvalidValue);
  a.columns = 64, a.rows = 60;
  EXPECT_EQ(fp8_operands(a, nullptr), cudaErrorInvalidValue);
  a.rows = 64, a.element = Element::kF32;
  EXPECT_EQ(fp8_operands(a, nullptr), cudaErrorInvalidValue);
  a.element = Element::kBF16, a.values = OperandValues::kGeluGradient;
  EXPECT_EQ(fp8_operands(a, nullptr), cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::fp8_operands_tests
