#include "kernels/quantize/quantize.h"

#include "fp8_testing.h"

#include <algorithm>

namespace trireme::kernels::testing::quantize_tests {

namespace {

struct Shape {
  int64_t rows, columns, shift;
};

class QuantizeTest : public KernelTest {};

std::string text(Element element, const Shape& s, Fp8Format format) {
  return std::string(name_of(element)) + " " + std::to_string(s.rows) + " x " + std::to_string(s.columns) + " shift " +
         std::to_string(s.shift) + (format == Fp8Format::kE4M3 ? " E4M3" : " E5M2");
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
    for (const Fp8Format format : kFormats)
      for (const Shape& s : kShapes) {
        if (too_large(s.rows * s.columns)) continue;
        SCOPED_TRACE(text(element, s, format));
        Values x = normal_values(s.rows * s.columns, element, 1, 3.0);
        if (s.rows > 4) {
          const auto row = [&](int64_t r) { return x.begin() + r * s.columns; };
          std::fill(row(0), row(1), 0.0);
          for (auto v = row(1); v != row(2); ++v)
            *v = round_to(*v * (element == Element::kF16 ? 1e-7 : 1e-38), element);
          x[2 * s.columns + s.columns / 2] = std::numeric_limits<double>::infinity();
          x[4 * s.columns - 1] = std::numeric_limits<double>::quiet_NaN();
        }
        DeviceArray dx(x, element, s.shift), inverse(s.rows, Element::kF32);
        DeviceBytes codes(s.rows * s.columns, s.shift);
        CUDA_OK(
            quantize_rows(dx.data(), codes.as<uint8_t>(), inverse.fp32(), s.rows, s.columns, element, format, nullptr));
        expect_quantized_rows(x, codes.read(), inverse.values(), s.rows, s.columns, format, "rows");
      }
}

TEST_F(QuantizeTest, TensorMatchesTheOracle) {
  constexpr Shape kShapes[] = {{1, 1, 0},     {7, 5, 0},     {16, 16, 0},   {33, 100, 0},  {128, 128, 0},
                               {144, 272, 0}, {112, 16, 0},  {16, 1040, 0}, {128, 256, 1}, {384, 512, 0},
                               {1000, 96, 0}, {48, 8192, 0}, {3, 50001, 0}};
  for (const Element element : kElements)
    for (const Fp8Format format : kFormats)
      for (const Shape& s : kShapes)
        for (const int outputs : {1, 2, 3}) {
          if (too_large(s.rows * s.columns)) continue;
          SCOPED_TRACE(text(element, s, format) + " outputs " + std::to_string(outputs));
          const int64_t n = s.rows * s.columns;
          const Values x = normal_values(n, element, 1, 3.0);
          const double scale = format == Fp8Format::kE4M3 ? 70.0 : 9000.0;  // some saturate
          double top = 0;
          for (const double v : x) top = std::max(top, std::abs(v));
          DeviceArray dx(x, element, s.shift), dscale(Values{scale}, Element::kF32), damax(Values{0.25}, Element::kF32);
          DeviceBytes data(n, s.shift), transposed(n, s.shift);
          QuantizeTensor a;
          a.x = dx.data(), a.scale = dscale.fp32(), a.amax = damax.fp32(), a.rows = s.rows, a.columns = s.columns,
          a.element = element, a.format = format;
          if (outputs & 1) a.data = data.as<uint8_t>();
          if (outputs & 2) a.transposed = transposed.as<uint8_t>();
          CUDA_OK(quantize_tensor(a, nullptr));
          const std::vector<uint8_t> expected = oracle::quantized(x, scale, format);
          if (outputs & 1) expect_codes(data.read(), expected, format, "data");
          if (outputs & 2) {
            std::vector<uint8_t> turned(expected.size());
            for (int64_t r = 0; r < s.rows; ++r)
              for (int64_t c = 0; c < s.columns; ++c)
                turned[static_cast<size_t>(c * s.rows + r)] = expected[static_cast<size_t>(r * s.columns + c)];
            expect_codes(transposed.read(), turned, format, "transposed");
          }
          EXPECT_EQ(damax.values()[0], std::max(top, 0.25));
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
  constexpr Shape kShapes[] = {{1, 1, 0},     {3, 100, 0},     {16, 16, 0},   {16, 4096, 0},
                               {4096, 16, 0}, {128, 384, 0},   {272, 144, 0}, {129, 257, 0},
                               {256, 256, 4}, {1024, 2048, 0}, {5000, 333, 0}};
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
}

TEST_F(QuantizeTest, ScalesFollowTheHistory) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr int kTensors = 6, kLength = 3;
  // Row 0 is the newest, row 1 the oldest.
  const Values history = {2, 0, kInfinity, kNaN, 1e-38, 0,  //
                          8, 0, 1,         1,    0,     3,  //
                          4, 0, 1,         1,    0,     5};
  const Values scale = {11, 12, 13, 14, 15, 16};
  for (const AmaxChoice choice : {AmaxChoice::kMax, AmaxChoice::kMostRecent})
    for (const int margin : {0, 2}) {
      DeviceArray dhistory(history, Element::kF32), dscale(scale, Element::kF32), dinverse(kTensors, Element::kF32);
      ScaleUpdate a;
      a.history = dhistory.fp32(), a.scale = dscale.fp32(), a.inverse = dinverse.fp32(), a.length = kLength,
      a.tensors = kTensors;
      a.choice = choice, a.margin = margin;
      CUDA_OK(update_scales(a, nullptr));
      const double shrink = std::ldexp(1.0, -margin);
      const bool recent = choice == AmaxChoice::kMostRecent;
      // 448 / 1e-38 exceeds fp32.
      const Values expected = {(recent ? 224 : 56) * shrink,
                               12,
                               13,
                               14,
                               std::numeric_limits<float>::max(),
                               recent ? 16 : static_cast<double>(448.0f / 5.0f) * shrink};
      EXPECT_EQ(dscale.values(), expected) << recent << " " << margin;
      for (int i = 0; i < kTensors; ++i)
        EXPECT_EQ(dinverse.values()[static_cast<size_t>(i)],
                  static_cast<double>(1.0f / static_cast<float>(expected[static_cast<size_t>(i)])));
      const Values after = dhistory.values();
      for (int i = 0; i < kTensors; ++i) {
        const size_t column = static_cast<size_t>(i);
        EXPECT_EQ(after[column], 0);
        EXPECT_EQ(after[kTensors + column], history[2 * kTensors + column]);
        if (std::isnan(history[column])) continue;
        EXPECT_EQ(after[2 * kTensors + column], static_cast<double>(static_cast<float>(history[column])));
      }
    }
}

TEST_F(QuantizeTest, SameBitsEveryTime) {
  const int64_t rows = 272, columns = 1040;
  const Values x = normal_values(rows * columns, Element::kBF16, 1);
  DeviceArray dx(x, Element::kBF16), inverse(rows, Element::kF32), scale(Values{30.0}, Element::kF32),
      top(Values{0.0}, Element::kF32);
  DeviceBytes codes(rows * columns), data(rows * columns), transposed(rows * columns);
  QuantizeTensor a;
  a.x = dx.data(), a.data = data.as<uint8_t>(), a.transposed = transposed.as<uint8_t>(), a.scale = scale.fp32(),
  a.amax = top.fp32(), a.rows = rows, a.columns = columns;
  std::vector<std::vector<unsigned char>> first;
  for (int run = 0; run < 100; ++run) {
    codes.poison(), data.poison(), transposed.poison(), inverse.poison();
    CUDA_OK(quantize_rows(dx.data(), codes.as<uint8_t>(), inverse.fp32(), rows, columns, Element::kBF16,
                          Fp8Format::kE4M3, nullptr));
    CUDA_OK(quantize_tensor(a, nullptr));
    std::vector<std::vector<unsigned char>> now = {codes.read(), data.read(), transposed.read(), inverse.read(),
                                                   top.read()};
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::quantize_tests
