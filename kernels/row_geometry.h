#pragma once
// How kernels that reduce along rows cut a row over threads: 32 elements per thread in packs of 16 bytes, one warp per row where that
// is enough (several rows per block then), else one block per row.

#include "kernels/launch.h"

namespace trireme::kernels {

/// Longest row of the row kernels, elements per thread, and the threads that the longest row needs.
constexpr int kMaxColumns = 16384, kRowElements = 32, kMaxRowThreads = kMaxColumns / kRowElements;

struct RowGeometry {
  int threads;  // per row, a multiple of 32
  int rows;     // per block
};

/// columns is a multiple of `width` and at most kMaxColumns.
inline RowGeometry row_geometry(int64_t columns, int width, int block_rows) {
  const int64_t needed = ceil_div(columns / width, kRowElements / width);
  const int threads = static_cast<int>(ceil_div(needed, 32) * 32);
  return {threads, threads == 32 ? block_rows : 1};
}

}  // namespace trireme::kernels
