#pragma once
// How blocks synchronise the sums of dQ in global memory: one counter for each block of query rows of a head
// (Parameters::turns).

#include "kernels/attention/attention_backward_parts.cuh"

namespace trireme::kernels::backward {

/// The counter of a block of query rows of a head: the number of key tiles whose sums are stored; with kAnyOrder plus
/// kClaimed (produce_sums) once a tile has claimed to be first.
__device__ inline int32_t turn_now(const int32_t* turn) {
  int32_t seen;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory");
  return seen;
}
/// Waits until the counter is at least `value`. The loop is inside the asm statement for the reason given at
/// barrier_wait().
__device__ inline void wait_for_turn(const int32_t* turn, int32_t value) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .s32 seen;\n"
      "AGAIN:\n"
      "ld.acquire.gpu.global.s32 seen, [%0];\n"
      "setp.ge.s32 p, seen, %1;\n"
      "@p bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n}\n" ::"l"(turn),
      "r"(value)
      : "memory");
}

/// The thread that stores sums does not publish them itself: a release at gpu scope waits for all of the thread's
/// outstanding global writes, about one step, and would delay the next sums. It posts the counter instead, and the
/// thread that loads keys, which has time to spare, relays the post.
template <class C>
struct TurnRelay {
  const Parameters& p;
  uint32_t shared;
  const Barriers<C>& barriers;
  uint32_t relayed = 0;  // posts relayed so far

  __device__ uint32_t place(uint32_t number) const { return shared + C::kRelay + number % C::kRelaySlots * 4; }
  __device__ static uint32_t parity(uint32_t number) { return (number / C::kRelaySlots) & 1; }

  /// Called by the thread whose sums have arrived, for the `number`th post: `at` is the index of the counter; -1: no
  /// more posts.
  __device__ void post(uint32_t number, int at) const {
    hopper::barrier_wait(barriers.relay_empty(number % C::kRelaySlots), parity(number) ^ 1);
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(place(number)), "r"(at) : "memory");
    hopper::barrier_arrive(barriers.relay_full(number % C::kRelaySlots));
  }
  /// Called by the other thread: relays a post if there is one. False: no more posts will come.
  __device__ bool relay() {
    if (!hopper::barrier_done(barriers.relay_full(relayed % C::kRelaySlots), parity(relayed))) return true;
    int at;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(at) : "r"(place(relayed)) : "memory");
    hopper::barrier_arrive(barriers.relay_empty(relayed % C::kRelaySlots));
    ++relayed;
    if (at < 0) return false;
    // Orders a block's sums before another block's copy engine operations on them. Here the fence delays no one.
    hopper::full_proxy_fence();
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.turns + at) : "memory");
    return true;
  }
  /// Waits for a barrier and relays posts while waiting.
  __device__ void wait(uint32_t barrier, uint32_t phase) {
    if constexpr (C::kOnChip) {
      hopper::barrier_wait(barrier, phase);
    } else {
      while (!hopper::barrier_done(barrier, phase)) {
        relay();
        __nanosleep(64);
      }
    }
  }
};

}  // namespace trireme::kernels::backward
