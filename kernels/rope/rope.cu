#include "kernels/rope/rope.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 128, kUnroll = 4;

/// One thread turns 16 bytes of first halves and their partners.
template <class T, int kWidth>
__device__ inline void rotate(float (&x1)[kWidth], float (&x2)[kWidth], const Vec<T, kWidth>& c, const Vec<T, kWidth>& s, float direction) {
  float cosine[kWidth], sine[kWidth];
  to_floats(c, cosine);
  to_floats(s, sine);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float a = x1[i], b = x2[i], turn = sine[i] * direction;
    x1[i] = a * cosine[i] - b * turn;
    x2[i] = b * cosine[i] + a * turn;
  }
}

/// Division by a number that is often a power of two.
struct Divider {
  unsigned divisor;
  int shift;  // -1: not a power of two
  explicit Divider(int d) : divisor(static_cast<unsigned>(d)), shift(-1) {
    for (int s = 0; s < 31; ++s)
      if (divisor == 1u << s) shift = s;
  }
  __device__ void split(unsigned x, unsigned& quotient, unsigned& remainder) const {
    quotient = shift >= 0 ? x >> shift : x / divisor;
    remainder = x - quotient * divisor;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) rotate_kernel(T* heads, const T* cos, const T* sin, int num_heads, unsigned packs_per_token, int d,
                                                          Divider packs, float direction) {
  constexpr int kPack = 16 / sizeof(T);
  const int64_t token = blockIdx.x;
  const int half = d / 2;
  T* x = heads + token * num_heads * d;
  const T *c = cos + token * half, *s = sin + token * half;
  Vec<T, kPack> x1[kUnroll], x2[kUnroll];
  for (unsigned first = blockIdx.y * kThreads * kUnroll + threadIdx.x; first < packs_per_token; first += gridDim.y * kThreads * kUnroll) {
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const unsigned index = first + k * kThreads;
      unsigned head, pack;
      packs.split(index, head, pack);
      if (index >= packs_per_token) continue;
      x1[k] = load_stream<T, kPack>(x + head * d + pack * kPack);
      x2[k] = load_stream<T, kPack>(x + head * d + half + pack * kPack);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const unsigned index = first + k * kThreads;
      unsigned head, pack;
      packs.split(index, head, pack);
      if (index >= packs_per_token) continue;
      float u[kPack], v[kPack];
      to_floats(x1[k], u);
      to_floats(x2[k], v);
      rotate(u, v, load_shared_read<T, kPack>(c + pack * kPack), load_shared_read<T, kPack>(s + pack * kPack), direction);
      store(x + head * d + pack * kPack, from_floats<T>(u));
      store(x + head * d + half + pack * kPack, from_floats<T>(v));
    }
  }
}

template <class T>
struct Source {
  const T* data;
  HeadStrides strides;
};

template <class T>
__global__ void __launch_bounds__(kThreads) merge_kernel(Source<T> dq, Source<T> dk, Source<T> dv, const T* cos, const T* sin, T* d_qkv,
                                                         Divider row_tokens, int q_heads, int kv_heads, int d, Divider packs) {
  constexpr int kPack = 16 / sizeof(T);
  const int half = d / 2, num_heads = q_heads + 2 * kv_heads;
  const unsigned packs_per_token = num_heads * packs.divisor;
  const int64_t token = blockIdx.x;
  unsigned row, position;
  row_tokens.split(blockIdx.x, row, position);
  const T *c = cos + token * half, *s = sin + token * half;
  T* out = d_qkv + token * num_heads * d;
  Vec<T, kPack> x1[kUnroll], x2[kUnroll];
  for (unsigned first = blockIdx.y * kThreads * kUnroll + threadIdx.x; first < packs_per_token; first += gridDim.y * kThreads * kUnroll) {
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const unsigned index = first + k * kThreads;
      unsigned head, pack;
      packs.split(index, head, pack);
      if (index >= packs_per_token) continue;
      int local = static_cast<int>(head);
      Source<T> from = dq;
      if (local >= q_heads + kv_heads) {
        local -= q_heads + kv_heads;
        from = dv;
      } else if (local >= q_heads) {
        local -= q_heads;
        from = dk;
      }
      const T* x = from.data + row * from.strides.row + position * from.strides.token + local * from.strides.head + pack * kPack;
      x1[k] = load_stream<T, kPack>(x);
      x2[k] = load_stream<T, kPack>(x + half);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const unsigned index = first + k * kThreads;
      unsigned head, pack;
      packs.split(index, head, pack);
      if (index >= packs_per_token) continue;
      if (static_cast<int>(head) < q_heads + kv_heads) {
        float u[kPack], v[kPack];
        to_floats(x1[k], u);
        to_floats(x2[k], v);
        rotate(u, v, load_shared_read<T, kPack>(c + pack * kPack), load_shared_read<T, kPack>(s + pack * kPack), -1.0f);
        x1[k] = from_floats<T>(u);
        x2[k] = from_floats<T>(v);
      }
      store(out + head * d + pack * kPack, x1[k]);
      store(out + head * d + half + pack * kPack, x2[k]);
    }
  }
}

dim3 grid_for(int64_t tokens, int64_t packs_per_token) {
  return dim3(static_cast<unsigned>(tokens), static_cast<unsigned>(ceil_div(packs_per_token, kThreads * kUnroll)));
}

}  // namespace

cudaError_t rope_rotate(void* heads, const void* cos, const void* sin, int64_t tokens, int num_heads, int rotated, int d, int direction,
                        Element element, cudaStream_t stream) {
  if (d % 16 != 0 || tokens > INT32_MAX || !aligned16(heads, cos, sin)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const int packs = d / 2 / static_cast<int>(16 / sizeof(T)), per_token = packs * rotated;
    if (tokens == 0 || per_token == 0) return cudaSuccess;
    rotate_kernel<T><<<grid_for(tokens, per_token), kThreads, 0, stream>>>(static_cast<T*>(heads), static_cast<const T*>(cos),
                                                                           static_cast<const T*>(sin), num_heads, static_cast<unsigned>(per_token), d,
                                                                           Divider(packs), static_cast<float>(direction));
    return cudaGetLastError();
  });
}

cudaError_t rope_merge(const void* dq, HeadStrides q_strides, const void* dk, HeadStrides k_strides, const void* dv, HeadStrides v_strides,
                       const void* cos, const void* sin, void* d_qkv, int64_t rows, int64_t row_tokens, int q_heads, int kv_heads, int d,
                       Element element, cudaStream_t stream) {
  if (d % 16 != 0 || rows * row_tokens > INT32_MAX || !aligned16(dq, dk, dv, cos, sin, d_qkv)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const int packs = d / 2 / static_cast<int>(16 / sizeof(T)), per_token = packs * (q_heads + 2 * kv_heads);
    if (rows * row_tokens == 0 || per_token == 0) return cudaSuccess;
    merge_kernel<T><<<grid_for(rows * row_tokens, per_token), kThreads, 0, stream>>>(
        {static_cast<const T*>(dq), q_strides}, {static_cast<const T*>(dk), k_strides}, {static_cast<const T*>(dv), v_strides},
        static_cast<const T*>(cos), static_cast<const T*>(sin), static_cast<T*>(d_qkv), Divider(static_cast<int>(row_tokens)), q_heads, kv_heads,
        d, Divider(packs));
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
