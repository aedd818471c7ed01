#include "kernels/fp8/fp8.h"

#include "fp8_testing.h"

#include <algorithm>

namespace trireme::kernels::testing::quantize_tests {

namespace {

struct Shape {
  int64_t rows, columns, shift;
};

class QuantizeTest : public KernelTest {};

std::string text(Element element, const Shape& s) {
  return std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) + " shift " +
         std::to_string(s.shift);
}

TEST(Fp8OracleTest, KnowsTheFormats) {
  EXPECT_EQ(oracle::fp8_value(0x7e, Fp8Format::kE4M3), 448);
  EXPECT_EQ(oracle::fp8_value(0x01, Fp8Format::kE4M3), std::ldexp(1.0, -9));
  EXPECT_EQ(oracle::fp8_value(0x7b, Fp8Format::kE5M2), 57344);
  EXPECT_EQ(oracle::fp8_value(0x81, Fp8Format::kE5M2), -std::ldexp(1.0, -16));
  EXPECT_EQ(oracle::fp8_code(1e9, Fp8Format::kE4M3), 0x7e);
  EXPECT_EQ(oracle::fp8_code(-1e9, Fp8Format::kE5M2), 0xfb);
  EXPECT_EQ(oracle::fp8_code(17, Fp8Format::kE4M3), 0x58);  // halfway between 16 and 18
  EXPECT_EQ(oracle::fp8_code(19, Fp8Format::kE4M3), 0x5a);  // halfway between 18 and 20
}

TEST_F(QuantizeTest, RowsMatchTheOracle) {
  constexpr Shape kShapes[] = {{1, 1, 0},     {9, 7, 0},      {5, 8, 0},     {37, 128, 0},  {9, 1000, 0}, {13, 1024, 0},
                               {6, 1024, 1},  {600, 1032, 0}, {5, 4097, 0},  {5, 5120, 0},  {6, 8192, 0}, {5, 16384, 0},
                               {5, 16392, 0}, {5, 28672, 0},  {5, 57344, 0}, {5, 65536, 0}, {5, 65544, 0}};
  for (const Element element : kElements)
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(text(element, s));
      Values x = normal_values(s.rows * s.columns, element, 1, 3.0);
      if (s.rows > 4) {
        const auto row = [&](int64_t r) { return x.begin() + r * s.columns; };
        std::fill(row(0), row(1), 0.0);
        for (auto v = row(1); v != row(2); ++v) *v = round_to(*v * (element == Element::kF16 ? 1e-7 : 1e-38), element);
        x[2 * s.columns + s.columns / 2] = std::numeric_limits<double>::infinity();
        x[4 * s.columns - 1] = std::numeric_limits<double>::quiet_NaN();
      }
      DeviceArray dx(x, element, s.shift), inverse(s.rows, Element::kF32);
      DeviceBytes codes(s.rows * s.columns, s.shift);
      CUDA_OK(quantize_rows(dx.data(), codes.as<uint8_t>(), inverse.fp32(), s.rows, s.columns, element, nullptr));
      expect_quantized_rows(x, codes.read(), inverse.values(), s.rows, s.columns, Fp8Format::kE4M3, "rows");
    }
}

// Few and many rows for each block, widths around the limits. Codes and scales are those without maxima.
TEST_F(QuantizeTest, ColumnMaximaAreThoseOfTheMatrix) {
  constexpr Shape kShapes[] = {{1, 3584, 0},    {5, 3584, 0},   {1100, 3584, 0}, {300, 4096, 0},
                               {33, 5120, 0},   {300, 8192, 0}, {1, 8192, 0},    {700, 2056, 0},
                               {5, 2048, 0},    {13, 1024, 0},  {3, 8200, 0},    {40, 10240, 0},
                               {300, 16384, 0}, {4, 16392, 0},  {3, 4096, 1},    {4, 4001, 0}};
  for (const Element element : kElements)
    for (const Shape& s : kShapes) {
      if (too_large(s.rows * s.columns)) continue;
      SCOPED_TRACE(text(element, s));
      Values x = normal_values(s.rows * s.columns, element, 1, 3.0);
      for (int64_t r = 0; r < s.rows; ++r) x[static_cast<size_t>(r * s.columns + 9)] = 0;
      x[static_cast<size_t>(s.columns / 2)] = std::nan("");
      x[static_cast<size_t>((s.rows - 1) * s.columns + s.columns / 3)] = -std::numeric_limits<double>::infinity();
      x.back() = -3000;
      const int64_t most = column_maxima_rows(s.rows, s.columns);
      ASSERT_TRUE(most >= 1 && most <= s.rows);
      DeviceArray dx(x, element, s.shift), inverse(s.rows, Element::kF32), maxima(most * s.columns, element);
      DeviceBytes codes(s.rows * s.columns, s.shift);
      const auto run = [&](const WantedMaxima& wanted) {
        codes.poison(), inverse.poison();
        CUDA_OK(
            quantize_rows(dx.data(), codes.as<uint8_t>(), inverse.fp32(), s.rows, s.columns, element, nullptr, wanted));
      };
      run({});
      const std::vector<unsigned char> expected = codes.read(), expected_inverse = inverse.read();
      FoundMaxima found{true, 99};
      run({nullptr, maxima.data(), &found});
      EXPECT_TRUE(codes.read() == expected && inverse.read() == expected_inverse);
      const bool finds =
          element != Element::kF32 && s.shift == 0 && s.columns % 8 == 0 && s.columns > 2048 && s.columns <= 16384;
      EXPECT_EQ(found.column_rows > 0, finds);
      ASSERT_TRUE(!found.amax && found.column_rows <= most) << found.column_rows;
      if (element != Element::kF32) expect_column_maxima(maxima.read(), found, dx.read(), s.rows, s.columns);
    }
}

