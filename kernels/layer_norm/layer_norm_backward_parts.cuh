#pragma once
// Layer norm's backward with sums over rows: the operations on rows and packs that both kernels share. The sums of a
// column stay in the registers of the thread that owns it while rows are processed. To leave registers for the rows, a
// thread owns few columns and a group of threads processes several rows at a time.

#include "kernels/column_sum/block_sums.cuh"
#include "kernels/fp8/fp8.cuh"
#include "kernels/layer_norm/layer_norm.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels::layer_norm_sums {

constexpr int kMaxGroups = 8;

/// Sums each of kCount values (a power of two) over a warp; lane l gets the sum of value l % kCount.
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

/// A row's data besides its elements, in the group's shared memory.
struct alignas(16) RowFacts {
  float rstd, shift;  // n = s * rstd + shift
  DropoutHash key;
  uint32_t first;  // index of the row's first pair of elements in the sample
};
/// The same before conversion, in the registers of the thread that loaded it.
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
    to.rstd = there ? rstd : 0.0f;  // a missing row's elements are multiplied by zero
    to.shift = there ? -mean * rstd : 0.0f;
    if (!there) return;
    if constexpr (kDropout) {
      const uint32_t row_of_sample = static_cast<uint32_t>(row) % static_cast<uint32_t>(a.dropout.rows_per_sample);
      to.key = sample_hash(static_cast<uint64_t>(id), a.dropout.t0, a.dropout.t1);
      to.first = static_cast<uint32_t>(row_of_sample * static_cast<uint64_t>(a.columns) >> 1);
    }
  }
};

/// The means of g and of g n for each of kRows rows. `from` holds the sums of `count` warps, each kDots = 2 * kRows
/// values: first the sums of g of all rows, then those of g n. kCount: the count if it is known at compile time,
/// otherwise 0. Lane l gets mean l % kDots.
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

/// First pass over a pack: g becomes dy * gamma and n the normalised row; adds to the sums of the row and of the
/// thread's columns.
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

/// Which outputs the second pass writes, and with which stores. With dropout the flags are forced into a register,
/// because under register pressure the compiler would reread the kernel arguments for every pack. Two outputs are
/// written with ordinary stores, which are 1 % faster there than streaming stores; ds alone is written with streaming
/// stores.
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
  uint32_t bits_ = 0;
};

/// The largest magnitude of dx that a thread has seen, where its codes are written. Their scale is read again for every
/// pack: there is no register for it.
template <class T, bool kCodes>
class Codes {
 public:
  template <int kWidth>
  __device__ void leave(const LayerNormBackward& a, const Vec<T, kWidth>& dx, int64_t to) {
    if constexpr (kCodes) {
      float v[kWidth], scale;
      to_floats(dx, v);
      asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(scale) : "l"(a.codes_scale));
      store_whole(a.codes + to, to_fp8<__NV_E5M2>(v, scale));
      amax_.add(dx);
    }
  }
  __device__ void finish(const LayerNormBackward& a) const {
    if constexpr (kCodes) raise_amax_by_warp(a.codes_amax, amax_.get());
  }

 private:
  Amax<T> amax_;
};

/// Second pass over a pack at element `to`: writes g, the gradient of s, as ds, applies dropout to it, writes the
/// result as dx or its codes and adds it to d_bias.
template <class T, bool kDropout, bool kBias, bool kCodes, int kWidth>
__device__ inline void leave_pack(const LayerNormBackward& a, float (&g)[kWidth], int64_t to, const RowFacts& facts,
                                  int column, Outputs outputs, Codes<T, kCodes>& codes, float* d_bias) {
  Vec<T, kWidth> out = from_floats<T>(g);
  if (kCodes || outputs.ds()) store_whole(static_cast<T*>(a.ds) + to, out, !kDropout && outputs.once());
  if constexpr (kDropout) {
    to_floats(out, g);
    apply_dropout(g, facts.key, facts.first + static_cast<uint32_t>(column) / 2, a.dropout.threshold, a.dropout.scale);
    out = from_floats<T>(g);
    if (!kCodes && outputs.dx()) store_whole(static_cast<T*>(a.dx) + to, out);
    codes.leave(a, out, to);
  }
  if constexpr (kBias) add_to(d_bias, out);
}

}  // namespace trireme::kernels::layer_norm_sums
