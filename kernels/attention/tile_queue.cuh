#pragma once
// Work items of a persistent kernel, tiles times heads. A counter in global memory hands them out in order.

#include "kernels/attention/attention.h"

namespace trireme::kernels {

/// Which blocks a window leaves of the triangle under a causal mask; row i sees keys i - tokens + 1 … i. Rows and keys
/// count from the start of a sequence.
struct Window {
  int tokens;

  /// Forward: the first block of keys that `row` sees.
  __host__ __device__ constexpr int bottom(int row, int block_keys) const {
    return row < tokens ? 0 : (row - tokens + 1) / block_keys;
  }
  /// The last block of keys of which `row` does not see all keys before it; -1: there is none.
  __host__ __device__ constexpr int edge(int row, int block_keys) const {
    return row < tokens ? -1 : (row - tokens) / block_keys;
  }
  /// Backward: the number of blocks of rows up to the last that sees a key of the tile from key `first` on.
  __host__ __device__ constexpr int row_blocks(int first, int tile_keys, int block_rows) const {
    return (first + tile_keys + tokens - 2) / block_rows + 1;
  }
  /// The first tile with a key that a row of the block sees.
  __host__ __device__ constexpr int first_tile(int block, int tile_keys, int block_rows) const {
    const int row = block * block_rows;
    return row < tokens ? 0 : (row - tokens + 1) / tile_keys;
  }
};

/// The forward kernel's queue. Heads are processed in sections whose keys and values fit the L2 cache together. In a
/// section all heads of one tile are consecutive, and tiles come longest first. A block's first item is its block
/// index; the counter hands out the others, because no tile waits for another one.
struct TileQueue {
  const AttentionTile* tiles;
  int32_t* counters;  // next item beyond the first gridDim.x; number of blocks that are done
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
  /// Every block calls this once after its last next(); the last one resets the counters.
  __device__ void leave() const {
    __threadfence();
    if (atomicAdd(counters + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      atomicExch(counters, 0);
      atomicExch(counters + 1, 0);
    }
  }
#endif
};

/// The backward kernel's queue. A tile may wait for the sums of tiles with smaller item numbers. To guarantee progress
/// the counter hands out every item, a block's first one too: a block that is not resident (another kernel may occupy
/// multiprocessors) then owns no item, so the unfinished item with the smallest number always belongs to a block that
/// runs, and that item waits for no other.
///
/// Key tiles are grouped in lists of sequences of similar length, longest first. The work of a list is divided into
/// sections of about as many heads as occupy all blocks; a list has one section or an even number of them. Under a
/// causal mask every other section visits its query rows last row first. Blocks that become free take tiles of the next
/// section, so all blocks work on the same rows, those of two sections, at the same time: what they read and add to
/// stays in the L2 cache, and the blocks of the last section finish at the same time. Tiles of a short sequence are
/// taken at about the same time, so all of them visit rows last row first.
///
/// kStaggered, for a causal mask and sums in a fixed order: tiles that start together must not need the same rows at
/// the same time. A section that visits rows first row first hands out its tiles shortest first, and a row's sums are
/// added from its last key tile to its first: each tile begins at its own diagonal, and tile t reaches a row when tile
/// t + 1 has left it two steps before. The blocks then become free two steps apart, the one with the shortest tile
/// first, and take the tiles of the next section longest first, which visit rows last row first and add from the first
/// key tile to the last: again each tile follows the one before it at a distance of two steps. Such pairs of sections
/// also keep all blocks busy to their end. The first section of a call is one that visits rows first row first.
struct SectionQueue {
  const AttentionTile* tiles;
  int32_t* counters;              // next item; number of blocks that are done
  int tile_count, heads, blocks;  // blocks: the grid size if there is enough work; only sets the size of sections

  __host__ __device__ int items() const { return tile_count * heads; }
  __host__ __device__ static int least(int a, int b) { return a < b ? a : b; }

  /// Item to tile and head. True: query rows are visited last row first.
  template <bool kStaggered = false>
  __host__ __device__ bool decode(int item, int& tile, int& head) const {
    const AttentionTile in = tiles[item / heads];
    const bool together = in.list == AttentionTile::kShortSequences;
    const int count = in.list_count, items = count * heads;
    // The even number of sections closest to filling the blocks.
    const int sections = together || 4 * items < 5 * blocks ? 1 : least((items + blocks) / (2 * blocks) * 2, heads);
    const int full = (heads + sections - 1) / sections;
    const int local = item - in.list_begin * heads, section = local / (count * full),
              rest = local - section * count * full;
    const int here = least(full, heads - section * full);
    const bool down = together || (section + in.list) % 2 == (kStaggered ? 1 : 0);
    tile = in.list_begin + (kStaggered && !down ? count - 1 - rest / here : rest / here);
    head = section * full + rest % here;
    return down;
  }
  /// Returns items() or more if there is no more work. Also compiled for the host, for tests.
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
