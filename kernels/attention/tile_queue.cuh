#pragma once
// Work items of a persistent kernel: tiles times heads, handed out in order by a counter.

#include "kernels/attention/attention.h"

namespace trireme::kernels {

/// The forward kernel's. Heads are taken in sections whose keys and values fit the L2 cache together; inside a section
/// all heads of one tile follow each other, and tiles come longest first. A block's first item is the one of its
/// number, the counter hands out the rest: no tile waits for another one.
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

/// The backward kernel's. A tile may wait for the sums of tiles with smaller item numbers. So that they are always
/// under way, the counter hands out every item, a block's first one too: a block that is not on the device (another
/// kernel may hold multiprocessors) owns none, and of the items that are not done the one with the smallest number is
/// the next of a block that runs. Whatever the number of resident blocks, that one waits for nobody.
///
/// Key tiles lie by lists of sequences of similar lengths, the longest first. Work goes by
/// sections of about as many heads of a list as occupy all blocks; those of one list are one or an even number. Under a
/// causal mask every other section meets its query rows from the last one down, and the blocks that come free, tile by
/// tile, take the next section's: all blocks then work on the same rows at the same time, those of two sections, and
/// what they read and add to stays in the L2 cache; the last section's blocks are done at the same time. Tiles of short
/// sequences are taken when blocks are free, which is about the same time for all of one, so they all go down.
struct SectionQueue {
  const AttentionTile* tiles;
  int32_t* counters;              // next item; blocks that are done
  int tile_count, heads, blocks;  // blocks: of the grid where there is so much work; sets the sections' size only

  __host__ __device__ int items() const { return tile_count * heads; }
  __host__ __device__ static int least(int a, int b) { return a < b ? a : b; }

  /// True: from the last row down.
  __host__ __device__ bool decode(int item, int& tile, int& head) const {
    const AttentionTile in = tiles[item / heads];
    const bool together = in.list == AttentionTile::kShortSequences;
    const int count = in.list_count, items = count * heads;
    // The even number nearest to what would fill the blocks.
    const int sections = together || 4 * items < 5 * blocks ? 1 : least((items + blocks) / (2 * blocks) * 2, heads);
    const int full = (heads + sections - 1) / sections;
    const int local = item - in.list_begin * heads, section = local / (count * full),
              rest = local - section * count * full;
    const int here = least(full, heads - section * full);
    tile = in.list_begin + rest / here;
    head = section * full + rest % here;
    return together || (section + in.list) % 2 == 0;
  }
  /// Nothing but an item's number from items() on tells that there are no more. On the host for tests.
  __host__ __device__ int next() const {
#ifdef __CUDA_ARCH__
    return atomicAdd(counters, 1);
#else
    return counters[0]++;
#endif
  }
#ifdef __CUDACC__
  __device__ void leave() const { TileQueue{tiles, counters, 0, 0, 0}.leave(); }
#endif
};

}  // namespace trireme::kernels
