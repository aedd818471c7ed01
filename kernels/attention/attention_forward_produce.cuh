#pragma once
// The producers of the forward kernel, each one thread: query rows and results; tile descriptions; keys and values.

#include "kernels/attention/attention_forward_parts.cuh"

namespace trireme::kernels::forward {

/// Which 64 rows of a tile a warpgroup takes. The assignment rotates from tile to tile, because the last rows of short
/// sequences are often missing; warpgroups may be one tile apart.
template <class C>
__device__ inline int unit_of(uint32_t group, uint32_t round) {
  return static_cast<int>((group + round) % C::kConsumers);
}
template <class C>
__device__ inline uint32_t unit_at(uint32_t shared, uint32_t group, uint32_t round) {
  return shared + C::kQ + (round % C::kSlots * C::kConsumers + group) * C::kQBytes;
}

/// Thread that loads the queries of warpgroups mover, mover + kMovers, … and stores their results. With it a warpgroup
/// waits neither for the rows of other warpgroups nor for the copy engine.
template <class C>
__device__ inline void move_rows(const Parameters& p, uint32_t shared, const TileInfo* infos,
                                 const Barriers<C>& barriers, uint32_t mover) {
  using namespace hopper;
  constexpr int kColumns = C::kDim / 64;
  const int shift = C::kDropout ? 0 : p.pack_shift;
  const auto first_of = [&](const TileInfo& info, uint32_t group, uint32_t round) {
    return info.first + (64 * unit_of<C>(group, round) >> shift);
  };
  const auto take = [&](uint32_t group, uint32_t round) {
    barrier_wait(barriers.left(round % C::kSlots, group), (round / C::kSlots) & 1);
    const TileInfo& info = infos[round % C::kInfoSlots];
    const int first = first_of(info, group, round), end = info.end, head = info.head;
    const uint32_t from = unit_at<C>(shared, group, round);
    if (first + (64 >> shift) <= end) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) store_box(&p.o, 64 * c, head, first, from + c * (64 * 128));
    } else {
      // Warps with rows beyond the sequence have written their rows themselves.
#pragma unroll 1
      for (int w = 0; w < 4 && first + ((16 * w + 15) >> shift) < end; ++w)
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          store_box(&p.o_rows, 64 * c, head, first + (16 * w >> shift), from + c * (64 * 128) + w * (16 * 128));
    }
    store_commit();
  };
  const auto bring = [&](uint32_t group, uint32_t round) {
    const uint32_t barrier = barriers.q_full(round % C::kSlots, group), to = unit_at<C>(shared, group, round);
    const TileInfo& info = infos[round % C::kInfoSlots];
    const int first = first_of(info, group, round), head = info.head;
    if (head < 0 || first >= info.end) {
      barrier_arrive(barrier);
      return;
    }
    barrier_expect(barrier, 64 * C::kDim * C::kOperandBytes);
    if constexpr (C::kCodes)
      load_box(to, &p.q, 0, head, first + info.padding, barrier);
    else
      load_rows<C::kDim, 64>(to, &p.q, head, first, barrier);
  };
  bool more = true;
#pragma unroll 1
  for (uint32_t round = 0, rest = C::kSlots; rest > 0; ++round) {
    if (round >= C::kSlots) {
#pragma unroll 1
      for (uint32_t group = mover; group < C::kConsumers; group += C::kMovers) take(group, round - C::kSlots);
      barrier_arrive(barriers.info_empty((round - C::kSlots) % C::kInfoSlots));
      bulk_read<0>();
    }
    if (more) {
      barrier_wait(barriers.info_full(round % C::kInfoSlots), (round / C::kInfoSlots) & 1);
      more = infos[round % C::kInfoSlots].head >= 0;
#pragma unroll 1
      for (uint32_t group = mover; group < C::kConsumers; group += C::kMovers) bring(group, round);
    }
    if (!more) --rest;
  }
  bulk_done();
}

