#pragma once
// The producer warpgroup of the backward kernel. Four of its threads each run one of these functions; one thread a
// function keeps the register use below the producer's limit.

#include "kernels/attention/attention_backward_parts.cuh"
#include "kernels/attention/attention_backward_turns.cuh"
#include "kernels/launch.h"

namespace trireme::kernels::backward {

/// Thread that hands out work, loads keys and values, and relays turns.
template <class C>
__device__ inline void produce_keys(const Parameters& p, uint32_t shared, ItemInfo* infos,
                                    const Barriers<C>& barriers) {
  using namespace hopper;
  uint32_t round = 0, items = 0;
  TurnRelay<C> turns{p, shared, barriers};
#pragma unroll 1
  for (int item = p.queue.next(); item < p.queue.items();) {
    int tile_index, head;
    const bool down = p.queue.template decode<C::kStaggered>(item, tile_index, head) && C::kCausal;
    const AttentionTile tile = p.queue.tiles[tile_index];
    const bool is_short = tile.list == AttentionTile::kShortSequences;
    // The tiles of a short sequence start together at its end and store its rows in turn, so all of them visit the
    // heads in the same order.
    const int group_rotation = is_short ? 0 : (tile.first - tile.begin) / C::kKeys % p.group;
    const int last = C::kOnChip ? tile.end : tile.first + 1;
#pragma unroll 1
    for (int first = tile.first; first < last; first += C::kKeys, ++round) {
      const uint32_t slot = round & 1, info = round % C::kInfoSlots;
      const int first_block = C::kCausal ? (first - tile.begin) / C::kRows : 0;
      // At least two steps: the first step stores dK and dV of the previous tile, and the last step may wait for that
      // tile's slot to be refilled. Rows beyond a sequence contribute zero; statistics and sums have padding for them.
      const int rows = C::kOnChip && !C::kCausal ? tile.rows : tile.end - tile.begin;
      int blocks = max((rows + C::kRows - 1) / C::kRows, first_block + (p.group == 1 ? 2 : 1));
      // At least the two blocks of the tile's own rows.
      if constexpr (C::kWindow)
        blocks = min(blocks, Window{p.window}.row_blocks(first - tile.begin, C::kKeys, C::kRows));
      infos[info] = {first,
                     tile.begin,
                     tile.end,
                     tile.padded,
                     head,
                     first_block,
                     blocks,
                     tile.sequence,
                     down,
                     group_rotation,
                     first + C::kKeys >= last,
                     C::kFinishes && is_short ? min(blocks - first_block, C::kKeys / C::kRows) * p.group : 0};
      barrier_arrive(barriers.info_full(info));
      turns.wait(barriers.k_empty(slot), ((round >> 1) & 1) ^ 1);
      barrier_expect(barriers.k_full(slot), C::kKBytes);
      load_rows<C::kDim, C::kKeys>(shared + C::kK + slot * C::kKBytes, &p.k, head, first, barriers.k_full(slot));
      turns.wait(barriers.v_empty(), (round & 1) ^ 1);
      barrier_expect(barriers.v_full(), C::kKBytes);
      load_rows<C::kDim, C::kKeys>(shared + C::kV, &p.v, head, first, barriers.v_full());
    }
    // Requested late, so that the next item goes to the block that finishes first.
    turns.wait(barriers.ending(), items++ & 1);
    item = p.queue.next();
  }
  infos[round % C::kInfoSlots].head = -1;
  barrier_arrive(barriers.info_full(round % C::kInfoSlots));
  p.queue.leave();
  if constexpr (!C::kOnChip)
    while (turns.relay()) __nanosleep(64);
}

/// Thread that loads query rows with their log-sum-exp, or (kGradients) output gradients with their delta.
template <class C, bool kGradients>
__device__ inline void produce_rows(const Parameters& p, uint32_t shared, const ItemInfo* infos, StepInfo* steps,
                                    const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr uint32_t kStages = kGradients ? C::kDoStages : C::kStages;
  const CUtensorMap* map = kGradients ? &p.d_o : &p.q;
  const float* stats = kGradients ? p.delta : p.lse2;
  uint32_t step = 0;
  await_kernel_before();
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    barrier_wait(barriers.info_full(round % C::kInfoSlots), (round / C::kInfoSlots) & 1);
    const ItemInfo& info = infos[round % C::kInfoSlots];
    if (info.head < 0) break;
    const int begin = info.begin;
    const float* stat = stats + info.padded;
    Walk walk = Walk::of(info, p.group);
    const int ending = info.last_of_item ? min(walk.left, C::kEnding) : 0;
#pragma unroll 1
    for (; walk.left > 0; walk.next(p.group), ++step) {
      if constexpr (!kGradients)
        if (walk.left == ending) barrier_arrive(barriers.ending());
      const uint32_t stage = step % kStages;
      const uint32_t full = kGradients ? barriers.do_full(stage) : barriers.q_full(stage);
      barrier_wait(kGradients ? barriers.do_empty(stage) : barriers.q_empty(stage), ((step / kStages) & 1) ^ 1);
      if constexpr (!kGradients)
        steps[step % C::kStepSlots] = {walk.block, walk.head, walk.left == 1,
                                       C::kFinishes && walk.left <= info.finishes ? walk.head << 16 | walk.block : -1};
      barrier_expect(full, C::kQBytes + C::kStatBytes);
      load_rows<C::kDim, C::kRows>(shared + (kGradients ? C::kDo : C::kQ) + stage * C::kQBytes, map, walk.head,
                                   begin + walk.block * C::kRows, full);
      load_bytes(shared + (kGradients ? C::kDelta : C::kLse) + stage * C::kStatBytes,
                 stat + walk.head * p.padded_rows + walk.block * C::kRows, C::kStatBytes, full);
    }
  }
}

