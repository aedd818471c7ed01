#pragma once
// Dequantisation of NF4 matrices with double quantisation, as bitsandbytes stores them:
//
//   absmax[b] = fp32(map[code8[b]] * nested[b / 256]) + offset       b = i / 64
//   out[i]    = round(fp32(book[code4[i]] * absmax[b]))
//
// Value 2 j is the high half of codes[j], value 2 j + 1 the low half. Products and the sum are rounded to fp32 one by
// one, so the bits are those of any implementation in fp32. Deterministic. No allocation, no synchronisation.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// `codes` aligned to 4 bytes, `out` to 16. A count that is no multiple of 8 is cudaErrorInvalidValue.
struct Nf4Dequantize {
  const uint8_t* codes = nullptr;   // [ceil(count / 2)]
  const uint8_t* absmax = nullptr;  // [ceil(count / 64)]
  const float* nested = nullptr;    // [ceil(count / 64 / 256)]
  const float* offset = nullptr;    // device scalar
  const float* book = nullptr;      // [16]
  const float* map = nullptr;       // [256]
  void* out = nullptr;              // [count]
  int64_t count = 0;
  Element element = Element::kBF16;
};
cudaError_t nf4_dequantize(const Nf4Dequantize& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
