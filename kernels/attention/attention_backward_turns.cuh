#pragma once
// How blocks tell each other what of dQ has been summed in global memory: a count for each block of query rows of a
// head (Parameters::turns).

#include "kernels/attention/attention_backward_parts.cuh"

namespace trireme::kernels::backward {

/// Of a block of query rows of a head: how many key tiles have left sums; in any order beside that whether one has
/// claimed to be first.
__device__ inline int32_t turn_now(const int32_t* turn) {
  int32_t seen;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(turn) : "memory");
  return seen;
}
/// Inside one statement, as barrier_wait.
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

/// That sums have arrived is told by another thread than the one that asked for them: a release to other blocks waits
/// for whatever is on its way to global memory, about as long as a step takes, and the next sums would wait with it.
/// The thread that brings keys has that time: it relays what the other one posts.
template <class C>
struct TurnRelay {
  const Parameters& p;
  uint32_t shared;
  const Barriers<C>& barriers;
  uint32_t relayed = 0;  // how many

  __device__ uint32_t place(uint32_t number) const { return shared + C::kRelay + number % C::kRelaySlots * 4; }
  __device__ static uint32_t parity(uint32_t number) { return (number / C::kRelaySlots) & 1; }

  /// By the thread that has seen sums arrive, the `number`th time: of which block of rows and head; -1: no more will.
  __device__ void post(uint32_t number, int at) const {
    hopper::barrier_wait(barriers.relay_empty(number % C::kRelaySlots), parity(number) ^ 1);
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(place(number)), "r"(at) : "memory");
    hopper::barrier_arrive(barriers.relay_full(number % C::kRelaySlots));
  }
  /// By the other one: relays what is posted, if anything is. False: nothing more will be.
  __device__ bool relay() {
    if (!hopper::barrier_done(barriers.relay_full(relayed % C::kRelaySlots), parity(relayed))) return true;
    int at;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(at) : "r"(place(relayed)) : "memory");
    hopper::barrier_arrive(barriers.relay_empty(relayed % C::kRelaySlots));
    ++relayed;
    if (at < 0) return false;
    // Between a block's sums and what another one's copy engine does to them: here, where it delays nobody.
    hopper::full_proxy_fence();
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.turns + at) : "memory");
    return true;
  }
  /// Waits for a barrier, relaying meanwhile.
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
