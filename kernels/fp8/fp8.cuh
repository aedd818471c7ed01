#pragma once
// Device functions for the FP8 outputs that kernels write in addition to or instead of their 16-bit result.

#include "kernels/device.cuh"
#include "kernels/fp8/fp8.h"
#include "kernels/row_prefetch.cuh"

#include <cuda_fp8.h>

#include <type_traits>

namespace trireme::kernels {

__device__ inline constexpr float fp8_max(Fp8Format format) { return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f; }

// Compute capability 8.9 is the first with instructions for these conversions. Before, CUDA's header computes them.

/// Four codes of values * scale, rounded to nearest and saturated. One asm statement for all four: converting pair by
/// pair through 16-bit registers takes four more instructions per pair.
template <__nv_fp8_interpretation_t kKind>
__device__ inline uint32_t fp8_word(float a, float b, float c, float d) {
  uint32_t word;
#if __CUDA_ARCH__ < 890
  word = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, kKind) |
         static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, kKind)) << 16;
#else
  if constexpr (kKind == __NV_E4M3)
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; "
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high};}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
  else
    asm("{.reg .b16 low, high; cvt.rn.satfinite.e5m2x2.f32 low, %2, %1; "
        "cvt.rn.satfinite.e5m2x2.f32 high, %4, %3; mov.b32 %0, {low, high};}"
        : "=r"(word)
        : "f"(a), "f"(b), "f"(c), "f"(d));
#endif
  return word;
}

template <__nv_fp8_interpretation_t kKind, int kWidth>
__device__ inline Words<kWidth / 4> to_fp8(const float (&values)[kWidth], float scale) {
  Words<kWidth / 4> codes;
#pragma unroll
  for (int i = 0; i < kWidth; i += 4)
    codes.word[i / 4] =
        fp8_word<kKind>(values[i] * scale, values[i + 1] * scale, values[i + 2] * scale, values[i + 3] * scale);
  return codes;
}

/// Stores E4M3 codes. `once`: as in store_whole().
template <int kWidth>
__device__ inline void store_fp8(uint8_t* to, const float (&values)[kWidth], float scale, bool once = false) {
  if constexpr (kWidth == 1)
    *to = __nv_cvt_float_to_fp8(values[0] * scale, __NV_SATFINITE, __NV_E4M3);
  else if constexpr (kWidth == 4)  // pair by pair: fp32 rows are limited by registers, not by instructions
    store<uint16_t, 2>(reinterpret_cast<uint16_t*>(to),
                       {{__nv_cvt_float2_to_fp8x2({values[0] * scale, values[1] * scale}, __NV_SATFINITE, __NV_E4M3),
                         __nv_cvt_float2_to_fp8x2({values[2] * scale, values[3] * scale}, __NV_SATFINITE, __NV_E4M3)}});
  else
    store_whole(to, to_fp8<__NV_E4M3>(values, scale), once);
}

/// Calls f with the format as a compile-time constant, so that one branch serves all packs.
template <class F>
__device__ inline void with_format(Fp8Format format, const F& f) {
  if (format == Fp8Format::kE4M3)
    f(std::integral_constant<__nv_fp8_interpretation_t, __NV_E4M3>{});
  else
    f(std::integral_constant<__nv_fp8_interpretation_t, __NV_E5M2>{});
}

/// Stores a row from registers as E4M3 codes. `once` is tested once a row, not once a pack.
template <class T, int kPacks, class Cursor>
__device__ inline void store_row_fp8(uint8_t* to, const Words<4> (&row)[kPacks], const Cursor& cursor, float scale,
                                     bool once) {
  constexpr int kWidth = 16 / sizeof(T);
  const auto write = [&](auto streaming) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      to_floats(as_pack<T>(row[p]), v);
      store_fp8(to + cursor.index(p) * kWidth, v, scale, decltype(streaming)::value);
    }
  };
  if (kWidth == 8 && once)
    write(std::true_type{});
  else
    write(std::false_type{});
}

__device__ inline float from_fp8(uint8_t code, Fp8Format format) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, format == Fp8Format::kE4M3 ? __NV_E4M3 : __NV_E5M2)));
}

template <__nv_fp8_interpretation_t kKind, int kWidth>
__device__ inline void from_fp8(const Vec<uint16_t, kWidth / 2>& codes, float scale, float (&out)[kWidth]) {
  const auto words = __builtin_bit_cast(Words<kWidth / 4>, codes);
#pragma unroll
  for (int i = 0; i < kWidth; i += 4) {
    uint32_t halves[2];
#if __CUDA_ARCH__ < 890
    for (int pair = 0; pair < 2; ++pair)
      halves[pair] = __builtin_bit_cast(
          uint32_t,
          __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(words.word[i / 4] >> 16 * pair), kKind));
#else
    if constexpr (kKind == __NV_E4M3)
      asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; "
          "cvt.rn.f16x2.e4m3x2 %1, high;}"
          : "=r"(halves[0]), "=r"(halves[1])
          : "r"(words.word[i / 4]));
    else
      asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e5m2x2 %0, low; "
          "cvt.rn.f16x2.e5m2x2 %1, high;}"
          : "=r"(halves[0]), "=r"(halves[1])
          : "r"(words.word[i / 4]));
#endif
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float2 v = __half22float2(__half2(__builtin_bit_cast(__half2_raw, halves[pair])));
      out[i + 2 * pair] = v.x * scale;
      out[i + 2 * pair + 1] = v.y * scale;
    }
  }
}

/// Atomically raises *amax to v, v >= 0; the result does not depend on the order. NaN counts as larger than every
/// number.
__device__ inline void raise_amax(float* amax, float v) {
  atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(v) & 0x7fffffffu);
}

