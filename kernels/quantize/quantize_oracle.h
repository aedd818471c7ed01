#pragma once
// FP8 conversions in fp64 on the host, written from the bit layout without CUDA's conversions.

#include "kernels/fp8/fp8_output.h"

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

/// NaN for NaN codes, infinity for E5M2's infinity codes.
double fp8_value(uint8_t code, Fp8Format format);
/// The nearest finite code, ties to even; larger magnitudes saturate. NaN becomes code 0x7f in both formats.
uint8_t fp8_code(double value, Fp8Format format);

struct QuantizedRows {
  std::vector<uint8_t> codes;
  std::vector<double> inverse;
};
/// As quantize_rows; scale and product are rounded to fp32 as documented there.
QuantizedRows quantized_rows(const std::vector<double>& x, int64_t rows, int64_t columns, Fp8Format format);

/// code(x * scale), the product rounded to fp32.
std::vector<uint8_t> quantized(const std::vector<double>& x, double scale, Fp8Format format);

}  // namespace trireme::kernels::oracle
