#pragma once
// FP8 in fp64 on the host: formed from the bit layout, not through CUDA's conversions.

#include "kernels/fp8/fp8_output.h"

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

/// NaN for the codes that mean it, infinity for E5M2's.
double fp8_value(uint8_t code, Fp8Format format);
/// The nearest finite code, ties to even; larger magnitudes saturate. NaN becomes the code 0x7f of
/// either format.
uint8_t fp8_code(double value, Fp8Format format);

struct QuantizedRows {
  std::vector<uint8_t> codes;
  std::vector<double> inverse;
};
/// As quantize_rows, the scale and the product rounded to fp32 as documented there.
QuantizedRows quantized_rows(const std::vector<double>& x, int64_t rows, int64_t columns, Fp8Format format);

/// code(x * scale), the product rounded to fp32.
std::vector<uint8_t> quantized(const std::vector<double>& x, double scale, Fp8Format format);

}  // namespace trireme::kernels::oracle