TEST_F(QuantizeTest, ValuesMatchTheOracle) {
  for (const Element element : kElements)
    for (const int64_t n : {1, 35, 256, 33 * 100, 128 * 256 + 1, 150003})
      for (const int64_t shift : {0, 1}) {
        SCOPED_TRACE(text(element, {1, n, shift}));
        Values x = normal_values(n, element, 1, 3.0);
        if (n > 3) {
          x[0] = std::numeric_limits<double>::infinity();
          x[1] = -std::numeric_limits<double>::infinity();
          x[2] = std::numeric_limits<double>::quiet_NaN();
        }
        const double scale = 70.0;  // some saturate
        DeviceArray dx(x, element, shift), dscale(Values{scale}, Element::kF32);
        DeviceBytes data(n, shift);
        CUDA_OK(quantize_values(dx.data(), data.as<uint8_t>(), dscale.fp32(), n, element, nullptr));
        expect_codes(data.read(), oracle::quantized(x, scale, Fp8Format::kE4M3), Fp8Format::kE4M3, "data");
      }
}

TEST_F(QuantizeTest, AmaxKeepsNaN) {
  for (const Element element : kElements)
    for (const int64_t count : {1, 7, 4096, 100003}) {
      Values x = normal_values(count, element, 1);
      double top = 0;
      for (const double v : x) top = std::max(top, std::abs(v));
      DeviceArray result(Values{0.0}, Element::kF32);
      {
        DeviceArray dx(x, element);
        CUDA_OK(amax(dx.data(), count, element, result.fp32(), nullptr));
        EXPECT_EQ(result.values()[0], top);
      }
      x[static_cast<size_t>(count / 2)] = std::numeric_limits<double>::quiet_NaN();
      DeviceArray dx(x, element);
      CUDA_OK(amax(dx.data(), count, element, result.fp32(), nullptr));
      EXPECT_TRUE(std::isnan(result.values()[0]));
    }
}

TEST_F(QuantizeTest, TransposesBytes) {
  constexpr Shape kShapes[] = {{16, 16, 0},   {16, 4096, 0}, {4096, 16, 0},
                               {128, 384, 0}, {272, 144, 0}, {1024, 2048, 0}};
  std::mt19937 generator(7);
  for (const Shape& s : kShapes) {
    if (too_large(s.rows * s.columns)) continue;
    SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.columns));
    std::vector<unsigned char> in(static_cast<size_t>(s.rows * s.columns)), expected(in.size());
    for (unsigned char& byte : in) byte = static_cast<unsigned char>(generator());
    for (int64_t r = 0; r < s.rows; ++r)
      for (int64_t c = 0; c < s.columns; ++c)
        expected[static_cast<size_t>(c * s.rows + r)] = in[static_cast<size_t>(r * s.columns + c)];
    DeviceBytes from(s.rows * s.columns, s.shift), to(s.rows * s.columns, s.shift);
    from.write(in.data());
    CUDA_OK(transpose_bytes(from.as<uint8_t>(), to.as<uint8_t>(), s.rows, s.columns, nullptr));
    EXPECT_TRUE(to.read() == expected);
  }
  DeviceBytes bytes(512);
  EXPECT_EQ(transpose_bytes(bytes.as<uint8_t>(), bytes.as<uint8_t>(), 16, 24, nullptr), cudaErrorInvalidValue);
}

TEST_F(QuantizeTest, SameBitsEveryTime) {
  const int64_t rows = 272, columns = 1040;
  const Values x = normal_values(rows * columns, Element::kBF16, 1);
  DeviceArray dx(x, Element::kBF16), inverse(rows, Element::kF32);
  DeviceBytes codes(rows * columns);
  std::vector<std::vector<unsigned char>> first;
  for (int run = 0; run < 100; ++run) {
    codes.poison(), inverse.poison();
    CUDA_OK(quantize_rows(dx.data(), codes.as<uint8_t>(), inverse.fp32(), rows, columns, Element::kBF16, nullptr));
    std::vector<std::vector<unsigned char>> now = {codes.read(), inverse.read()};
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::quantize_tests
