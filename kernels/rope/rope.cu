#include "kernels/rope/rope.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

#include <bit>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kStages = 2;
constexpr int64_t kStageBytes = 32 * 1024;

/// Integer division by a number that is often a power of two.
struct Divider {
  int divisor, shift;  // shift -1: not a power of two
  explicit Divider(int d)
      : divisor(d),
        shift(std::has_single_bit(static_cast<unsigned>(d)) ? std::countr_zero(static_cast<unsigned>(d)) : -1) {}
  __device__ int quotient(int x) const { return shift >= 0 ? x >> shift : x / divisor; }
};

/// The source of a token's heads: the packed tensor itself, or dq, dk and dv with their strides.
template <class T>
struct Packed {
  const T* data;
  int num_heads, d;
  struct Place {
    const T* heads;
    int d;
    __device__ const T* head(int head) const { return heads + head * d; }
  };
  __device__ Place place(int64_t token) const { return {data + token * num_heads * d, d}; }
};

template <class T>
struct Source {
  const T* data;
  HeadStrides strides;
  __device__ const T* at(int64_t token) const { return data + token * strides.token; }
};
template <class T>
struct Parts {
  Source<T> q, k, v;
  int q_heads, kv_heads;
  struct Place {
    const T *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    int q_heads, kv_heads;
    __device__ const T* head(int head) const {
      if (head < q_heads) return q + head * q_stride;
      head -= q_heads;
      return head < kv_heads ? k + head * k_stride : v + (head - kv_heads) * v_stride;
    }
  };
  __device__ Place place(int64_t token) const {
    return {q.at(token), k.at(token), v.at(token), q.strides.head, k.strides.head, v.strides.head, q_heads, kv_heads};
  }
};

/// What both kernels do with a token's heads: rotate the first `rotated` ones, copy the rest up to `heads`.
template <class T>
struct Turn {
  T* out;  // [tokens, num_heads, d]
  const T *cos, *sin;
  int64_t tokens;
  int num_heads, heads, rotated, d, heads_per_block;
  float direction;
};

/// A persistent block processes heads_per_block heads of one token after another. The next token's heads and angles are
/// copied to shared memory meanwhile; both halves of a head are read from there, whichever threads copied them.
template <class T, class From>
__global__ void __launch_bounds__(kThreads) turn_kernel(const From from, const Turn<T> a, const Divider packs) {
  await_kernel_before();
  constexpr int kPack = 16 / sizeof(T);
  using Wide = Vec<T, kPack>;
  extern __shared__ int4 shared[];
  const int first_head = static_cast<int>(blockIdx.y) * a.heads_per_block,
            heads = min(a.heads_per_block, a.heads - first_head);
  const int count = heads * packs.divisor, half = packs.divisor / 2,
            stage_packs = (a.heads_per_block + 1) * packs.divisor;
  const auto fetch = [&](int64_t token, int stage) {
    Wide* to = reinterpret_cast<Wide*>(shared) + stage * stage_packs;
    const auto place = from.place(token);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const int head = packs.quotient(i);
      copy_async16(to + i, place.head(first_head + head) + (i - head * packs.divisor) * kPack);
    }
    // The angles are stored like one more head: cosines, then sines.
    if (const int i = static_cast<int>(threadIdx.x); i < packs.divisor)
      copy_async16(to + a.heads_per_block * packs.divisor + i,
                   (i < half ? a.cos : a.sin) + token * (a.d / 2) + (i < half ? i : i - half) * kPack);
    copy_async_commit();
  };
  int64_t token = blockIdx.x;
  int stage = 0;
  if (token < a.tokens) fetch(token, stage);
  for (; token < a.tokens; token += gridDim.x, stage ^= 1) {
    if (token + gridDim.x < a.tokens) {
      fetch(token + gridDim.x, stage ^ 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();
    const Wide *own = reinterpret_cast<const Wide*>(shared) + stage * stage_packs,
               *angles = own + a.heads_per_block * packs.divisor;
    T* out = a.out + (token * a.num_heads + first_head) * a.d;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const int head = packs.quotient(i), within = i - head * packs.divisor;
      Wide x = own[i];
      if (first_head + head < a.rotated) {
        const bool low = within < half;
        const int angle = low ? within : within - half;
        const float sign = low ? -a.direction : a.direction;
        float u[kPack], v[kPack], c[kPack], s[kPack];
        to_floats(x, u);
        to_floats(own[low ? i + half : i - half], v);
        to_floats(angles[angle], c);
        to_floats(angles[half + angle], s);
#pragma unroll
        for (int k = 0; k < kPack; ++k) u[k] = u[k] * c[k] + v[k] * (sign * s[k]);
        x = from_floats<T>(u);
      }
      store(out + static_cast<int64_t>(i) * kPack, x);
    }
    __syncthreads();  // the next copies overwrite this buffer
  }
}

