#pragma once
// The amax of rows with FP8 output that a thread block cluster shares.

#include "kernels/cluster.cuh"
#include "kernels/fp8/fp8.cuh"

namespace trireme::kernels {

/// Number of blocks that share a row of `threads` threads, each with whole warps. Several small blocks on a
/// multiprocessor hide each other's wait for a row's amax (GELU backward with 16,384 columns: 5 blocks of 128 threads
/// instead of 1 of 512).
inline int blocks_of_whole_row(int threads) {
  int parts = 1;
  while (parts < 4 && threads / parts >= 256 && threads / parts % 64 == 0) parts *= 2;
  return parts;
}

/// The largest value of a row that a cluster's blocks share, at most 32 warps in total; v >= 0. It is also a barrier of
/// the block for its shared memory.
__device__ inline float cluster_amax(float v, const TransactionBarrier& barrier, uint32_t parity, float* scratch) {
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32,
            lane = static_cast<int>(threadIdx.x) % 32, parts = static_cast<int>(cluster_size());
  v = warp_amax(v);
  __syncwarp();
  if (threadIdx.x == 0)
    barrier.arm(static_cast<uint32_t>(parts * warps) * sizeof(float));
  else if (lane == 0)
    barrier.arrive();
  if (lane < parts)
    barrier.send(&scratch[static_cast<int>(cluster_rank()) * warps + warp], static_cast<uint32_t>(lane), v);
  barrier.wait(parity);
  return warp_amax(lane < parts * warps ? scratch[lane] : 0.0f);
}

}  // namespace trireme::kernels
