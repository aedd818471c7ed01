#pragma once
// What a warpgroup of the forward kernel computes on its rows between the products: softmax, dropout, and the results.

#include "kernels/attention/attention_forward_parts.cuh"

namespace trireme::kernels::forward {

/// Softmax state of a thread's two rows; `sum` covers this thread's columns only until finish().
template <class C>
struct Softmax {
  float maximum[2], sum[2];

  /// Replaces s by exp2(scale_log2 (s - maximum) + kLift), scale_log2(r) being the scale of row r. True: the caller
  /// must multiply earlier results by alpha. `maximum` is raised only if a row of the warp exceeds it by a factor of
  /// 2^kRoom in the exponentials, which is rare after a row's first block. This changes the result by rounding errors
  /// only and cannot overflow.
  template <int kCount, class Scale>
  __device__ bool update(float (&s)[kCount], const Scale& scale_log2, float (&alpha)[2]) {
    const float largest[2] = {largest_of(0, s), largest_of(1, s)};
    const bool raised = __any_sync(0xffffffffu, above(largest, scale_log2) > C::kRoom);
    if (raised) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = maximum[r];
        maximum[r] = fmaxf(before, largest[r]);
        share(r);
        alpha[r] = fast_exp2((before - maximum[r]) * scale_log2(r));
        sum[r] *= alpha[r];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += exponentials(r, s, scale_log2);
    return raised;
  }
  template <class Scale>
  __device__ float above(const float (&largest)[2], const Scale& scale_log2) const {
    if constexpr (C::kCodes)
      return fmaxf((largest[0] - maximum[0]) * scale_log2(0), (largest[1] - maximum[1]) * scale_log2(1));
    else
      return fmaxf(largest[0] - maximum[0], largest[1] - maximum[1]) * scale_log2(0);
  }
  /// The largest of kPart values of s from index `from` on, in row r of this thread.
  template <int kCount, int kPart = kCount>
  __device__ static float largest_of(int r, const float (&s)[kCount], int from = 0) {
    float largest = s[from + 2 * r];
#pragma unroll
    for (int g = from / 4; g < (from + kPart) / 4; ++g)
      largest = fmaxf(largest, fmaxf(s[4 * g + 2 * r], s[4 * g + 2 * r + 1]));
    return largest;
  }
  /// Reduces maximum[r] over the four threads of a row.
  __device__ void share(int r) {
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xffffffffu, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xffffffffu, maximum[r], 2));
  }
  /// Replaces kPart scores by their exponentials; returns their sum.
  template <int kCount, int kPart = kCount, class Scale>
  __device__ float exponentials(int r, float (&s)[kCount], const Scale& scale_log2, int from = 0) const {
    const float scale = scale_log2(r), offset = maximum[r] * scale - C::kLift;
    float total = 0.0f;
#pragma unroll
    for (int g = from / 4; g < (from + kPart) / 4; ++g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * g + 2 * r + e];
        x = fast_exp2(fmaf(x, scale, -offset));
        total += x;
      }
    }
    return total;
  }
  /// Merges this softmax, of a run of key blocks, with that of the runs before, which is in this thread's 32 bytes of
  /// shared memory from `runs` on, and stores it there with the factors for add_run(). Begin: first_run().
  template <class Scale>
  __device__ void end_run(uint32_t runs, const Scale& scale_log2) {
    const float4 before = hopper::load_shared_float4(runs);
    const float maxima[2] = {before.x, before.y}, sums[2] = {before.z, before.w};
    float keep[2], take[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float largest = fmaxf(maximum[r], maxima[r]);
      keep[r] = fast_exp2((maxima[r] - largest) * scale_log2(r));
      take[r] = fast_exp2((maximum[r] - largest) * scale_log2(r));
      sum[r] = sums[r] * keep[r] + sum[r] * take[r];
      maximum[r] = largest;
    }
    hopper::store_shared4(runs, maximum[0], maximum[1], sum[0], sum[1]);
    hopper::store_shared4(runs + 16, keep[0], keep[1], take[0], take[1]);
  }
  __device__ static void first_run(uint32_t runs) { hopper::store_shared4(runs, -INFINITY, -INFINITY, 0, 0); }
  __device__ static Softmax none() { return {{-INFINITY, -INFINITY}, {0.0f, 0.0f}}; }
};

