#pragma once
// The backward kernel's arithmetic on a warp's transposed scores in registers: masks, probabilities from the rows'
// log-sum-exp, dropout, dS. A thread holds the scores of keys `key` and `key` + 8 for query rows `row` + 8 j and `row`
// + 8 j + 1, where key and row depend on its lane; s[4 j + e] has e = 0, 1 for the first key and 2, 3 for the second.

#include "kernels/attention/attention_backward_parts.cuh"

#include <climits>

namespace trireme::kernels::backward {

/// The query rows of a step: their log-sum-exp, position, and whether a mask applies.
template <class C>
struct Rows {
  float2 lse[C::kRows / 8];  // loaded here if registers allow; otherwise read from shared memory at each use
  int first, length, first_row;
  bool masked;
};

/// Loads the statistics of a lane's rows from shared memory at `from`.
template <int kCount>
__device__ inline void load_statistics(float2 (&x)[kCount], uint32_t from) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) x[j] = hopper::load_shared_float2(from + 32 * j);
}

/// Sets masked scores to -inf: with a causal mask the query rows before the key; with a window the rows from key +
/// window on; for a key beyond the sequence all rows.
template <class C>
__device__ inline void mask_scores(float (&s)[C::kRows / 2], int key, int row, int length,
                                   [[maybe_unused]] int window) {
  const bool here0 = key < length, here1 = key + 8 < length;
  const int low0 = (here0 ? key : INT_MAX) - row, low1 = (here1 ? key + 8 : INT_MAX) - row;
  [[maybe_unused]] const int high = key - row + window;
#pragma unroll
  for (int j = 0; j < C::kRows / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((C::kCausal ? 8 * j + e % 2 < (e < 2 ? low0 : low1) : !(e < 2 ? here0 : here1)) ||
          (C::kWindow && 8 * j + e % 2 >= high + (e < 2 ? 0 : 8)))
        s[4 * j + e] = -INFINITY;
  }
}

/// Masked scores to probabilities. The rows' log-sum-exp are in `lses` or, for heads of 128, in shared memory at
/// `lse_at`.
template <class C>
__device__ inline void probabilities(float (&s)[C::kRows / 2], [[maybe_unused]] const float2 (&lses)[C::kRows / 8],
                                     [[maybe_unused]] uint32_t lse_at, float scale_log2) {
  using namespace hopper;
#pragma unroll
  for (int j = 0; j < C::kRows / 8; ++j) {
    const float2 lse = C::kWide ? load_shared_float2(lse_at + 32 * j) : lses[j];
    s[4 * j] = fast_exp2(fmaf(s[4 * j], scale_log2, -lse.x));
    s[4 * j + 1] = fast_exp2(fmaf(s[4 * j + 1], scale_log2, -lse.y));
    s[4 * j + 2] = fast_exp2(fmaf(s[4 * j + 2], scale_log2, -lse.x));
    s[4 * j + 3] = fast_exp2(fmaf(s[4 * j + 3], scale_log2, -lse.y));
  }
  pin(s);
}

/// Dropout decisions for the probabilities of a step: `even` for query rows 16 i + 2 (lane % 4), `odd` for the next
/// row.
template <class C>
struct Kept {
  uint32_t even[C::kRows / 16], odd[C::kRows / 16];

  __device__ void draw(const AttentionDraws& draws, uint32_t row, uint32_t column, uint32_t bias) {
    const uint32_t word = draws.word(row, column);
#pragma unroll
    for (int i = 0; i < C::kRows / 16; ++i) {
      // 16 i has no bit in common with `row`, so their words combine by xor.
      even[i] = draws.kept(word ^ AttentionDraws::row_bits(16 * i), bias);
      odd[i] = draws.kept(word ^ AttentionDraws::row_bits(16 * i + 1), bias);
    }
  }
};

/// Packs P to the element type, with dropout applied, as an operand of dV = P^T dO.
template <class C>
__device__ inline void pack_probabilities(uint32_t (&packed)[C::kRows / 4], const float (&s)[C::kRows / 2],
                                          [[maybe_unused]] const Kept<C>& kept) {
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      packed[4 * i + e] = hopper::pack2<typename C::T>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
    if constexpr (C::kDropout) {
      // The scores are transposed: bit 3 of the key selects the byte pair, bit 3 of the query row the byte in it.
      packed[4 * i] &= half_masks<0>(kept.even[i], kept.odd[i]);
      packed[4 * i + 1] &= half_masks<2>(kept.even[i], kept.odd[i]);
      packed[4 * i + 2] &= half_masks<1>(kept.even[i], kept.odd[i]);
      packed[4 * i + 3] &= half_masks<3>(kept.even[i], kept.odd[i]);
    }
  }
}

/// ds = P (dP - delta), written over dp and packed. The first kDeltasHeld pairs of delta are in registers, the others
/// in shared memory at `delta_at`.
template <class C>
__device__ inline void score_gradients(uint32_t (&ds)[C::kRows / 4], float (&dp)[C::kRows / 2],
                                       const float (&s)[C::kRows / 2], const float2 (&deltas)[C::kDeltasHeld],
                                       [[maybe_unused]] uint32_t delta_at, [[maybe_unused]] const Kept<C>& kept) {
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i) {
#pragma unroll
    for (int j = 2 * i; j < 2 * i + 2; ++j) {
      const float2 delta = j < C::kDeltasHeld ? deltas[j] : hopper::load_shared_float2(delta_at + 32 * j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x = dp[4 * j + e];
        if constexpr (C::kDropout) {
          const uint32_t word = e % 2 ? kept.odd[i] : kept.even[i];
          const uint32_t mask = j % 2 == 0 ? (e < 2 ? word_mask<0>(word) : word_mask<2>(word))
                                           : (e < 2 ? word_mask<1>(word) : word_mask<3>(word));
          x = __uint_as_float(__float_as_uint(x) & mask);
        }
        dp[4 * j + e] = s[4 * j + e] * (x - (e % 2 ? delta.y : delta.x));
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) ds[4 * i + e] = hopper::pack2<typename C::T>(dp[8 * i + 2 * e], dp[8 * i + 2 * e + 1]);
  }
}

}  // namespace trireme::kernels::backward
