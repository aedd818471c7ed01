// Conversions compared with their definition: every half and bfloat16 value, and the neighbours of every rounding
// boundary.
#include "trireme/base/dtype.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "trireme/base/error.h"

namespace trireme {
namespace {

template <class From, class To>
To convert_one(From value, DType from, DType to) {
  To result{};
  convert_floats(&value, from, &result, to, 1);
  return result;
}

// The value of a 16-bit pattern, computed from the format's definition.
double meaning(uint16_t bits, int mantissa_bits, int bias) {
  const int exponent_bits = 15 - mantissa_bits;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * INFINITY;
  const double fraction = mantissa / std::ldexp(1.0, mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

struct Format16 {
  DType dtype;
  int mantissa_bits, bias;
};

class Sixteen : public testing::TestWithParam<Format16> {};

TEST_P(Sixteen, EveryPatternWidensExactlyAndComesBack) {
  const auto [dtype, mantissa_bits, bias] = GetParam();
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double expected = meaning(bits, mantissa_bits, bias);
    const auto single = convert_one<uint16_t, float>(bits, dtype, DType::kF32);
    const auto wide = convert_one<uint16_t, double>(bits, dtype, DType::kF64);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(single) && std::isnan(wide)) << pattern;
      ASSERT_TRUE(std::isnan(meaning(convert_one<float, uint16_t>(single, DType::kF32, dtype), mantissa_bits, bias)));
      continue;
    }
    ASSERT_EQ(single, expected) << pattern;
    ASSERT_EQ(wide, expected) << pattern;
    ASSERT_EQ((convert_one<float, uint16_t>(single, DType::kF32, dtype)), bits);
    ASSERT_EQ((convert_one<double, uint16_t>(wide, DType::kF64, dtype)), bits);
  }
}

TEST_P(Sixteen, RoundsToNearestEvenAtEveryBoundary) {
  const auto [dtype, mantissa_bits, bias] = GetParam();
  const auto infinity = static_cast<uint16_t>(0x7FFF >> mantissa_bits << mantissa_bits);
  for (uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double below = meaning(low, mantissa_bits, bias);
    // The rounding boundary of infinity is where the next finite value would be.
    const double above = high == infinity ? std::ldexp(1.0, bias + 1) : meaning(high, mantissa_bits, bias);
    const double middle = below + (above - below) / 2;
    const uint16_t even = (low & 1) == 0 ? low : high;
    ASSERT_EQ((convert_one<double, uint16_t>(middle, DType::kF64, dtype)), even) << low;
    ASSERT_EQ((convert_one<double, uint16_t>(std::nextafter(middle, 0), DType::kF64, dtype)), low);
    ASSERT_EQ((convert_one<double, uint16_t>(std::nextafter(middle, INFINITY), DType::kF64, dtype)), high);
    ASSERT_EQ((convert_one<double, uint16_t>(-std::nextafter(middle, INFINITY), DType::kF64, dtype)), high | 0x8000);
    const auto single = static_cast<float>(middle);
    if (single != middle) continue;
    ASSERT_EQ((convert_one<float, uint16_t>(single, DType::kF32, dtype)), even) << low;
    ASSERT_EQ((convert_one<float, uint16_t>(std::nextafter(single, 0.0F), DType::kF32, dtype)), low);
    ASSERT_EQ((convert_one<float, uint16_t>(std::nextafter(single, INFINITY), DType::kF32, dtype)), high);
  }
}

INSTANTIATE_TEST_SUITE_P(DType, Sixteen, testing::Values(Format16{DType::kF16, 10, 15}, Format16{DType::kBF16, 7, 127}),
                         [](const auto& test) { return std::string(dtype_name(test.param.dtype)); });

TEST(ConvertFloats, WholeArraysUnalignedAndEmpty) {
  std::array<char, 1 + 4 * 3> source{};
  const std::array<float, 3> values = {1.5F, -2.0F, 0.25F};
  std::memcpy(source.data() + 1, values.data(), sizeof values);
  std::array<double, 3> wide{};
  convert_floats(source.data() + 1, DType::kF32, wide.data(), DType::kF64, 3);
  EXPECT_EQ(wide, (std::array<double, 3>{1.5, -2.0, 0.25}));
  std::array<double, 3> copy{};
  convert_floats(wide.data(), DType::kF64, copy.data(), DType::kF64, 3);
  EXPECT_EQ(copy, wide);
  convert_floats(nullptr, DType::kF32, nullptr, DType::kF16, 0);
  EXPECT_THROW(convert_floats(wide.data(), DType::kI64, copy.data(), DType::kF32, 1), InternalError);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(dtype_size(DType::kBF16), 2U);
  EXPECT_EQ(dtype_size(DType::kF8E4M3), 1U);
  EXPECT_STREQ(dtype_name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_TRUE(dtype_is_float(DType::kBF16));
  EXPECT_FALSE(dtype_is_float(DType::kBool));
}

TEST(CheckedElements, ReportsOverflowAndRefusesNegative) {
  bool ok = false;
  const int64_t shape[] = {3, 4, 5};
  EXPECT_EQ(checked_elements(shape, ok), 60);
  EXPECT_TRUE(ok);
  EXPECT_EQ(checked_elements({}, ok), 1);
  const int64_t huge[] = {int64_t{1} << 32, int64_t{1} << 31};
  checked_elements(huge, ok);
  EXPECT_FALSE(ok);
  const int64_t negative[] = {2, -1};
  EXPECT_THROW(checked_elements(negative, ok), InternalError);
}

}  // namespace
}  // namespace trireme