/// Thread that moves dQ from shared memory to the sums in global memory: the first key tile of a block of rows stores,
/// the others add. In steps that store dQ it loads the other tiles' sums into shared memory instead.
template <class C>
__device__ inline void produce_sums(const Parameters& p, uint32_t shared, const ItemInfo* infos,
                                    const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr int kPart = C::kRows * C::kDim / 2;                  // values of one warpgroup
  constexpr int32_t kClaimed = 1 << 16, kStored = kClaimed + 1;  // values of a turn with kAnyOrder
  // Several counters in one register. Bit 0: parity of the number of steps that used the shared memory. Bit 1
  // (kHanded): the consumers already own that memory for this step. Bit 2 (kBusy): they may still use it for the
  // previous step. Next the low bits of the number of posts, above them the round.
  uint32_t state = 0;
  constexpr uint32_t kOdd = 1, kHanded = 2, kBusy = 4, kPost = 8, kPosts = (2 * C::kRelaySlots - 1) * kPost,
                     kRound = kPosts + kPost;
  const auto round = [&] { return state / kRound; };
  TurnRelay<C> turns{p, shared, barriers};
  await_kernel_before();
  // Orders the zeros, which the previous kernel wrote with ordinary stores, before the copy engine's additions.
  full_proxy_fence();
#pragma unroll 1
  for (;; state += kRound) {
    barrier_wait(barriers.info_full(round() % C::kInfoSlots), (round() / C::kInfoSlots) & 1);
    const ItemInfo& info = infos[round() % C::kInfoSlots];
    if (info.head < 0) break;
    Walk walk = Walk::of(info, p.group);
    // Reread at each use to save registers.
    const volatile ItemInfo& again = info;
    const auto finishing = [&] { return C::kFinishes ? again.finishes : 0; };
#pragma unroll 1
    for (; walk.left > 0; walk.next(p.group, again)) {
      const int at = walk.head * p.row_blocks + again.padded / C::kRows + walk.block;
      int32_t* const turn = p.turns + at;
      // Whether the block lies beyond the sequence, as the second of the minimum of two steps can.
      const bool beyond = walk.block * C::kRows >= info.end - info.begin, finishes = walk.left <= finishing();
      if constexpr (C::kFinishes) {
        const bool brings = finishes && !beyond && info.first > info.begin;
        if (brings) {
          // Waits only for tiles with smaller item numbers (see SectionQueue), and while the previous step is computed.
          wait_for_turn(turn, (p.zeroed ? 0 : kClaimed) + (info.first - info.begin) / C::kKeys);
          full_proxy_fence();
        }
#pragma unroll
        for (uint32_t g = 0; g < 2; ++g) {
          if (state & kBusy) barrier_wait(barriers.sums_full(g), (state & kOdd) ^ 1);
          if (brings) {
            barrier_expect(barriers.sums_empty(g), kPart * 4);
            load_bytes(shared + C::kDq + g * (kPart * 4), p.dq_sums + int64_t{at} * (2 * kPart) + g * kPart, kPart * 4,
                       barriers.sums_empty(g));
          } else if ((state & kHanded) == 0) {
            barrier_arrive(barriers.sums_empty(g));
          }
        }
        state &= ~(kHanded | kBusy);
      }
      if (beyond || finishes) {
        if constexpr (C::kFinishes) {
          state |= kBusy;
        } else {
          for (uint32_t g = 0; g < 2; ++g) {
            barrier_wait(barriers.sums_full(g), state & kOdd);
            barrier_arrive(barriers.sums_empty(g));
          }
        }
        state ^= kOdd;
        continue;
      }
      bool store = false;
      if constexpr (C::kSums == Sums::kFixedOrder) {
        // Waits only for tiles with smaller item numbers (see SectionQueue).
        const int key_tile = (info.first - info.begin) / C::kKeys;
        int before;  // tiles that add to these rows before this one
        if (C::kStaggered && !again.down) {
          before = walk.block * C::kRows / C::kKeys - key_tile;
        } else {
          before = key_tile - (C::kWindow ? Window{p.window}.first_tile(walk.block, C::kKeys, C::kRows) : 0);
        }
        wait_for_turn(turn, before);
        store = before == 0;
      } else if (!p.zeroed && turn_now(turn) < kStored) {
        // Claims to be first only once its values are there, because other blocks then wait for the store.
        barrier_wait(barriers.sums_full(0), state & kOdd);
        barrier_wait(barriers.sums_full(1), state & kOdd);
        store = atomicMax(turn, kClaimed) == 0;
        if (!store) wait_for_turn(turn, kStored);
      }
#pragma unroll
      for (uint32_t g = 0; g < 2; ++g) {
        barrier_wait(barriers.sums_full(g), state & kOdd);
        // Done here for the consumers, whose products would wait for the fence.
        proxy_fence();
        float* const to = p.dq_sums + int64_t{at} * (2 * kPart) + g * kPart;
        if (store) {
          store_bytes(to, shared + C::kDq + g * (kPart * 4), kPart * 4);
        } else {
          add_bytes(to, shared + C::kDq + g * (kPart * 4), kPart * 4);
        }
      }
      // Not if the next step loads other tiles' sums into this memory, or may do so.
      if (!C::kFinishes || walk.left > finishing() + 1) state |= kHanded;
      bulk_read<1>();
      if (state & kHanded) barrier_arrive(barriers.sums_empty(0));
      bulk_read<0>();
      if (state & kHanded) barrier_arrive(barriers.sums_empty(1));
      if (C::kSums == Sums::kFixedOrder || store || finishing() != 0) {
        bulk_done();
        turns.post(state / kPost, at);
        state = (state & ~kPosts) | ((state + kPost) & kPosts);
      }
      state ^= kOdd;
    }
  }
  turns.post(state / kPost, -1);
  // Shared memory must stay valid until the copy engine has read it.
  bulk_done();
}

}  // namespace trireme::kernels::backward
