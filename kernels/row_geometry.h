#pragma once
// How kernels that reduce along rows cut a row over threads: up to kPacks packs of kWidth elements per thread, one warp per row where
// that is enough (several rows per block then), else one block per row.

#include "kernels/launch.h"

namespace trireme::kernels {

/// Longest row of the row kernels.
constexpr int64_t kMaxColumns = 16384;

struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block
  bool fits;    // at most max_threads
};

inline RowGeometry row_geometry(int64_t columns, int width, int packs, int max_threads, int block_rows) {
  const int64_t needed = ceil_div(ceil_div(columns, width), packs);
  const int threads = static_cast<int>(ceil_div(needed, 32) * 32);
  return {threads, threads == 32 ? block_rows : 1, threads <= max_threads};
}

}  // namespace trireme::kernels
