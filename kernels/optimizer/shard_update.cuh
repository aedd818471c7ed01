#pragma once
// Iteration of a block of threads over its chunk of a flat shard.

#include "kernels/device.cuh"
#include "kernels/optimizer/shard_chunks.h"

namespace trireme::kernels {

constexpr int kShardThreads = 256, kShardWidth = 4;

template <class T, int kWidth>
__device__ inline void load_group(const T* from, float (&out)[kWidth]) {
  to_floats(*reinterpret_cast<const Vec<T, kWidth>*>(from), out);
}

/// Calls one(element, width) for every element of the chunk: for four adjacent elements at a time (width a
/// std::integral_constant 4) if `aligned` says that all arrays start at 16-byte boundaries, and for single elements at
/// the ends or otherwise.
template <class F>
__device__ inline void for_chunk(const ShardChunk& chunk, bool aligned, const F& one) {
  const int64_t begin = chunk.begin, end = begin + chunk.count;
  if (!aligned) {
    for (int64_t e = begin + threadIdx.x; e < end; e += kShardThreads) one(e, std::integral_constant<int, 1>{});
    return;
  }
  const int64_t inner = (begin + kShardWidth - 1) / kShardWidth * kShardWidth, outer = end / kShardWidth * kShardWidth;
  if (inner >= outer) {  // contains no aligned group of four
    for (int64_t e = begin + threadIdx.x; e < end; e += kShardThreads) one(e, std::integral_constant<int, 1>{});
    return;
  }
#pragma unroll 2
  for (int64_t e = inner + threadIdx.x * kShardWidth; e < outer; e += kShardThreads * kShardWidth)
    one(e, std::integral_constant<int, kShardWidth>{});
  const int64_t e = threadIdx.x < kShardWidth ? begin + threadIdx.x : outer + threadIdx.x - kShardWidth;
  if (threadIdx.x < kShardWidth ? e < inner : threadIdx.x < 2 * kShardWidth && e < end)
    one(e, std::integral_constant<int, 1>{});
}

}  // namespace trireme::kernels
