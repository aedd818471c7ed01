#pragma once
// FP8 outputs of kernels: destination and scaling.
//
//   kTensor   q = saturate(v * *scale), with a scale known beforehand (delayed scaling); *amax is raised to max |v| if
//             amax is given
//   kRow      a scale per row: row_inverse[r] = max|v_r| / max(format) (1 for a row of zeros),
//             q = saturate(v / row_inverse[r])
//
// v is the value rounded to the 16-bit type that the kernel would write. The dequantised value is q / *scale or q *
// row_inverse[r].

#include <cstdint>

namespace trireme::kernels {

enum class Fp8Format { kE4M3, kE5M2 };
enum class Fp8Scaling { kTensor, kRow };

struct Fp8Output {
  uint8_t* data = nullptr;  // null: no FP8 output
  Fp8Format format = Fp8Format::kE4M3;
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  const float* scale = nullptr;  // kTensor, device scalar
  float* amax = nullptr;         // kTensor, device scalar or null; keeps its value if that is larger
  float* row_inverse = nullptr;  // kRow, [rows]
};

}  // namespace trireme::kernels
