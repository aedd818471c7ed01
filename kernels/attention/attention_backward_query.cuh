#pragma once
// The third consumer warpgroup of the backward kernel, used where the sums of dQ stay on chip. It computes dQ = dS K of
// every step, so that the warpgroups that own keys never wait for the other one's half of dS.

#include "kernels/attention/attention_backward_parts.cuh"
#include "kernels/attention/attention_backward_rows.cuh"
#include "kernels/attention/attention_backward_sums.cuh"

namespace trireme::kernels::backward {

template <class C>
__device__ inline void sum_query_gradients(const Parameters& p, uint32_t shared, const ItemInfo* infos,
                                           const Barriers<C>& barriers) {
  using namespace hopper;
  using T = typename C::T;
  static_assert(C::kOnChip && C::kDqValues == C::kDim / 2);
  const int warp = uniform(static_cast<int>(threadIdx.x) % 128 / 32);
  const bool tells = threadIdx.x % 32 == 0;
  uint32_t step = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    barrier_wait(barriers.info_full(round % C::kInfoSlots), (round / C::kInfoSlots) & 1);
    const ItemInfo& info = infos[round % C::kInfoSlots];
    const int head = uniform(info.head);
    if (head < 0) break;
    const int first = uniform(info.first), begin = uniform(info.begin), end = uniform(info.end),
              first_block = uniform(info.first_block);
    const int steps = uniform(info.blocks) - first_block, down = uniform(info.down);
    const uint32_t k = shared + C::kK + (round & 1) * C::kKBytes;
    const bool adds = first > begin, whole = second_half<C>(first, end);
    barrier_wait(barriers.k_full(round & 1), (round >> 1) & 1);
#pragma unroll 1
    for (int i = 0; i < steps; ++i, ++step) {
      const int row = (first_block + (down ? steps - 1 - i : i)) * C::kRows;
      const uint32_t buffer = step & 1, sums = shared + C::kDq + (row / 16 + warp) * kWarpSums;
      float dq[C::kDqValues];
      barrier_wait(barriers.ds_full(buffer), (step >> 1) & 1);
      // Fences the other warpgroups' writes, which the barrier has made visible to this one.
      proxy_fence();
      mma_fence();
      if (whole) {
        query_gradient<C>(dq, shared + C::kDs + buffer * C::kSBytes, k);
      } else {
        query_gradient<C, C::kKeys / 2>(dq, shared + C::kDs + buffer * C::kSBytes, k);
      }
      mma_commit();
      mma_wait<0>();
      pin(dq);
      if (tells) {
        barrier_arrive(barriers.ds_empty(buffer));
        if (i == steps - 1) barrier_arrive(barriers.k_empty(round & 1));
      }
      if (adds) add_kept_sums(sums, dq);
      // The last key tile that the mask lets these rows see.
      if (first + C::kKeys >= (C::kCausal ? min(end, begin + row + C::kRows) : end)) {
        const int64_t token = begin + row + 16 * warp;
        store_rows(dq, p.scale, sums, static_cast<T*>(p.dq) + head * p.dq_head + token * p.dq_token, p.dq_token,
                   end - static_cast<int>(token));
      } else {
        keep_sums(sums, dq);
      }
    }
  }
}

}  // namespace trireme::kernels::backward
