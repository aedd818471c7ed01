#include "kernels/rope/rope.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256;

/// One thread turns one 16-byte pack of first halves and its partner.
template <class T>
__device__ inline void rotate_pack(Pack<T>& x1, Pack<T>& x2, const Pack<T>& c, const Pack<T>& s, float direction) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; ++i) {
    const float a = to_float(x1.value[i]), b = to_float(x2.value[i]), cosine = to_float(c.value[i]), sine = to_float(s.value[i]) * direction;
    x1.value[i] = from_float<T>(a * cosine - b * sine);
    x2.value[i] = from_float<T>(b * cosine + a * sine);
  }
}

template <class T>
__global__ void rotate_kernel(T* heads, const T* __restrict__ cos, const T* __restrict__ sin, int64_t total, int num_heads, int rotated, int d,
                              float direction) {
  constexpr int kPack = Pack<T>::kCount;
  const int half = d / 2, packs = half / kPack;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= total) return;
  const int pack = static_cast<int>(index % packs);
  const int64_t head_index = index / packs;
  const int64_t token = head_index / rotated;
  const int head = static_cast<int>(head_index % rotated);
  T* x = heads + (token * num_heads + head) * d + pack * kPack;
  Pack<T> x1 = *reinterpret_cast<Pack<T>*>(x), x2 = *reinterpret_cast<Pack<T>*>(x + half);
  const int64_t angle = token * half + pack * kPack;
  rotate_pack(x1, x2, *reinterpret_cast<const Pack<T>*>(cos + angle), *reinterpret_cast<const Pack<T>*>(sin + angle), direction);
  *reinterpret_cast<Pack<T>*>(x) = x1;
  *reinterpret_cast<Pack<T>*>(x + half) = x2;
}

template <class T>
__global__ void merge_kernel(const T* __restrict__ dq, HeadStrides q_strides, const T* __restrict__ dk, HeadStrides k_strides,
                             const T* __restrict__ dv, HeadStrides v_strides, const T* __restrict__ cos, const T* __restrict__ sin, T* d_qkv,
                             int64_t total, int64_t row_tokens, int q_heads, int kv_heads, int d) {
  constexpr int kPack = Pack<T>::kCount;
  const int half = d / 2, packs = half / kPack, num_heads = q_heads + 2 * kv_heads;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= total) return;
  const int pack = static_cast<int>(index % packs);
  const int64_t head_index = index / packs;
  const int64_t token = head_index / num_heads;
  const int head = static_cast<int>(head_index % num_heads);
  const int64_t row = token / row_tokens, position = token % row_tokens;
  const T* from;
  HeadStrides strides;
  int local;
  if (head < q_heads) from = dq, strides = q_strides, local = head;
  else if (head < q_heads + kv_heads) from = dk, strides = k_strides, local = head - q_heads;
  else from = dv, strides = v_strides, local = head - q_heads - kv_heads;
  const T* x = from + row * strides.row + position * strides.token + local * strides.head + pack * kPack;
  Pack<T> x1 = *reinterpret_cast<const Pack<T>*>(x), x2 = *reinterpret_cast<const Pack<T>*>(x + half);
  if (head < q_heads + kv_heads) {
    const int64_t angle = token * half + pack * kPack;
    rotate_pack(x1, x2, *reinterpret_cast<const Pack<T>*>(cos + angle), *reinterpret_cast<const Pack<T>*>(sin + angle), -1.0f);
  }
  T* out = d_qkv + (token * num_heads + head) * d + pack * kPack;
  *reinterpret_cast<Pack<T>*>(out) = x1;
  *reinterpret_cast<Pack<T>*>(out + half) = x2;
}

unsigned blocks_for(int64_t total) { return static_cast<unsigned>((total + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t rope_rotate(void* heads, const void* cos, const void* sin, int64_t tokens, int num_heads, int rotated, int d, int direction,
                        Element element, cudaStream_t stream) {
  if (d % 16 != 0 || !aligned16(heads, cos, sin)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t total = tokens * rotated * (d / 2 / Pack<T>::kCount);
    if (total == 0) return cudaSuccess;
    rotate_kernel<T><<<blocks_for(total), kThreads, 0, stream>>>(static_cast<T*>(heads), static_cast<const T*>(cos), static_cast<const T*>(sin), total,
                                                                 num_heads, rotated, d, static_cast<float>(direction));
    return cudaGetLastError();
  });
}

cudaError_t rope_merge(const void* dq, HeadStrides q_strides, const void* dk, HeadStrides k_strides, const void* dv, HeadStrides v_strides,
                       const void* cos, const void* sin, void* d_qkv, int64_t rows, int64_t row_tokens, int q_heads, int kv_heads, int d,
                       Element element, cudaStream_t stream) {
  if (d % 16 != 0 || !aligned16(dq, dk, dv, cos, sin, d_qkv)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t total = rows * row_tokens * (q_heads + 2 * kv_heads) * (d / 2 / Pack<T>::kCount);
    if (total == 0) return cudaSuccess;
    merge_kernel<T><<<blocks_for(total), kThreads, 0, stream>>>(static_cast<const T*>(dq), q_strides, static_cast<const T*>(dk), k_strides,
                                                                static_cast<const T*>(dv), v_strides, static_cast<const T*>(cos),
                                                                static_cast<const T*>(sin), static_cast<T*>(d_qkv), total, row_tokens, q_heads,
                                                                kv_heads, d);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
