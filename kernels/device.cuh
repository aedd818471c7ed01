#pragma once
// Device functions that kernels share: vector loads and stores, conversions of whole packs, reductions in a fixed
// order.

#include "kernels/element.h"

#include <cstdint>

namespace trireme::kernels {

/// kWidth adjacent elements: 16 bytes, or one element if width or alignment do not allow more.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vec {
  T value[kWidth];
};

/// Load of data that is read once: not cached in L1. Volatile: stays behind await_kernel_before().
template <class T, int kWidth>
__device__ inline Vec<T, kWidth> load_stream(const T* from) {
  if constexpr (sizeof(T) * kWidth == 16) {
    int4 raw;
    asm volatile("ld.global.L1::no_allocate.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return __builtin_bit_cast(Vec<T, kWidth>, raw);
  } else {
    static_assert(kWidth == 1);
    return {{*from}};
  }
}

/// Load of data that many blocks read and this kernel does not write: cached in L1.
template <class T, int kWidth>
__device__ inline Vec<T, kWidth> load_shared_read(const T* __restrict__ from) {
  if constexpr (sizeof(T) * kWidth == 16)
    return __builtin_bit_cast(Vec<T, kWidth>, __ldg(reinterpret_cast<const int4*>(from)));
  else
    return {{*from}};
}

template <class T, int kWidth>
__device__ inline void store(T* to, const Vec<T, kWidth>& vec) {
  *reinterpret_cast<Vec<T, kWidth>*>(to) = vec;
}

/// Stores 8 or 16 bytes in one instruction. `once`: a streaming store (st.global.cs), which L2 evicts first. Loads with
/// streaming stores come closest to the memory bandwidth (H200: 4.05 TB/s against 3.84), but a tensor that fits into L2
/// should stay there for the kernel that reads it: see streams().
template <class V>
__device__ inline void store_whole(void* to, const V& value, bool once = false) {
  if constexpr (sizeof(V) == 16) {
    const int4 raw = __builtin_bit_cast(int4, value);
    if (once)
      asm volatile("st.global.cs.v4.s32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z),
                   "r"(raw.w)
                   : "memory");
    else
      asm volatile("st.global.v4.s32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
                   : "memory");
  } else {
    static_assert(sizeof(V) == 8);
    const int2 raw = __builtin_bit_cast(int2, value);
    if (once)
      asm volatile("st.global.cs.v2.s32 [%0], {%1, %2};" ::"l"(to), "r"(raw.x), "r"(raw.y) : "memory");
    else
      asm volatile("st.global.v2.s32 [%0], {%1, %2};" ::"l"(to), "r"(raw.x), "r"(raw.y) : "memory");
  }
}
/// Whether an output of this many bytes exceeds L2 anyway (50 MB on Hopper).
__host__ __device__ inline bool streams(int64_t bytes) { return bytes > (int64_t{48} << 20); }

/// A pack as 32-bit registers; single 16-bit elements would take one register each.
template <int kCount>
struct Words {
  uint32_t word[kCount];
};

template <class T, int kWidth>
__device__ inline void to_floats(const Vec<T, kWidth>& vec, float (&out)[kWidth]) {
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
    const auto words = __builtin_bit_cast(Words<kWidth / 2>, vec);
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      const uint32_t word = words.word[i / 2];
      if constexpr (__is_same(T, __half)) {
        const float2 pair = __half22float2(__half2(__builtin_bit_cast(__half2_raw, word)));
        out[i] = pair.x;
        out[i + 1] = pair.y;
      } else {
        out[i] = __uint_as_float(word << 16);
        out[i + 1] = __uint_as_float(word & 0xffff0000u);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out[i] = to_float(vec.value[i]);
  }
}

/// sums[i] += vec[i]
template <class T, int kWidth>
__device__ inline void add_to(float* sums, const Vec<T, kWidth>& vec) {
  float v[kWidth];
  to_floats(vec, v);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[i] += v[i];
}

template <class T, int kWidth>
__device__ inline Vec<T, kWidth> from_floats(const float (&in)[kWidth]) {
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
    Words<kWidth / 2> words;
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      if constexpr (__is_same(T, __half))
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(words.word[i / 2]) : "f"(in[i + 1]), "f"(in[i]));
      else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(words.word[i / 2]) : "f"(in[i + 1]), "f"(in[i]));
    }
    return __builtin_bit_cast(Vec<T, kWidth>, words);
  } else {
    Vec<T, kWidth> vec;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) vec.value[i] = from_float<T>(in[i]);
    return vec;
  }
}

/// Before compute capability 9.0 as a * 1 + b and a * b + -0, which round once and keep the sign of a zero, too.
__device__ inline uint32_t add_bf16x2(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a) : "r"(a), "r"(0x3f803f80u), "r"(b));
#endif
  return a;
}
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(a) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return a;
}

