#pragma once
// Conversion of matrices to FP8, with one read of the input.
//
//   quantize_rows    current scaling: inverse[r] = max|x_r| / max(format) (1 for a row of zeros),
//                    data = saturate(x_r / inverse[r])
//   quantize_tensor  delayed scaling: data = saturate(x * *scale), transposed = its transpose,
//                    *amax raised to max|x|
//   amax             *amax raised to max|x|
//   transpose_bytes  out[c, r] = in[r, c]
//   update_scales    scales of several tensors from the history of their maxima (Transformer
//                    Engine's delayed scaling recipe)
//
// x [rows, columns] of one element type; data [rows, columns] and transposed [columns, rows] bytes; all contiguous, on
// the device. Codes are rounded to nearest even; a value is code * inverse[r] or code / *scale. A row that contains NaN
// or infinity gives NaN codes (quantize_rows). With a scale known beforehand infinities saturate and NaN stays NaN;
// both show in *amax. Any size and alignment; fast with 16-byte aligned rows of whole 16-byte packs: quantize_rows up
// to 65,536 columns (fp32: 32,768), the transposing functions with rows and columns multiples of 16. Deterministic. No
// allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// inverse: fp32 [rows]. For groups of columns with a scale each, pass rows * groups and columns / groups.
cudaError_t quantize_rows(const void* x, uint8_t* data, float* inverse, int64_t rows, int64_t columns, Element element,
                          Fp8Format format, cudaStream_t stream);

struct QuantizeTensor {
  const void* x = nullptr;
  uint8_t* data = nullptr;        // null: not written
  uint8_t* transposed = nullptr;  // null: not written
  const float* scale = nullptr;   // device scalar
  float* amax = nullptr;          // device scalar or null; keeps its value if that is larger
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
  Fp8Format format = Fp8Format::kE4M3;
};
cudaError_t quantize_tensor(const QuantizeTensor& arguments, cudaStream_t stream);

/// *amax = max(*amax, max|x|) over `count` elements; NaN counts as larger than every number.
cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream);

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream);

enum class AmaxChoice { kMax, kMostRecent };

struct ScaleUpdate {
  // [length, tensors]: row 0 was raised by quantize_tensor since the last update, row 1 is the oldest
  float* history = nullptr;
  float* scale = nullptr;    // [tensors]; unchanged where the chosen amax is 0, infinite or NaN
  float* inverse = nullptr;  // [tensors], 1 / scale; null: not written
  int length = 1, tensors = 0;
  AmaxChoice choice = AmaxChoice::kMax;
  int margin = 0;  // scale = max(format) / amax / 2^margin
  Fp8Format format = Fp8Format::kE4M3;
};
/// Computes the scales, then moves every row of the history up by one, row 0 to the last place, and clears row 0.
cudaError_t update_scales(const ScaleUpdate& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