/// Thread that hands out tiles. It is separate from the thread that loads keys, because its two dependent reads of
/// global memory would delay them.
template <class C>
__device__ inline void schedule(const Parameters& p, TileInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  const int shift = C::kDropout ? 0 : p.pack_shift, tile_tokens = C::kRows >> shift;
  int item = static_cast<int>(blockIdx.x);
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round % C::kInfoSlots;
    TileInfo info{};
    barrier_wait(barriers.info_empty(slot), ((round / C::kInfoSlots) & 1) ^ 1);
    if (round > 0) {
      // The next tile is requested only when the previous one has begun: a tile that a block holds but has not begun
      // delays the end of the kernel.
      barrier_wait(barriers.begun(), (round - 1) & 1);
      item = p.queue.next();
    }
    for (;; item = p.queue.next()) {
      info.head = -1;
      if (item >= p.queue.items()) break;
      int tile_index, head;
      p.queue.decode(item, tile_index, head);
      const AttentionTile tile = p.queue.tiles[tile_index];
      // The heads that share a tile of the list divide its tokens: each item covers a part of the tokens for all of
      // those heads.
      const int part = head & ((1 << shift) - 1), first = tile.first + ((1 << shift) - 1 - part) * tile_tokens;
      if (first >= tile.end) continue;
      const int last = C::kCausal ? min(tile.end, first + tile_tokens) : tile.end;
      const int bottom = C::kWindow ? Window{p.window}.bottom(first - tile.begin, C::kKeys) : 0;
      info = {first,
              tile.begin,
              tile.end,
              head - part,
              (last - tile.begin + C::kKeys - 1) / C::kKeys,
              bottom,
              tile.padded - tile.begin,
              {}};
      if constexpr (C::kDropout)
        info.draws = AttentionDraws::of(p.sample_ids[tile.sequence], p.t0, p.t1, head, p.head_word);
      break;
    }
    infos[slot] = info;
    barrier_arrive(barriers.info_full(slot));
    if (info.head < 0) break;
  }
  p.queue.leave();
}

/// Thread that loads keys and values.
template <class C>
__device__ inline void produce(const Parameters& p, uint32_t shared, const TileInfo* infos,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  uint32_t block = 0;
  const auto bring = [&](const CUtensorMap* map, uint32_t to, int head, int token, uint32_t full, bool values) {
    barrier_expect(full, C::kKBytes);
    if constexpr (!C::kCodes)
      load_rows<C::kDim, C::kKeys>(to, map, head, token, full);
    else if (values)
      load_box(to, map, token, 0, head, full);
    else
      load_box(to, map, 0, head, token, full);
  };
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round % C::kInfoSlots;
    barrier_wait(barriers.info_full(slot), (round / C::kInfoSlots) & 1);
    const int head = infos[slot].head, begin = infos[slot].begin + (C::kCodes ? infos[slot].padding : 0),
              blocks = infos[slot].blocks, bottom = C::kWindow ? infos[slot].bottom : 0;
    if (head < 0) break;
    barrier_arrive(barriers.info_empty(slot));
    barrier_arrive(barriers.begun());
    const int kv_head = head / p.group;
#pragma unroll 1
    for (int n = blocks - 1; n >= bottom; --n, ++block) {
      const uint32_t stage = block % C::kStages, parity = (block / C::kStages) & 1;
      const int token = begin + n * C::kKeys;
      barrier_wait(barriers.k_empty(stage), parity ^ 1);
      bring(&p.k, shared + C::kK + stage * C::kKBytes, kv_head, token, barriers.k_full(stage), false);
      barrier_wait(barriers.v_empty(stage), parity ^ 1);
      bring(&p.v, shared + C::kV + stage * C::kKBytes, kv_head, token, barriers.v_full(stage), true);
    }
  }
}

}  // namespace trireme::kernels::forward
