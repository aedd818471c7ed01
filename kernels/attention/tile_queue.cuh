#pragma once
// Work items of a persistent kernel: tiles times heads, handed out in order by a counter. Heads are taken in sections whose keys and values
// fit the L2 cache together; inside a section all heads of one tile follow each other, and tiles come longest first.

#include "kernels/attention/attention.h"

namespace trireme::kernels {

struct TileQueue {
  const AttentionTile* tiles;
  int32_t* counters;  // next item beyond the first gridDim.x; blocks that are done
  int tile_count, heads, section_heads;

  __host__ __device__ int items() const { return tile_count * heads; }

#ifdef __CUDACC__
  __device__ void decode(int item, int& tile, int& head) const {
    const int section_items = tile_count * section_heads;
    const int section = item / section_items, rest = item - section * section_items;
    const int first_head = section * section_heads;
    const int here = min(section_heads, heads - first_head);
    tile = rest / here;
    head = first_head + rest - tile * here;
  }
  __device__ int next() const { return static_cast<int>(gridDim.x) + atomicAdd(counters, 1); }
  /// Once by every block after its last next(): the last one leaves the counters as they were.
  __device__ void leave() const {
    __threadfence();
    if (atomicAdd(counters + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      atomicExch(counters, 0);
      atomicExch(counters + 1, 0);
    }
  }
#endif
};

}  // namespace trireme::kernels
