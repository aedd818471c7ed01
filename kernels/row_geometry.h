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

/// Blocks of a grid that stays: as many as fit at once, at most `per_sm` a multiprocessor, not more
/// than there is work for.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, size_t shared, int per_sm, int64_t work) {
  int fit = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, block_threads, shared) !=
          cudaSuccess ||
      fit < 1)
    fit = 1;
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * (fit < per_sm ? fit : per_sm);
  return work < blocks ? work : blocks;
}

}  // namespace trireme::kernels
