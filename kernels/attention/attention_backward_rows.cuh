#pragma once
// Stores dQ, dK and dV from the backward kernel's registers.

#include "kernels/attention/attention_backward_parts.cuh"
#include "kernels/attention/attention_backward_sums.cuh"

namespace trireme::kernels::backward {

/// Stores 16 rows of a warp, times `scale`, to out + row * stride. They are transposed through 16 rows of the warp's
/// own shared memory at `by`, so that each row is written as a whole. Rows from `count` on are not written.
template <class T, int kCount>
__device__ inline void store_rows(const float (&x)[kCount], float scale, uint32_t by, T* out, int64_t stride,
                                  int count) {
  using namespace hopper;
  constexpr uint32_t kBytes = kCount * 4, kChunks = kBytes / 16, kRowsAtOnce = 32 / kChunks;
  static_assert(kChunks == 8 || kChunks == 4);
  const uint32_t lane = threadIdx.x % 32;
  // The same chunk of eight rows maps to different banks.
  const auto at = [&](uint32_t row, uint32_t chunk) {
    return by + row * kBytes + ((chunk ^ (kChunks == 8 ? row : row / 2)) % kChunks) * 16;
  };
  const uint32_t to_shared = at(lane % 16, lane / 16);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    uint32_t w[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) w[e] = pack2<T>(x[8 * i + 2 * e] * scale, x[8 * i + 2 * e + 1] * scale);
    store_matrices(to_shared ^ (32 * i), w[0], w[1], w[2], w[3]);
  }
  __syncwarp();
  int4 v[16 / kRowsAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < 16 / kRowsAtOnce; ++i)
    v[i] = load_shared16(at(kRowsAtOnce * i + lane / kChunks, lane % kChunks));
  __syncwarp();
  T* to = out + lane / kChunks * stride + lane % kChunks * 8;
#pragma unroll
  for (uint32_t i = 0; i < 16 / kRowsAtOnce; ++i, to += kRowsAtOnce * stride)
    if (static_cast<int>(kRowsAtOnce * i + lane / kChunks) < count) store_global16(to, v[i]);
}

/// A warp's part of dQ of a step where the sums are in global memory. Normally it goes to shared memory, from where a
/// producer thread adds it to the sums. In a step that stores dQ (the rows' last key tile) it is added to the sums that
/// the producer has loaded and written to dq.
template <class C>
__device__ inline void leave_query_gradient(const Parameters& p, uint32_t shared, const Barriers<C>& barriers,
                                            const ItemInfo& info, const StepInfo& about, uint32_t step, int group,
                                            int warp, [[maybe_unused]] int lane, float (&dq)[C::kDqValues]) {
  using namespace hopper;
  if (C::kFinishes && uniform(about.finishes) >= 0) {
    const int here = uniform(about.finishes);
    const int token = info.begin + (here & 0xffff) * C::kRows + 16 * warp;
    barrier_wait(barriers.sums_empty(group), step & 1);
    if ((here & 0xffff) >= C::kKeys / C::kRows)
      add_staged_sums(shared + C::kDq + (4 * group + warp) * (C::kDqValues * 128), dq);
    barrier_arrive(barriers.sums_full(group));
    store_fragments(
        dq, p.scale,
        static_cast<typename C::T*>(p.dq) + (here >> 16) * p.dq_head + token * p.dq_token + group * (C::kDim / 2),
        p.dq_token, info.end - token);
  } else {
    const uint32_t sums = shared + C::kDq + (4 * group + warp) * (C::kDqValues * 128);
    const uint32_t here = C::kFinishes ? lane_again() : lane;
    barrier_wait(barriers.sums_empty(group), (step & 1) ^ (C::kFinishes ? 0 : 1));
#pragma unroll
    for (int i = 0; i < C::kDqValues / 4; ++i)
      store_shared4(sums + i * 512 + here * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    if constexpr (C::kFinishes) {
      barrier_arrive(barriers.sums_full(group));
    } else {
      __syncwarp();
      if (lane == 0) barrier_arrive(barriers.sums_full(group));
    }
  }
}

/// Stores dK and dV of one warp's 16 keys; `by` as in store_rows(), used for heads of 64 only.
template <class C>
__device__ inline void store_gradients(const Parameters& p, const ItemInfo& info, int warp_key,
                                       [[maybe_unused]] uint32_t by, const float (&dk)[C::kDim / 2],
                                       const float (&dv)[C::kDim / 2]) {
  using T = typename C::T;
  const int64_t token = info.first + warp_key;
  const int count = info.end - static_cast<int>(token);
  T *const to_dk = static_cast<T*>(p.dk) + info.head * p.dk_head + token * p.dk_token, *const to_dv =
                                                                                           static_cast<T*>(p.dv) +
                                                                                           info.head * p.dv_head +
                                                                                           token * p.dv_token;
  const float dv_scale = C::kDropout ? p.keep_scale : 1.0f;
  if constexpr (C::kDim == 64) {
    store_rows(dk, p.scale, by, to_dk, p.dk_token, count);
    store_rows(dv, dv_scale, by, to_dv, p.dv_token, count);
  } else {
    hopper::store_fragments(dk, p.scale, to_dk, p.dk_token, count);
    // Keeps ptxas from starting dV before dK is stored, which would exceed the registers.
    __syncwarp();
    hopper::store_fragments(dv, dv_scale, to_dv, p.dv_token, count);
  }
}

}  // namespace trireme::kernels::backward