/// max(|a|, |b|) that propagates NaN, so that a NaN activation shows in the amax.
__device__ inline float amax_of(float a, float b) {
  const unsigned x = __float_as_uint(a) & 0x7fffffffu, y = __float_as_uint(b) & 0x7fffffffu;
  return __uint_as_float(x > y ? x : y);
}

__device__ inline float warp_amax(float v) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v) & 0x7fffffffu));
}

/// The largest of each of kCount values over a row's threads; rules as for row_sum(), scratch of 32 * kCount floats.
template <int kCount>
__device__ inline void row_amax(float (&v)[kCount], int threads, float* scratch) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = warp_amax(v[i]);
  if (threads == 32) return;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[threadIdx.x / 32 * kCount + i] = v[i];
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = warp_amax(lane < threads / 32 ? scratch[lane * kCount + i] : 0.0f);
}
__device__ inline float row_amax(float v, int threads, float* scratch) {
  float values[1] = {v};
  row_amax(values, threads, scratch);
  return values[0];
}

/// Running max |v| over packs. One instruction handles a pair of 16-bit elements; it leaves sign bits that get()
/// clears. The maximum starts from a zero that ptxas does not know to be one: where it knows, ptxas 13.0 folds the
/// first max.xorsign.abs into a maximum of signed values, and a negative element of the first pair is lost.
template <class T>
class Amax {
 public:
  __device__ Amax() : pair_(blockDim.z - 1) {}  // blocks have two dimensions
  template <int kWidth>
  __device__ void add(const Vec<T, kWidth>& vec) {
    if constexpr (sizeof(T) == 2) {
      const auto words = __builtin_bit_cast(Words<kWidth / 2>, vec);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) {
#if __CUDA_ARCH__ < 860
        if constexpr (__is_same(T, __half))
          asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair_) : "r"(words.word[i] & 0x7fff7fffu));
        else
          asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair_) : "r"(words.word[i] & 0x7fff7fffu));
#else
        if constexpr (__is_same(T, __half))
          asm("max.NaN.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(pair_) : "r"(words.word[i]));
        else
          asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(pair_) : "r"(words.word[i]));
#endif
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) value_ = amax_of(value_, to_float(vec.value[i]));
    }
  }
  __device__ float get() const {
    if constexpr (sizeof(T) == 2) {
      float both[2];
      to_floats(__builtin_bit_cast(Vec<T, 2>, pair_), both);
      return amax_of(both[0], both[1]);
    } else {
      return value_;
    }
  }

 private:
  float value_ = 0.0f;
  uint32_t pair_;
};

/// Magnitudes compare as integers, with NaN above infinity; two 16-bit elements at a time.
__device__ inline uint32_t larger(uint32_t top, uint32_t word) { return __vmaxu2(top, word & 0x7fff7fffu); }

/// Most blocks per multiprocessor of persistent kernels that find column maxima. Each writes a row of them, which is
/// read again; the blocks of short rows have few threads.
constexpr int kMaximaBlocksPerSm = 2;
constexpr int maxima_blocks_per_sm(int64_t columns) {
  return columns <= 8192 ? 2 * kMaximaBlocksPerSm : kMaximaBlocksPerSm;
}

/// Largest magnitudes of the columns that a thread of a persistent kernel has in every row; nothing unless kUsed.
template <class T, int kPacks, bool kUsed>
class ColumnMaxima {
 public:
  __device__ void add(int p, const Vec<T, 16 / sizeof(T)>& pack) {
    if constexpr (kUsed) {
      static_assert(sizeof(T) == 2);
      const Words<4> words = as_words(pack);
#pragma unroll
      for (int w = 0; w < 4; ++w) top_[p].word[w] = larger(top_[p].word[w], words.word[w]);
    }
  }
  /// Writes the block's row of maxima, once. Blocks have one row at a time.
  template <class Cursor>
  __device__ void write(T* to, const Cursor& cursor) const {
    if constexpr (kUsed) store_row(to, top_, cursor, false);
  }

 private:
  Words<4> top_[kUsed ? kPacks : 1] = {};
};

/// Zeroes the amax that the kernel launched next raises.
inline cudaError_t start_amax(const WantedMaxima& maxima, cudaStream_t stream) {
  maxima.found->amax = true;
  return cudaMemsetAsync(maxima.amax, 0, sizeof(float), stream);
}

/// 1 / scale of a row whose largest magnitude is `top`, large enough that its inverse is finite; NaN and infinity are
/// kept.
__device__ inline float row_inverse_scale(float top, Fp8Format format = Fp8Format::kE4M3) {
  const float inverse = top / fp8_max(format);
  return top == 0.0f ? 1.0f : inverse < 1.17549435e-38f ? 1.17549435e-38f : inverse;
}

/// The scale to multiply a row with whose largest magnitude is `top`; writes row_inverse. All threads of a row call it;
/// `first`: whether this is the row's first block if several blocks share the row.
__device__ inline float settle_scale(const Fp8Output& out, float top, int64_t row, bool first = true) {
  const float inverse = row_inverse_scale(top);
  if (first && threadIdx.x == 0) out.row_inverse[row] = inverse;
  return 1.0f / inverse;
}

/// Raises *amax once per warp of the block. Reading *amax first avoids most atomics, because few warps raise it.
__device__ inline void raise_amax_by_warp(float* amax, float v) {
  v = warp_amax(v);
  if (threadIdx.x % 32 == 0 && !(v <= *static_cast<volatile float*>(amax))) raise_amax(amax, v);
}

}  // namespace trireme::kernels
