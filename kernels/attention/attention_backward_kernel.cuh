#pragma once
// The backward kernel: assigns the roles of producer and consumer to warpgroups.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_backward_produce.cuh"
#include "kernels/attention/attention_backward_query.cuh"

namespace trireme::kernels::backward {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = hopper::shared_address(memory);
  const Barriers<C> barriers{shared + C::kBarriers};
  auto* infos = reinterpret_cast<ItemInfo*>(memory + C::kInfos);
  auto* steps = reinterpret_cast<StepInfo*>(memory + C::kSteps);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  const int group = hopper::uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    hopper::registers_give<C::kProducerRegisters>();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x % 32 == 0) {
      if (warp == 0)
        produce_keys<C>(p, shared, infos, barriers);
      else if (warp == 1)
        produce_rows<C, false>(p, shared, infos, steps, barriers);
      else if (warp == 2)
        produce_rows<C, true>(p, shared, infos, steps, barriers);
      else if constexpr (!C::kOnChip)
        produce_sums<C>(p, shared, infos, barriers);
    }
  } else if (C::kOnChip && group == 3) {
    if constexpr (C::kOnChip) {
      hopper::registers_give<C::kQueryRegisters>();
      sum_query_gradients<C>(p, shared, infos, barriers);
    }
  } else {
    hopper::registers_take<C::kKeyRegisters>();
    consume<C>(p, shared, infos, steps, barriers);
  }
}

}  // namespace trireme::kernels::backward
