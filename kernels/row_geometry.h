#pragma once
// How kernels that reduce along rows divide a row among threads: a few packs per thread, and several rows per block if
// a row needs only one warp, so that rows do not wait for each other.

#include "kernels/launch.h"

namespace trireme::kernels {

/// Largest number of columns of the row kernels.
constexpr int kMaxColumns = 16384;

struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block: several if a row has one warp, otherwise one
};

/// Geometry for rows of `packs` packs with at most packs_of_thread packs per thread.
inline RowGeometry row_geometry(int64_t packs, int packs_of_thread) {
  const int threads = static_cast<int>(ceil_div(ceil_div(packs, packs_of_thread), 32) * 32);
  return {threads, threads == 32 ? 8 : 1};
}

/// Whether all threads of such a row have the same number of packs, packs_of_thread.
inline bool whole_rows(int64_t packs, int packs_of_thread) { return packs % (32 * packs_of_thread) == 0; }

/// Launches a kernel with one block per row, or per several short rows: while some blocks of a multiprocessor wait for
/// their row, others write. On an H200 this is closer to the memory bandwidth than any persistent grid (RMS norm of
/// 32768 x 4096: 4.05 TB/s against 3.5 with rows prefetched by cp.async and 3.7 by bulk copies), but it does not allow
/// sums over rows.
template <class Kernel, class Arguments>
cudaError_t launch_each_row(Kernel kernel, const Arguments& arguments, int64_t rows, const RowGeometry& g,
                            cudaStream_t stream) {
  kernel<<<static_cast<unsigned>(ceil_div(rows, g.rows)),
           dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), 0, stream>>>(arguments);
  return cudaGetLastError();
}

/// Number of blocks of a persistent grid: as many as are resident at once, at most `per_sm` per multiprocessor, not
/// more than there is work for.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, size_t shared, int per_sm, int64_t work) {
  int fit = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, block_threads, shared) != cudaSuccess || fit < 1)
    fit = 1;
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * (fit < per_sm ? fit : per_sm);
  return work < blocks ? work : blocks;
}

}  // namespace trireme::kernels
