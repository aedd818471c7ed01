#pragma once
// How kernels that reduce along rows cut a row over threads: a few packs for each thread, several
// rows per block where a row needs one warp only, so that rows never wait for each other.

#include "kernels/launch.h"

namespace trireme::kernels {

/// Longest row of the row kernels.
constexpr int kMaxColumns = 16384;

struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block: several when a row has one warp, else one
};

/// A row of `packs` packs, at most packs_of_thread for each thread.
inline RowGeometry row_geometry(int64_t packs, int packs_of_thread) {
  const int threads = static_cast<int>(ceil_div(ceil_div(packs, packs_of_thread), 32) * 32);
  return {threads, threads == 32 ? 8 : 1};
}

/// Whether every thread of such a row has all its packs.
inline bool whole_rows(int64_t packs, int packs_of_thread) { return packs % (32 * packs_of_thread) == 0; }

/// Launches a kernel with one block for each row, or several rows: while some of a multiprocessor's
/// blocks wait for their row, others write. On an H200 this is nearer to the memory's speed than any
/// grid that stays (RMS norm of 32768 x 4096: 4.05 TB/s against 3.5 with rows asked for ahead by
/// cp.async and 3.7 with bulk copies); it has no room for sums over rows.
template <class Kernel, class Arguments>
cudaError_t launch_each_row(Kernel kernel, const Arguments& arguments, int64_t rows, const RowGeometry& g,
                            cudaStream_t stream) {
  kernel<<<static_cast<unsigned>(ceil_div(rows, g.rows)),
           dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), 0, stream>>>(arguments);
  return cudaGetLastError();
}

/// Blocks of a grid that stays: as many as fit at once, at most `per_sm` a multiprocessor, not more
/// than there is work for.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, size_t shared, int per_sm, int64_t work) {
  int fit = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, block_threads, shared) != cudaSuccess || fit < 1)
    fit = 1;
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * (fit < per_sm ? fit : per_sm);
  return work < blocks ? work : blocks;
}

}  // namespace trireme::kernels
