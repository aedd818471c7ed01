#pragma once
// The last step of kernels whose threads each hold column sums over the rows they processed: adds the rows of a block
// in a fixed order and writes one partial row per block for column_sums().

#include "kernels/launch.h"

#include <cstdint>

namespace trireme::kernels {

/// Shared memory that leave_sums() needs, in bytes.
inline size_t block_sums_bytes(int rows_of_block, int64_t columns, int vectors) {
  return rows_of_block > 1 ? static_cast<size_t>(rows_of_block * columns * vectors) * sizeof(float) : 0;
}

/// sums[v][p][i] belongs to column first(p) + i of vector v, for packs p with holds(p). blockDim = (threads of a row,
/// rows of a block). All threads of the block call it; the shared memory must no longer be in use. row [kVectors,
/// columns]: the block's row of the workspace. Shared memory and row are 16-byte aligned, kWidth and first(p) multiples
/// of four.
template <int kVectors, int kPacks, int kWidth, class First, class Holds>
__device__ inline void leave_sums(const float (&sums)[kVectors][kPacks][kWidth], const First& first, const Holds& holds,
                                  int columns, float* shared, float* row) {
  const int rows = static_cast<int>(blockDim.y), length = kVectors * columns;
  float* to = rows == 1 ? row : shared + static_cast<int>(threadIdx.y) * length;
  allow_next_kernel();
  __syncthreads();
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!holds(p)) continue;
#pragma unroll
      for (int i = 0; i < kWidth; i += 4)
        *reinterpret_cast<float4*>(to + v * columns + first(p) + i) =
            make_float4(sums[v][p][i], sums[v][p][i + 1], sums[v][p][i + 2], sums[v][p][i + 3]);
    }
  if (rows == 1) return;
  __syncthreads();
  // Not needed for ordering; without it racecheck misses a barrier after loops whose groups meet at numbered barriers.
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); c < length;
       c += static_cast<int>(blockDim.x * blockDim.y)) {
    float sum = 0.0f;
    for (int y = 0; y < rows; ++y) sum += shared[y * length + c];
    row[c] = sum;
  }
}

}  // namespace trireme::kernels
