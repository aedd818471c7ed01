#pragma once
// Conversion of matrices to E4M3, with one read of the input.
//
//   quantize_rows    current scaling: inverse[r] = max|x_r| / 448 (1 for a row of zeros),
//                    data = saturate(x_r / inverse[r])
//   quantize_values  a scale known beforehand: data = saturate(x * *scale)
//   amax             *amax raised to max|x|
//   transpose_bytes  out[c, r] = in[r, c]
//
// x [rows, columns] of one element type; data [rows, columns] bytes; all contiguous, on the device. Codes are rounded
// to nearest even; a value is code * inverse[r] or code / *scale. A row that contains NaN or infinity gives NaN codes
// (quantize_rows). With a scale known beforehand infinities saturate and NaN stays NaN. Any size and alignment; fast
// with 16-byte aligned rows of whole 16-byte packs: quantize_rows up to 65,536 columns (fp32: 32,768), transpose_bytes
// with rows and columns multiples of 16. Deterministic. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// inverse: fp32 [rows]. For groups of columns with a scale each, pass rows * groups and columns / groups.
cudaError_t quantize_rows(const void* x, uint8_t* data, float* inverse, int64_t rows, int64_t columns, Element element,
                          cudaStream_t stream);

/// `scale`: device scalar.
cudaError_t quantize_values(const void* x, uint8_t* data, const float* scale, int64_t count, Element element,
                            cudaStream_t stream);

/// *amax = max(*amax, max|x|) over `count` elements; NaN counts as larger than every number.
cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream);

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream);

}  // namespace trireme::kernels
