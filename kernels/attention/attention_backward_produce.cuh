#pragma once
// What the producer warpgroup of the backward kernel does: four threads, each of which alone fits the few registers that the consumers leave.

#include "kernels/attention/attention_backward_parts.cuh"

namespace trireme::kernels::backward {

/// Hands out work; keys and values.
template <class C>
__device__ inline void produce_keys(const Parameters& p, uint32_t shared, ItemInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  uint32_t round = 0;
#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < p.queue.items();) {
    int tile_index, head;
    const bool down = p.queue.decode<C::kOnChip>(item, tile_index, head) && C::kCausal;
    const AttentionTile tile = p.queue.tiles[tile_index];
    const int group_rotation = (tile.first - tile.begin) / C::kKeys % p.group;
    const int last = C::kOnChip ? tile.end : tile.first + 1;
#pragma unroll 1
    for (int first = tile.first; first < last; first += C::kKeys, ++round) {
      const uint32_t slot = round & 1, info = round % C::kInfoSlots;
      infos[info] = {first,
                     tile.begin,
                     tile.end,
                     tile.padded,
                     head,
                     C::kCausal ? (first - tile.begin) / C::kRows : 0,
                     (tile.end - tile.begin + C::kRows - 1) / C::kRows,
                     tile.sequence,
                     down,
                     group_rotation,
                     {}};
      barrier_arrive(barriers.info_full(info));
      barrier_wait(barriers.k_empty(slot), ((round >> 1) & 1) ^ 1);
      barrier_expect(barriers.k_full(slot), C::kKBytes);
#pragma unroll
      for (int c = 0; c < C::kDim / 64; ++c)
        load_box(shared + C::kK + slot * C::kKBytes + c * (C::kKeys * 128), &p.k, 64 * c, head, first, barriers.k_full(slot));
      barrier_wait(barriers.v_empty(), (round & 1) ^ 1);
      barrier_expect(barriers.v_full(), C::kKBytes);
#pragma unroll
      for (int c = 0; c < C::kDim / 64; ++c)
        load_box(shared + C::kV + c * (C::kKeys * 128), &p.v, 64 * c, head, first, barriers.v_full());
    }
    // Late: the next item is for who is done first.
    barrier_wait(barriers.ending(), (round & 1) ^ 1);
    item = p.queue.next();
  }
  infos[round % C::kInfoSlots].head = -1;
  barrier_arrive(barriers.info_full(round % C::kInfoSlots));
  p.queue.leave();
}

/// Query rows with their log-sum-exp, or output gradients with their delta.
template <class C, bool kGradients>
__device__ inline void produce_rows(const Parameters& p, uint32_t shared, const ItemInfo* infos, StepInfo* steps,
                                    const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr uint32_t kStages = kGradients ? C::kDoStages : C::kStages;
  const CUtensorMap* map = kGradients ? &p.d_o : &p.q;
  const float* stats = kGradients ? p.delta : p.lse2;
  uint32_t step = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    barrier_wait(barriers.info_full(round % C::kInfoSlots), (round / C::kInfoSlots) & 1);
    const ItemInfo& info = infos[round % C::kInfoSlots];
    if (info.head < 0) break;
    const int begin = info.begin;
    const float* stat = stats + info.padded;
    Walk walk = Walk::of(info, p.group);
    const int ending = min(walk.left, C::kEnding);
#pragma unroll 1
    for (; walk.left > 0; walk.next(p.group), ++step) {
      if constexpr (!kGradients)
        if (walk.left == ending) barrier_arrive(barriers.ending());
      const uint32_t stage = step % kStages;
      const uint32_t full = kGradients ? barriers.do_full(stage) : barriers.q_full(stage);
      barrier_wait(kGradients ? barriers.do_empty(stage) : barriers.q_empty(stage), ((step / kStages) & 1) ^ 1);
      if constexpr (!kGradients) steps[stage] = {walk.block, walk.head, walk.left == 1, 0};
      barrier_expect(full, C::kQBytes + C::kStatBytes);
#pragma unroll
      for (int c = 0; c < C::kDim / 64; ++c)
        load_box(shared + (kGradients ? C::kDo : C::kQ) + stage * C::kQBytes + c * (C::kRows * 128), map, 64 * c, walk.head,
                 begin + walk.block * C::kRows, full);
      load_bytes(shared + (kGradients ? C::kDelta : C::kLse) + stage * C::kStatBytes,
                 stat + walk.head * p.padded_rows + walk.block * C::kRows, C::kStatBytes, full);
      // With one stage the next load begins late: let it find its rows in the L2 cache. (Heads of 64, one of a group.)
      if constexpr (kStages == 1)
        if (walk.left > 1) prefetch_box(map, 0, walk.head, begin + (walk.block + walk.stride) * C::kRows);
    }
  }
}

/// Inside one statement, as barrier_wait.
__device__ inline void wait_for_turn(const int32_t* count, int32_t turn) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .s32 seen;\n"
      "AGAIN:\n"
      "ld.acquire.gpu.global.s32 seen, [%0];\n"
      "setp.eq.s32 p, seen, %1;\n"
      "@p bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n}\n" ::"l"(count),
      "r"(turn)
      : "memory");
}

/// Adds what the consumers leave of dQ in shared memory to the sums in global memory.
template <class C>
__device__ inline void produce_sums(const Parameters& p, uint32_t shared, const ItemInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr int kPart = 4096;  // of a warpgroup
  uint32_t step = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    barrier_wait(barriers.info_full(round % C::kInfoSlots), (round / C::kInfoSlots) & 1);
    const ItemInfo& info = infos[round % C::kInfoSlots];
    if (info.head < 0) break;
    const int padded = info.padded / C::kRows;
    [[maybe_unused]] const int turn = (info.first - info.begin) / C::kKeys;
    Walk walk = Walk::of(info, p.group);
#pragma unroll 1
    for (; walk.left > 0; walk.next(p.group), ++step) {
      const int64_t at = walk.head * (p.padded_rows / C::kRows) + padded + walk.block;
      // In key order a tile waits only for tiles that were handed out before it, so someone always moves on.
      if constexpr (C::kSums == Sums::kKeyOrder) wait_for_turn(p.turns + at, turn);
#pragma unroll
      for (uint32_t g = 0; g < 2; ++g) {
        barrier_wait(barriers.sums_full(g), step & 1);
        add_bytes(p.dq_sums + at * (2 * kPart) + g * kPart, shared + C::kDq + g * (kPart * 4), kPart * 4);
      }
      if constexpr (C::kSums == Sums::kKeyOrder) {
        add_bytes_done();
        asm volatile("fence.proxy.async;" ::: "memory");
        __threadfence();
        atomicAdd(p.turns + at, 1);
      }
      add_bytes_read<1>();
      barrier_arrive(barriers.sums_empty(0));
      add_bytes_read<0>();
      barrier_arrive(barriers.sums_empty(1));
    }
  }
  // Shared memory stays until what was asked for has left it.
  add_bytes_done();
}

}  // namespace trireme::kernels::backward