/// Adds the results `o` of the run that end_run() merged to those of the runs before.
template <int kCount>
__device__ inline void add_run(float (&total)[kCount], const float (&o)[kCount], uint32_t runs) {
  const float4 f = hopper::load_shared_float4(runs + 16);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    total[i] = total[i] * f.x + o[i] * f.z;
    total[i + 1] = total[i + 1] * f.x + o[i + 1] * f.z;
    total[i + 2] = total[i + 2] * f.y + o[i + 2] * f.w;
    total[i + 3] = total[i + 3] * f.y + o[i + 3] * f.w;
  }
}

/// Packs kCount columns of probabilities from column 16 i on to the element type; dropped ones become zero. `column` is
/// a multiple of kKeys plus this thread's column offset, 0, 2, 4 or 6. Codes are packed in the order of
/// attention_codes.cu.
template <class C, int kCount = C::kKeys>
__device__ inline void pack_probabilities(uint32_t (&p)[C::kKeys / 32 * C::kPacked], const float (&s)[C::kKeys / 2],
                                          const AttentionRowDraws& draws, uint32_t column, uint32_t bias, int i = 0) {
  if constexpr (C::kCodes) {
#pragma unroll
    for (int j = 2 * i; j < 2 * i + kCount / 8; j += 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float* const from = s + 4 * j + 2 * r;
        p[j + r] = fp8_word<__NV_E4M3>(from[0], from[1], from[4], from[5]);
      }
  } else {
#pragma unroll
    for (int j = 4 * i; j < 4 * i + kCount / 4; ++j) p[j] = hopper::pack2<typename C::T>(s[2 * j], s[2 * j + 1]);
  }
  if constexpr (C::kDropout) {
#pragma unroll
    for (int j = i; j < i + kCount / 16; ++j) {
      // The operands have no bits in common, so xor is the same as a sum, and it fuses with the next instruction.
      const uint32_t even = draws.kept(column ^ 16 * j, bias), odd = draws.kept(column ^ (16 * j + 1), bias);
      p[4 * j] &= half_masks<0>(even, odd);
      p[4 * j + 1] &= half_masks<1>(even, odd);
      p[4 * j + 2] &= half_masks<2>(even, odd);
      p[4 * j + 3] &= half_masks<3>(even, odd);
    }
  }
}

/// A tile as one warpgroup sees it. Row r of its 64 rows is token first + (r >> shift) of head `head` + (r & ((1 <<
/// shift) - 1)).
template <class C>
struct Work {
  int first, begin, end, head;
  int keys;  // keys of block `top` that some of these rows see
  // key blocks of the tile: bottom … blocks - 1; last block that these 64 rows see, bottom - 1 if the rows lie beyond
  // the sequence; last block of which the window hides a part from some of these rows, bottom - 1 if there is none
  int blocks, bottom, top, edge;
  AttentionDraws draws;
  float scales[2];  // kCodes: of the exponents, in powers of two, of this thread's rows

  __device__ static Work read(const TileInfo& info, int unit, int shift, const Parameters& p) {
    Work w;
    w.first = hopper::uniform(info.first) + (64 * unit >> shift);
    w.begin = hopper::uniform(info.begin);
    w.end = hopper::uniform(info.end);
    w.head = hopper::uniform(info.head);
    w.blocks = hopper::uniform(info.blocks);
    if constexpr (C::kDropout) w.draws = info.draws;
    w.bottom = C::kWindow ? hopper::uniform(info.bottom) : 0;
    const int last = C::kCausal ? min(w.end, w.first + (64 >> shift)) : w.end;
    w.top = w.first < w.end ? static_cast<int>(static_cast<uint32_t>(last - w.begin - 1) / C::kKeys) : w.bottom - 1;
    if constexpr (C::kWindow) w.edge = max(Window{p.window}.edge(last - w.begin - 1, C::kKeys), w.bottom - 1);
    w.keys = last - w.begin - w.top * C::kKeys;
    return w;
  }
  /// Not part of read(): the scales of the next tile would take registers while this one is written.
  __device__ void read_scales(const TileInfo& info, int shift, const Parameters& p) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
      scales[r] =
          p.codes.of_scores(first + (row >> shift) + info.padding, head + (row & ((1 << shift) - 1))) * p.scale_log2;
    }
  }
};

