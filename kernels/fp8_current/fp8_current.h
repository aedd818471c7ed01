#pragma once
// The scale of a matrix from its own amax (current scaling), for kernels that take a scale known beforehand:
//
//   *amax = max|x|,  *inverse = *amax / max(format), at least the smallest normal number, 1 for zeros,
//   *scale = 1 / *inverse
//
// A NaN or an infinity among the values makes amax and inverse NaN or infinite, so that products with the matrix are
// NaN. x: `count` elements, contiguous, any alignment. Deterministic. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct CurrentScale {
  const void* x = nullptr;
  int64_t count = 0;
  Element element = Element::kBF16;
  Fp8Format format = Fp8Format::kE4M3;
  float* amax = nullptr;  // device scalars, overwritten
  float* scale = nullptr;
  float* inverse = nullptr;
};
cudaError_t current_scale(const CurrentScale& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
