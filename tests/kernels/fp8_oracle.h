#pragma once
// FP8 conversions in fp64 on the host, written from the bit layout without CUDA's conversions.

#include "kernels/fp8/fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::kernels::oracle {

struct Fp8Layout {
  int mantissa, bias;
  int finite;  // positive codes 0 … finite - 1 are finite
};
inline Fp8Layout fp8_layout(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? Fp8Layout{3, 7, 0x7f} : Fp8Layout{2, 15, 0x7c};
}

/// NaN for NaN codes, infinity for E5M2's infinity codes.
inline double fp8_value(uint8_t code, Fp8Format format) {
  const Fp8Layout l = fp8_layout(format);
  const int magnitude = code & 0x7f, exponent = magnitude >> l.mantissa, fraction = magnitude & ((1 << l.mantissa) - 1);
  double value;
  if (magnitude >= l.finite)
    value = format == Fp8Format::kE5M2 && magnitude == 0x7c ? std::numeric_limits<double>::infinity()
                                                            : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(fraction, 1 - l.bias - l.mantissa);
  else
    value = std::ldexp((1 << l.mantissa) + fraction, exponent - l.bias - l.mantissa);
  return code & 0x80 ? -value : value;
}

/// The nearest finite code, ties to even; larger magnitudes saturate. NaN becomes code 0x7f in both formats.
inline uint8_t fp8_code(double value, Fp8Format format) {
  if (std::isnan(value)) return 0x7f;
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const int finite = fp8_layout(format).finite;
  const auto table = [](Fp8Format of) {
    std::array<double, 128> values{};
    for (int code = 0; code < fp8_layout(of).finite; ++code)
      values[static_cast<size_t>(code)] = fp8_value(static_cast<uint8_t>(code), of);
    return values;
  };
  static const std::array<std::array<double, 128>, 2> tables = {table(Fp8Format::kE4M3), table(Fp8Format::kE5M2)};
  const std::array<double, 128>& values = tables[format == Fp8Format::kE4M3 ? 0 : 1];
  const double size = std::abs(value);
  const int above = static_cast<int>(std::lower_bound(values.begin(), values.begin() + finite, size) - values.begin());
  if (above == finite) return static_cast<uint8_t>(sign | (finite - 1));
  if (above == 0) return sign;
  const double up = values[static_cast<size_t>(above)] - size, down = size - values[static_cast<size_t>(above - 1)];
  const int nearest = up < down || (up == down && above % 2 == 0) ? above : above - 1;
  return static_cast<uint8_t>(sign | nearest);
}

/// code(x * scale), the product rounded to fp32.
inline std::vector<uint8_t> quantized(const std::vector<double>& x, double scale, Fp8Format format) {
  std::vector<uint8_t> codes;
  codes.reserve(x.size());
  for (const double v : x) codes.push_back(fp8_code(static_cast<float>(v) * static_cast<float>(scale), format));
  return codes;
}

struct QuantizedRows {
  std::vector<uint8_t> codes;
  std::vector<double> inverse;
};
/// As quantize_rows; scale and product are rounded to fp32 as documented there.
inline QuantizedRows quantized_rows(const std::vector<double>& x, int64_t rows, int64_t columns, Fp8Format format) {
  QuantizedRows result;
  const float most = format == Fp8Format::kE4M3 ? 448.0f : 57344.0f;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> row(x.begin() + r * columns, x.begin() + (r + 1) * columns);
    float top = 0;
    for (const double v : row)
      top = std::isnan(v) || std::isnan(top) ? std::numeric_limits<float>::quiet_NaN()
                                             : std::max(top, static_cast<float>(std::abs(v)));
    const float inverse = top == 0                                         ? 1.0f
                          : top / most < std::numeric_limits<float>::min() ? std::numeric_limits<float>::min()
                                                                           : top / most;
    result.inverse.push_back(inverse);
    const std::vector<uint8_t> codes = quantized(row, 1.0f / inverse, format);
    result.codes.insert(result.codes.end(), codes.begin(), codes.end());
  }
  return result;
}

}  // namespace trireme::kernels::oracle