template <class T, class From>
cudaError_t launch(const From& from, Turn<T> turn, cudaStream_t stream) {
  if (turn.tokens == 0 || turn.heads == 0) return cudaSuccess;
  const int packs = turn.d * static_cast<int>(sizeof(T)) / 16;
  if (packs > kThreads) return cudaErrorInvalidValue;
  const int64_t head_bytes = int64_t{turn.d} * static_cast<int64_t>(sizeof(T)), fitting = kStageBytes / head_bytes;
  const int64_t groups = ceil_div(turn.heads, fitting > 0 ? fitting : 1);
  turn.heads_per_block = static_cast<int>(ceil_div(turn.heads, groups));
  const size_t shared = static_cast<size_t>(kStages * (turn.heads_per_block + 1) * head_bytes);
  if (const cudaError_t error = allow_shared_memory(turn_kernel<T, From>, shared); error != cudaSuccess) return error;
  int resident = 0;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, turn_kernel<T, From>, kThreads, shared);
      error != cudaSuccess)
    return error;
  const int64_t blocks = ceil_div(int64_t{multiprocessors()} * resident, groups);
  const dim3 grid(static_cast<unsigned>(blocks < turn.tokens ? blocks : turn.tokens), static_cast<unsigned>(groups));
  return launch_behind(turn_kernel<T, From>, grid, kThreads, shared, stream, from, turn, Divider(packs));
}

}  // namespace

cudaError_t rope_rotate(void* heads, const void* cos, const void* sin, int64_t tokens, int num_heads, int rotated,
                        int d, int direction, Element element, cudaStream_t stream) {
  if (d % 16 != 0 || tokens > INT32_MAX || !aligned16(heads, cos, sin)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const Turn<T> turn{static_cast<T*>(heads),
                       static_cast<const T*>(cos),
                       static_cast<const T*>(sin),
                       tokens,
                       num_heads,
                       rotated,
                       rotated,
                       d,
                       0,
                       static_cast<float>(direction)};
    return launch(Packed<T>{turn.out, num_heads, d}, turn, stream);
  });
}

cudaError_t rope_merge(const void* dq, HeadStrides q_strides, const void* dk, HeadStrides k_strides, const void* dv,
                       HeadStrides v_strides, const void* cos, const void* sin, void* d_qkv, int64_t tokens,
                       int q_heads, int kv_heads, int d, Element element, cudaStream_t stream) {
  if (d % 16 != 0 || tokens > INT32_MAX || !aligned16(dq, dk, dv, cos, sin, d_qkv)) return cudaErrorInvalidValue;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const int heads = q_heads + 2 * kv_heads;
    const Turn<T> turn{static_cast<T*>(d_qkv),
                       static_cast<const T*>(cos),
                       static_cast<const T*>(sin),
                       tokens,
                       heads,
                       heads,
                       q_heads + kv_heads,
                       d,
                       0,
                       -1.0f};
    const Parts<T> parts{{static_cast<const T*>(dq), q_strides},
                         {static_cast<const T*>(dk), k_strides},
                         {static_cast<const T*>(dv), v_strides},
                         q_heads,
                         kv_heads};
    return launch(parts, turn, stream);
  });
}

}  // namespace trireme::kernels
