#pragma once
// E4M3 output of a kernel over rows, with a scale per row:
//
//   row_inverse[r] = max|v_r| / 448 (1 for a row of zeros),   q = saturate(v / row_inverse[r])
//
// v is the value rounded to the 16-bit type that the kernel would write. The dequantised value is q * row_inverse[r].

#include <cstdint>

namespace trireme::kernels {

enum class Fp8Format { kE4M3, kE5M2 };

struct Fp8Output {
  uint8_t* data = nullptr;       // null: no FP8 output
  float* row_inverse = nullptr;  // [rows]
};

}  // namespace trireme::kernels
