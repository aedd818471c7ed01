#pragma once
// How kernels that reduce along rows cut a row over threads: kElements neighbouring-by-packs elements per thread, several rows per block
// where a row needs few threads.

#include "kernels/launch.h"

namespace trireme::kernels {

/// Longest row of the row kernels.
constexpr int kMaxColumns = 16384;

/// A block's dynamic shared memory ends at 227 KiB; some is left to L1, which keeps the weights.
constexpr size_t kSharedLimit = 200 * 1024;

struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block, at most 8
};

/// columns is a multiple of a pack and at most kMaxColumns.
inline RowGeometry row_geometry(int64_t columns, int elements) {
  const int threads = static_cast<int>(ceil_div(ceil_div(columns, elements), 32) * 32), rows = 256 / threads;
  return {threads, rows < 1 ? 1 : rows};
}

/// Blocks of a grid that stays: as many as fit at once, at most `per_sm` a multiprocessor, not more than there is work for.
template <class Kernel>
int64_t resident_blocks(Kernel kernel, int block_threads, size_t shared, int per_sm, int64_t work) {
  int fit = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, block_threads, shared) != cudaSuccess || fit < 1) fit = 1;
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * (fit < per_sm ? fit : per_sm);
  return work < blocks ? work : blocks;
}

}  // namespace trireme::kernels
