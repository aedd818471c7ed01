#pragma once
// Of the forward kernel: shared memory, parameters, barriers, and what the producer thread does.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/hopper.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"

namespace trireme::kernels::forward {

/// kSlots tiles of query rows and kStages blocks of keys and values are in shared memory at a time.
template <class T_, int kDim_, int kConsumers_, int kKeys_, int kSlots_, int kStages_, bool kCausal_, bool kDropout_>
struct Config {
  using T = T_;
  static constexpr int kDim = kDim_, kConsumers = kConsumers_, kKeys = kKeys_, kSlots = kSlots_, kStages = kStages_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static_assert(kKeys % 64 == 0, "the 64 rows of a warpgroup must not straddle two key blocks");
  static constexpr int kRows = 64 * kConsumers;
  // A whole warpgroup produces, so that its registers can go to the others.
  static constexpr int kProducers = 128, kThreads = kRows * 2 + kProducers;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = 32;
  // Who takes more than the block was given waits for ever.
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <= kThreads * (65536 / kThreads / 8 * 8));
  static constexpr uint32_t kQBytes = kRows * kDim * 2, kKBytes = kKeys * kDim * 2;
  // Shared memory, in bytes from a multiple of 1,024. Results leave from the slot of their query rows.
  static constexpr uint32_t kQ = 0, kK = kSlots * kQBytes, kV = kK + kStages * kKBytes, kBarriers = kV + kStages * kKBytes,
                            kInfos = kBarriers + (2 * kSlots + 4 * kStages) * 8, kBytes = kInfos + kSlots * 32;
  static_assert(kSlots >= 2 && kBytes <= 227 * 1024);
};

/// At most eight heads share a tile: they are the eight rows of a fragment that differ between threads.
constexpr int kMaxPackShift = 3;

struct Parameters {
  CUtensorMap q, k, v, o_rows;  // the last one in boxes of a warp's 16 rows
  TileQueue queue;
  void* o;
  float* lse;
  int64_t o_token, o_head, tokens;
  int group, pack_shift;  // query heads of a key head; log2 of how many of them share a tile
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
};

/// What the producer tells the consumers about a tile; head -1: no more.
struct alignas(16) TileInfo {
  int32_t first, begin, end, head, blocks, unused;
  AttentionDraws draws;
};

/// Barriers by their addresses.
template <class C>
struct Barriers {
  uint32_t base;
  __device__ uint32_t q_full(uint32_t s) const { return base + 8 * s; }
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (C::kSlots + s); }
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * (2 * C::kSlots + s); }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (2 * C::kSlots + C::kStages + s); }
  __device__ uint32_t v_full(uint32_t s) const { return base + 8 * (2 * C::kSlots + 2 * C::kStages + s); }
  __device__ uint32_t v_empty(uint32_t s) const { return base + 8 * (2 * C::kSlots + 3 * C::kStages + s); }
};

template <class C>
__device__ inline void produce(const Parameters& p, uint32_t shared, TileInfo* infos,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr int kColumns = C::kDim / 64;
  uint32_t block = 0;
  const int shift = C::kDropout ? 0 : p.pack_shift, tile_tokens = C::kRows >> shift;
  // Of the heads that share a tile of the list, each takes a part of its tokens for all of them.
  const auto look_up = [&](int item) {
    TileInfo info{};
    for (;;) {
      info.head = -1;
      if (item >= p.queue.items()) return info;
      int tile_index, head;
      p.queue.decode(item, tile_index, head);
      const AttentionTile tile = p.queue.tiles[tile_index];
      const int part = head & ((1 << shift) - 1), first = tile.first + ((1 << shift) - 1 - part) * tile_tokens;
      const int last = C::kCausal ? min(tile.end, first + tile_tokens) : tile.end;
      info = {first, tile.begin, tile.end, head - part, (last - tile.begin + C::kKeys - 1) / C::kKeys, 0, {}};
      if constexpr (C::kDropout) info.draws = AttentionDraws::of(p.sample_ids[tile.sequence], p.t0, p.t1, head);
      if (first < tile.end) return info;
      item = p.queue.next();
    }
  };
  TileInfo info = look_up(static_cast<int>(blockIdx.x));
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round % C::kSlots;
    barrier_wait(barriers.q_empty(slot), ((round / C::kSlots) & 1) ^ 1);
    infos[slot] = info;
    if (info.head < 0) {
      barrier_arrive(barriers.q_full(slot));
      break;
    }
    barrier_expect(barriers.q_full(slot), C::kQBytes);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      load_box(shared + C::kQ + slot * C::kQBytes + c * (C::kRows * 128), &p.q, 64 * c, info.head,
               info.first, barriers.q_full(slot));
    const int kv_head = info.head / p.group, blocks = info.blocks, begin = info.begin;
    const int item = p.queue.next();
#pragma unroll 1
    for (int n = blocks - 1; n >= 0; --n, ++block) {
      const uint32_t stage = block % C::kStages, parity = (block / C::kStages) & 1;
      const int token = begin + n * C::kKeys;
      barrier_wait(barriers.k_empty(stage), parity ^ 1);
      barrier_expect(barriers.k_full(stage), C::kKBytes);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        load_box(shared + C::kK + stage * C::kKBytes + c * (C::kKeys * 128), &p.k, 64 * c, kv_head,
                 token, barriers.k_full(stage));
      barrier_wait(barriers.v_empty(stage), parity ^ 1);
      barrier_expect(barriers.v_full(stage), C::kKBytes);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        load_box(shared + C::kV + stage * C::kKBytes + c * (C::kKeys * 128), &p.v, 64 * c, kv_head,
                 token, barriers.v_full(stage));
      // Looked up while keys are on their way. Asked for no earlier than with this tile: what a block has asked for and not begun keeps others
      // waiting at the end.
      if (n == blocks - 1) info = look_up(item);
    }
  }
  p.queue.leave();
}

}  // namespace trireme::kernels::forward