/// Elementwise sums, rounded once. For 16-bit types one instruction adds two of them, with the same bits as fp32
/// addition and one rounding.
template <class T, int kWidth>
__device__ inline Vec<T, kWidth> add(const Vec<T, kWidth>& a, const Vec<T, kWidth>& b) {
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
    const auto x = __builtin_bit_cast(Words<kWidth / 2>, a), y = __builtin_bit_cast(Words<kWidth / 2>, b);
    Words<kWidth / 2> sum;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      if constexpr (__is_same(T, __half))
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum.word[i]) : "r"(x.word[i]), "r"(y.word[i]));
      else
        sum.word[i] = add_bf16x2(x.word[i], y.word[i]);
    }
    return __builtin_bit_cast(Vec<T, kWidth>, sum);
  } else {
    Vec<T, kWidth> sum;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum.value[i] = from_float<T>(to_float(a.value[i]) + to_float(b.value[i]));
    return sum;
  }
}

/// Elementwise products, rounded once, in the same way as add().
template <class T, int kWidth>
__device__ inline Vec<T, kWidth> multiply(const Vec<T, kWidth>& a, const Vec<T, kWidth>& b) {
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {
    const auto x = __builtin_bit_cast(Words<kWidth / 2>, a), y = __builtin_bit_cast(Words<kWidth / 2>, b);
    Words<kWidth / 2> product;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      if constexpr (__is_same(T, __half))
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product.word[i]) : "r"(x.word[i]), "r"(y.word[i]));
      else
        product.word[i] = multiply_bf16x2(x.word[i], y.word[i]);
    }
    return __builtin_bit_cast(Vec<T, kWidth>, product);
  } else {
    Vec<T, kWidth> product;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) product.value[i] = from_float<T>(to_float(a.value[i]) * to_float(b.value[i]));
    return product;
  }
}

/// The same 16 bytes, forced into four registers. The asm statement keeps the compiler from computing on unpacked
/// copies made earlier and from giving each 16-bit element a register of its own.
template <class T, int kWidth>
__device__ inline Vec<T, kWidth> packed(const Vec<T, kWidth>& vec) {
  static_assert(sizeof(T) * kWidth == 16);
  int4 raw = __builtin_bit_cast(int4, vec);
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
  return __builtin_bit_cast(Vec<T, kWidth>, raw);
}

/// Converts a pack to words. Packs that are kept for a second pass are stored as words, because the compiler spreads an
/// array of 16-bit elements over one register per element if a branch lies in between.
template <class T, int kWidth>
__device__ inline Words<4> as_words(const Vec<T, kWidth>& vec) {
  return __builtin_bit_cast(Words<4>, vec);
}
template <class T>
__device__ inline Words<4> load_words(const T* from) {
  return as_words(load_stream<T, 16 / sizeof(T)>(from));
}
template <class T>
__device__ inline Vec<T, 16 / sizeof(T)> as_pack(const Words<4>& words) {
  return __builtin_bit_cast(Vec<T, 16 / sizeof(T)>, words);
}

/// kCount elements of a pack, from word `first` on.
template <class T, int kCount>
__device__ inline Vec<T, kCount> part_of(const Words<4>& words, int first) {
  Words<kCount* static_cast<int>(sizeof(T)) / 4> part;
#pragma unroll
  for (int i = 0; i < kCount * static_cast<int>(sizeof(T)) / 4; ++i) part.word[i] = words.word[first + i];
  return __builtin_bit_cast(Vec<T, kCount>, part);
}

/// to_floats() for a second pass over the same packs that unpacks them again. ptxas ignores packed() here and would
/// keep the unpacked values in twice the registers; byte selectors that are known only at run time prevent that.
/// `count`: any non-negative number.
class UnpackAgain {
 public:
  __device__ explicit UnpackAgain(int64_t count)
      : low_(0x1044u + static_cast<uint32_t>(count >> 63)), high_(low_ + 0x2200u) {}
  template <class T, int kWidth>
  __device__ void operator()(const Vec<T, kWidth>& vec, float (&out)[kWidth]) const {
    if constexpr (__is_same(T, __nv_bfloat16)) {
      const auto words = __builtin_bit_cast(Words<kWidth / 2>, vec);
#pragma unroll
      for (int i = 0; i < kWidth; i += 2) {
        out[i] = __uint_as_float(__byte_perm(words.word[i / 2], 0, low_));
        out[i + 1] = __uint_as_float(__byte_perm(words.word[i / 2], 0, high_));
      }
    } else {
      to_floats(vec, out);
    }
  }

 private:
  uint32_t low_, high_;
};

/// 2^x and 1 / x in one instruction each, relative error about 2^-22; subnormal numbers count as zero.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class V>
__device__ inline V warp_sum(V v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

/// Sums of kCount values over the `threads` threads of a row, which are a warp or all threads of the block. All threads
/// get the same bits. `scratch` holds 32 * kCount floats; two consecutive calls of a block must use different scratch
/// memory.
template <int kCount>
__device__ inline void row_sum(float (&v)[kCount], int threads, float* scratch) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = warp_sum(v[i]);
  if (threads == 32) return;
  const int warp = threadIdx.x / 32, warps = threads / 32;
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scratch[warp * kCount + i] = v[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = 0.0f;
#pragma unroll 4
  for (int w = 0; w < warps; ++w) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] += scratch[w * kCount + i];
  }
}

/// Copies 16 bytes from global to shared memory asynchronously (cp.async); both addresses 16-byte aligned.
__device__ inline void copy_async16(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace trireme::kernels
