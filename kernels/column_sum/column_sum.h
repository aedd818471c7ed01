#pragma once
// out[c] = (accumulate ? out[c] : 0) + sum over r of partial[r, c]. Rows are added in ascending groups of a fixed size:
// deterministic.
//
// partial: fp32 [rows, columns] with row stride `stride` in floats; out: [columns] of type `element`; sums are fp32.
// Device pointers. No allocation, no synchronisation. Used as the last step of kernels that write one partial row per
// block.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element,
                       bool accumulate, cudaStream_t stream);

/// Several vectors with interleaved partial sums: partial fp32 [rows, count, columns], count <= kMaxColumnSums; a null
/// out is skipped.
constexpr int kMaxColumnSums = 3;
struct ColumnSums {
  void* out[kMaxColumnSums] = {};
  int count = 0;
};
cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs, Element element,
                        bool accumulate, cudaStream_t stream);

}  // namespace trireme::kernels
