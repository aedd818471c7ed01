#pragma once
// Layer norm's backward with sums over rows: what both forms do with a row and a pack. The sums of a
// column stay with the thread that owns it while rows pass; so that they leave registers for the
// rows, a thread owns few columns, and a group of threads takes several rows at a time.

#include "kernels/column_sum/block_sums.cuh"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/row_dropout.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels::layer_norm_sums {

constexpr int kMaxGroups = 8;

/// Sums kCount values (a power of two) over a warp; lane l gets the sum of value l % kCount.
template <int kCount>
__device__ inline float scattered_sum(const float (&v)[kCount]) {
  float kept[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) kept[i] = v[i];
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = lane & static_cast<unsigned>(half);
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? kept[i] : kept[i + half];
      kept[i] = (upper ? kept[i + half] : kept[i]) + __shfl_xor_sync(0xffffffffu, sent, static_cast<unsigned>(half));
    }
  }
#pragma unroll
  for (int offset = kCount; offset < 32; offset *= 2)
    kept[0] += __shfl_xor_sync(0xffffffffu, kept[0], static_cast<unsigned>(offset));
  return kept[0];
}

/// What a row needs beside its elements, in shared memory for the group.
struct alignas(16) RowFacts {
  float rstd, shift;  // n = s * rstd + shift
  DropoutHash key;
  uint32_t first;  // pair of elements of the sample that the row starts with
};
/// The same on its way, with the one thread that asked for it.
template <bool kDropout>
struct RawFacts {
  float mean = 0.0f, rstd = 0.0f;
  int64_t id = 0;

  __device__ void load(const LayerNormBackward& a, int row) {
    if (row >= static_cast<int>(a.rows)) return;
    mean = a.mean[row];
    rstd = a.rstd[row];
    if constexpr (kDropout)
      id = a.dropout.ids[static_cast<uint32_t>(row) / static_cast<uint32_t>(a.dropout.rows_per_sample)];
  }
  __device__ void settle(const LayerNormBackward& a, int row, RowFacts& to) const {
    const bool there = row < static_cast<int>(a.rows);
    to.rstd = there ? rstd : 0.0f;  // a missing row adds zero times these
    to.shift = there ? -mean * rstd : 0.0f;
    if (!there) return;
    if constexpr (kDropout) {
      const uint32_t row_of_sample = static_cast<uint32_t>(row) % static_cast<uint32_t>(a.dropout.rows_per_sample);
      to.key = sample_hash(static_cast<uint64_t>(id), a.dropout.t0, a.dropout.t1);
      to.first = static_cast<uint32_t>(row_of_sample * static_cast<uint64_t>(a.columns) >> 1);
    }
  }
};

/// The mean of g (sum r of v) and of g n (sum kRows + r), for the row r of kRows: v are the sums of
/// count warps at `from`, 2 * kRows each; kCount: known when compiled, else 0. Lane l gets that of
/// value l % (2 * kRows).
template <int kDots, int kCount = 0>
__device__ inline float row_means(const float* from, int count, int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float total = 0.0f;
  if constexpr (kCount * kDots % 32 == 0 && kCount != 0) {
#pragma unroll
    for (int i = 0; i < kCount * kDots; i += 32) total += from[i + lane];
  } else {
    for (int w = lane / kDots; w < count; w += 32 / kDots) total += from[w * kDots + lane % kDots];
  }
#pragma unroll
  for (int offset = kDots; offset < 32; offset *= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
  return total * __fdividef(1.0f, static_cast<float>(columns));
}

/// First pass over a pack: g becomes dy * gamma, n the normalised row; the sums of the row and of
/// the thread's columns.
template <int kWidth>
__device__ inline void sum_pack(float (&g)[kWidth], float (&n)[kWidth], const float (&gamma)[kWidth], float rstd,
                                float shift, float (&d_gamma)[kWidth], float (&d_beta)[kWidth], float& g_sum,
                                float& gn_sum) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    n[i] = fmaf(n[i], rstd, shift);
    d_gamma[i] = fmaf(g[i], n[i], d_gamma[i]);
    d_beta[i] += g[i];
    g[i] *= gamma[i];
    g_sum += g[i];
    gn_sum = fmaf(g[i], n[i], gn_sum);
  }
}

/// ds = rstd * (g - mean(g) - n * mean(g n)) = rstd * g + slope * s + level
struct RowSlope {
  float rstd, slope, level;
  __device__ RowSlope(const RowFacts& facts, float g_mean, float gn_mean)
      : rstd(facts.rstd),
        slope(-facts.rstd * facts.rstd * gn_mean),
        level(-facts.rstd * fmaf(gn_mean, facts.shift, g_mean)) {}
};

/// What the second pass writes and how. With dropout in a register of its own: short of registers,
/// the compiler would ask the arguments again for every pack. Its two outputs leave by ordinary stores,
/// which are 1 % faster there than stores marked to leave L2 first; ds alone by the latter.
class Outputs {
 public:
  template <class T, bool kDropout>
  __device__ static Outputs of(const LayerNormBackward& a) {
    Outputs outputs;
    outputs.bits_ = (a.ds != nullptr ? 1u : 0u) | (a.dx != nullptr ? 2u : 0u);
    if constexpr (kDropout)
      asm volatile("" : "+r"(outputs.bits_));
    else if (streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T))))
      outputs.bits_ |= 4u;
    return outputs;
  }
  __device__ bool ds() const { return bits_ & 1u; }
  __device__ bool dx() const { return bits_ & 2u; }
  __device__ bool once() const { return bits_ & 4u; }

 private:
  uint32_t bits_;
};

/// Second pass over a pack at element `to`, whose gradient with respect to the sum is g: written,
/// and behind the dropout as dx; d_bias grows by what went through.
template <class T, bool kDropout, bool kBias, int kWidth>
__device__ inline void leave_pack(const LayerNormBackward& a, float (&g)[kWidth], int64_t to, const RowFacts& facts,
                                  int column, Outputs outputs, float* d_bias) {
  Vec<T, kWidth> out = from_floats<T>(g);
  if (outputs.ds()) store_whole(static_cast<T*>(a.ds) + to, out, !kDropout && outputs.once());
  if constexpr (kDropout) {
    to_floats(out, g);
    apply_dropout(g, facts.key, facts.first + static_cast<uint32_t>(column) / 2, a.dropout.threshold, a.dropout.scale);
    out = from_floats<T>(g);
    if (outputs.dx()) store_whole(static_cast<T*>(a.dx) + to, out);
  }
  if constexpr (kBias) add_to(d_bias, out);
}

}  // namespace trireme::kernels::layer_norm_sums
