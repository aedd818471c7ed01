#pragma once
// Multiplication by fp32 factors in device memory, computed in fp32 and rounded once. Any size and alignment; out may
// be x if the types are equal. Deterministic, no allocation, no synchronisation.
//
//   scale        out[i] = to(out type, (adds ? out[i] : 0) + x[i] * *factor)
//   scale_rows   out[r, c] = to(T, x[r, c] * factors[r]);  x and out [rows, columns] of one element type T
//   scale_columns  out[r, c] = to(T, x[r, c] * factors[c] + bias[c] + addend[r, c]);  bias, addend: T, or null

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

cudaError_t scale(const void* x, Element x_element, const float* factor, void* out, Element out_element, int64_t count,
                  bool adds, cudaStream_t stream);
cudaError_t scale_rows(const void* x, const float* factors, void* out, int64_t rows, int64_t columns, Element element,
                       cudaStream_t stream);
cudaError_t scale_columns(const void* x, const float* factors, const void* bias, const void* addend, void* out,
                          int64_t rows, int64_t columns, Element element, cudaStream_t stream);

}  // namespace trireme::kernels
