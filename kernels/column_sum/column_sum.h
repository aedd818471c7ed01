#pragma once
// out[c] = (accumulate ? out[c] : 0) + sum over r of partial[r, c], rows added in ascending groups
// of a fixed size: deterministic.
//
// partial fp32 [rows, columns] with row stride `stride` (in floats), out of type `element` (fp32
// sums). Device pointers. Allocates nothing, synchronises nothing. Last step of kernels that leave
// one partial row per block.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element,
                       bool accumulate, cudaStream_t stream);

/// Several vectors whose partial sums lie side by side: partial fp32 [rows, count, columns], count
/// <= kMaxColumnSums; a null out is skipped.
constexpr int kMaxColumnSums = 3;
struct ColumnSums {
  void* out[kMaxColumnSums] = {};
  int count = 0;
};
cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs, Element element,
                        bool accumulate, cudaStream_t stream);

}  // namespace trireme::kernels
