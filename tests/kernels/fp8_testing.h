#pragma once
// Comparison of FP8 outputs, code by code.

#include "fp8_oracle.h"
#include "testing.h"

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

}  // namespace trireme::kernels::testing
