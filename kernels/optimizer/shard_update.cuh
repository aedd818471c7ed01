#pragma once
// What the optimizers' kernels share: their arguments, and the iteration of a block of threads over its chunk of a flat
// shard.

#include "kernels/device.cuh"
#include "kernels/launch.h"
#include "kernels/optimizer/optimizer.h"

#include <cmath>

namespace trireme::kernels {

constexpr int kShardThreads = 256, kShardWidth = 4;

/// G, C, M, P: types of the gradient, the compute copy, the moments and the master weights.
template <class G, class C, class M, class P = float>
struct ShardArguments {
  P* master;
  M *exp_avg, *exp_avg_sq;
  const G* gradient;
  C* compute;
  const float *multiplier, *skip, *step;
  const ShardChunk* chunks;
  // Computed from doubles on the host: 1 - 0.999f has only 16 significant bits.
  float lr, rate1, beta2, rate2, log_beta1, log_beta2, eps, decay;  // rate1: 1 - beta1, rate2: 1 - beta2
  bool aligned;
};

/// `decay`: what the kernel needs of the weight decay.
template <class G, class C, class M, class P = float>
ShardArguments<G, C, M, P> shard_arguments(const ShardUpdate& a, double decay) {
  return {static_cast<P*>(a.master),
          static_cast<M*>(a.exp_avg),
          static_cast<M*>(a.exp_avg_sq),
          static_cast<const G*>(a.gradient),
          static_cast<C*>(a.compute),
          a.multiplier,
          a.skip,
          a.step,
          a.chunks,
          static_cast<float>(a.lr),
          static_cast<float>(1.0 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1.0 - a.beta2),
          static_cast<float>(std::log(a.beta1)),
          static_cast<float>(std::log(a.beta2)),
          static_cast<float>(a.eps),
          static_cast<float>(decay),
          aligned16(a.master, a.exp_avg, a.exp_avg_sq, a.gradient, a.compute)};
}

inline bool complete(const ShardUpdate& a) {
  return a.step != nullptr && a.chunks != nullptr && a.num_chunks <= INT32_MAX;
}

template <class T, int kWidth>
__device__ inline void load_group(const T* from, float (&out)[kWidth]) {
  to_floats(*reinterpret_cast<const Vec<T, kWidth>*>(from), out);
}

/// Calls one(element, width) for every element of the chunk: for four adjacent elements at a time (width a
/// std::integral_constant 4) if `aligned` says that all arrays start at 16-byte boundaries, and for single elements at
/// the ends or otherwise.
template <class F>
__device__ inline void for_chunk(const ShardChunk& chunk, bool aligned, const F& one) {
  const int64_t begin = chunk.begin, end = begin + chunk.count;
  if (!aligned) {
    for (int64_t e = begin + threadIdx.x; e < end; e += kShardThreads) one(e, std::integral_constant<int, 1>{});
    return;
  }
  const int64_t inner = (begin + kShardWidth - 1) / kShardWidth * kShardWidth, outer = end / kShardWidth * kShardWidth;
  if (inner >= outer) {  // contains no aligned group of four
    for (int64_t e = begin + threadIdx.x; e < end; e += kShardThreads) one(e, std::integral_constant<int, 1>{});
    return;
  }
#pragma unroll 2
  for (int64_t e = inner + threadIdx.x * kShardWidth; e < outer; e += kShardThreads * kShardWidth)
    one(e, std::integral_constant<int, kShardWidth>{});
  const int64_t e = threadIdx.x < kShardWidth ? begin + threadIdx.x : outer + threadIdx.x - kShardWidth;
  if (threadIdx.x < kShardWidth ? e < inner : threadIdx.x < 2 * kShardWidth && e < end)
    one(e, std::integral_constant<int, 1>{});
}

}  // namespace trireme::kernels
