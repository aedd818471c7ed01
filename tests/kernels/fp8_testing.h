#pragma once
// Comparison of FP8 outputs, code by code.

#include "fp8_oracle.h"
#include "testing.h"

#include <algorithm>
#include <cstring>

namespace trireme::kernels::testing {

inline constexpr Fp8Format kFormats[] = {Fp8Format::kE4M3, Fp8Format::kE5M2};

/// Checks for equal codes; all NaN codes count as equal.
inline void expect_codes(const std::vector<unsigned char>& actual, const std::vector<uint8_t>& expected,
                         Fp8Format format, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double a = oracle::fp8_value(actual[i], format), e = oracle::fp8_value(expected[i], format);
    ASSERT_TRUE(std::isnan(a) && std::isnan(e))
        << what << ": code " << i << " of " << actual.size() << " has value " << a << ", expected " << e;
  }
}

/// Checks that `codes` and `inverse` are the result of quantize_rows for `plain`.
inline void expect_quantized_rows(const Values& plain, const std::vector<unsigned char>& codes, const Values& inverse,
                                  int64_t rows, int64_t columns, Fp8Format format, const std::string& what) {
  const oracle::QuantizedRows expected = oracle::quantized_rows(plain, rows, columns, format);
  expect_codes(codes, expected.codes, format, what);
  ASSERT_EQ(inverse.size(), expected.inverse.size()) << what;
  for (size_t r = 0; r < inverse.size(); ++r)
    ASSERT_TRUE(inverse[r] == expected.inverse[r] || (std::isnan(inverse[r]) && std::isnan(expected.inverse[r])))
        << what << ": inverse scale of row " << r << " is " << inverse[r] << ", expected " << expected.inverse[r];
}

/// The largest magnitude of each column of a 16-bit matrix, as bits: NaN above infinity.
inline std::vector<uint16_t> column_maxima(const std::vector<unsigned char>& bytes, int64_t rows, int64_t columns) {
  std::vector<uint16_t> words(bytes.size() / 2), most(static_cast<size_t>(columns));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  for (int64_t i = 0; i < rows * columns; ++i) {
    uint16_t& top = most[static_cast<size_t>(i % columns)];
    top = std::max<uint16_t>(top, words[static_cast<size_t>(i)] & 0x7fff);
  }
  return most;
}

/// Checks that the found rows of `maxima`, and no others, are written, and that their columns have the largest
/// magnitudes of those of the 16-bit matrix.
inline void expect_column_maxima(const std::vector<unsigned char>& maxima, const FoundMaxima& found,
                                 const std::vector<unsigned char>& matrix, int64_t rows, int64_t columns) {
  const auto written = maxima.begin() + found.column_rows * columns * 2;
  EXPECT_TRUE(std::all_of(written, maxima.end(), [](unsigned char byte) { return byte == 0xff; }));
  if (found.column_rows == 0) return;
  EXPECT_EQ(column_maxima({maxima.begin(), written}, found.column_rows, columns), column_maxima(matrix, rows, columns));
}

/// Checks a found amax against the one that amax() finds in the matrix.
inline void expect_amax(const DeviceArray& found, const DeviceArray& matrix, int64_t count, Element element) {
  DeviceArray amax(Values(1, 0.0), Element::kF32);
  CUDA_OK(kernels::amax(matrix.data(), count, element, amax.fp32(), nullptr));
  EXPECT_EQ(found.read(), amax.read());
}

}  // namespace trireme::kernels::testing
