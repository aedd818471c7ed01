#pragma once
// out[i] = to(out type, x[i] * *factor), the product in fp32. factor: fp32 device scalar. Any count
// and alignment; out may be x when the types are equal. Deterministic, allocates nothing, synchronises nothing.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

cudaError_t scale(const void* x, Element x_element, const float* factor, void* out, Element out_element, int64_t count,
                  cudaStream_t stream);

}  // namespace trireme::kernels