/// Normalises this warp's 16 rows from warp_row on, stages them at `staging` (the place of their queries) in columns of
/// 64 and arrives at `left`. The thread that waits there stores them. Rows of a warp that extends beyond the sequence
/// are written here instead, and so is the log-sum-exp.
template <class C>
__device__ inline void finish(const Parameters& p, const Work<C>& work, const float (&o)[C::kDim / 2],
                              const Softmax<C>& softmax, uint32_t staging, uint32_t left, int warp_row, int shift) {
  using namespace hopper;
  using T = typename C::T;
  constexpr float kLn2 = 0.69314718f;
  const int lane = threadIdx.x % 32, heads = (1 << shift) - 1, first = work.first, end = work.end, head = work.head;
  const auto token_of = [&](int row) { return first + ((warp_row + row) >> shift); };
  const auto head_of = [&](int row) { return head + (row & heads); };
  float inverse[2], totals[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = softmax.sum[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    totals[r] = total;
    inverse[r] = (C::kDropout ? p.keep_scale : 1.0f) * fast_reciprocal(total);
    if constexpr (C::kCodes) inverse[r] *= p.codes.of_values(head);
  }
  // The layout of the copy engine: columns of 64 elements, rows of 128 bytes in the 128-byte swizzle.
  constexpr uint32_t kColumn = 64 * 128;
  const auto chunk_at = [&](uint32_t row, uint32_t chunk) {
    return staging + chunk / 8 * kColumn + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
  };
  // Moving two chunks further is one xor in the swizzle.
  const uint32_t lane_at = chunk_at(lane % 16, lane / 16);
#pragma unroll
  for (int j = 0; j < C::kDim / 16; ++j)
    store_matrices((lane_at ^ j % 4 * 32) + j / 4 * kColumn, pack2<T>(o[8 * j] * inverse[0], o[8 * j + 1] * inverse[0]),
                   pack2<T>(o[8 * j + 2] * inverse[1], o[8 * j + 3] * inverse[1]),
                   pack2<T>(o[8 * j + 4] * inverse[0], o[8 * j + 5] * inverse[0]),
                   pack2<T>(o[8 * j + 6] * inverse[1], o[8 * j + 7] * inverse[1]));
  proxy_fence();
  if (token_of(15) >= end) {
    __syncwarp();
    constexpr int kChunks = C::kDim / 8, kStep = 32 / kChunks;
#pragma unroll 1
    for (int i = 0; i < 16 / kStep; ++i) {
      const uint32_t row = i * kStep + lane / kChunks, chunk = lane % kChunks;
      const int4 words = load_shared16(chunk_at(row, chunk));
      const int token = token_of(row);
      if (token < end)
        *reinterpret_cast<int4*>(static_cast<T*>(p.out) + token * p.o_token + head_of(row) * p.o_head + chunk * 8) =
            words;
    }
  }
  barrier_arrive(left);
  // After the fence, which would otherwise wait for these stores. Two of a row pair's four lanes write one row each.
  const bool second = lane & 1;
  const int row = lane / 4 + (second ? 8 : 0), token = token_of(row);
  if ((lane & 2) == 0 && token < end)
    p.lse[static_cast<int64_t>(head_of(row)) * p.tokens + token] =
        (second ? softmax.maximum[1] : softmax.maximum[0]) *
            (C::kCodes ? (second ? work.scales[1] : work.scales[0]) * kLn2 : p.scale) +
        __logf(second ? totals[1] : totals[0]) - C::kLift * kLn2;
}

}  // namespace trireme::kernels::forward
