#pragma once
// E4M3 codes of queries, keys and values, and their scales.

#include "kernels/fp8/fp8.cuh"

#include <cstdint>

namespace trireme::kernels {

/// The inverse of the power of two by which values of magnitude up to `amax` are multiplied before they become codes:
/// the largest with which they stay within 448. 1 for zeros; NaN if amax is NaN or infinite.
__device__ inline float code_inverse(float amax) {
  const uint32_t bits = __float_as_uint(amax) & 0x7fffffffu;
  if (bits == 0) return 1.0f;
  if (bits >= 0x7f800000u) return __uint_as_float(0x7fffffffu);
  // 448 = 1.75 x 2^8: a larger fraction carries into the exponent.
  return __uint_as_float(max(static_cast<int>((bits + 0x1fffffu) >> 23) - 8, 1) << 23);
}

/// The scales that codes are multiplied by. Rows are those of the padded layout.
struct CodeScales {
  const float* q;     // [rows, q_heads]
  const float* amax;  // [2, kv_heads]: of keys and of values
  int q_heads, group;

  __device__ float of_scores(int row, int head) const {
    const float scale = q[static_cast<int64_t>(row) * q_heads + head] * code_inverse(amax[head / group]);
    return scale < 0x1p-100f ? 0x1p-100f : scale;  // 0 times a hidden score, -infinity, would be NaN
  }
  __device__ float of_values(int head) const { return code_inverse(amax[(q_heads + head) / group]); }
};

}  // namespace trireme::kernels
