#include "kernels/swiglu/swiglu.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

template <class T, int kWidth>
struct Chunk {
  T value[kWidth];
};

template <class T, int kWidth>
__device__ inline Chunk<T, kWidth> load(const T* from) {
  if constexpr (kWidth == 1) return {{*from}};
  else return __builtin_bit_cast(Chunk<T, kWidth>, *reinterpret_cast<const int4*>(from));
}
template <class T, int kWidth>
__device__ inline void store(T* to, const Chunk<T, kWidth>& chunk) {
  if constexpr (kWidth == 1) *to = chunk.value[0];
  else *reinterpret_cast<int4*>(to) = __builtin_bit_cast(int4, chunk);
}

template <class T, int kWidth>
__global__ void forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y, int64_t f) {
  const int64_t token = blockIdx.y, column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (column >= f) return;
  const auto gate = load<T, kWidth>(gate_up + token * 2 * f + column), up = load<T, kWidth>(gate_up + token * 2 * f + f + column);
  Chunk<T, kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = to_float(gate.value[i]);
    out.value[i] = from_float<T>(g * sigmoid(g) * to_float(up.value[i]));
  }
  store<T, kWidth>(y + token * f + column, out);
}

template <class T, int kWidth>
__global__ void backward_kernel(const T* __restrict__ dy, const T* gate_up, T* d_gate_up, int64_t f) {
  const int64_t token = blockIdx.y, column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (column >= f) return;
  const int64_t at = token * 2 * f + column;
  const auto gate = load<T, kWidth>(gate_up + at), up = load<T, kWidth>(gate_up + at + f), grad = load<T, kWidth>(dy + token * f + column);
  Chunk<T, kWidth> d_gate, d_up;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = to_float(gate.value[i]), d = to_float(grad.value[i]), s = sigmoid(g);
    d_gate.value[i] = from_float<T>(d * to_float(up.value[i]) * s * (1.0f + g * (1.0f - s)));
    d_up.value[i] = from_float<T>(d * g * s);
  }
  store<T, kWidth>(d_gate_up + at, d_gate);
  store<T, kWidth>(d_gate_up + at + f, d_up);
}

template <class F>
cudaError_t launch(int64_t tokens, int64_t f, Element element, bool fast, const F& run) {
  if (tokens == 0 || f == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const bool packed = fast && f % kPack == 0;
    const int64_t per_block = kThreads * (packed ? kPack : 1);
    // Tokens go over grid.y, which ends at 65,535: longer inputs go in pieces.
    for (int64_t begin = 0; begin < tokens; begin += 65535) {
      const dim3 grid(static_cast<unsigned>((f + per_block - 1) / per_block), static_cast<unsigned>(tokens - begin < 65535 ? tokens - begin : 65535));
      if (packed) run(zero, std::integral_constant<int, kPack>{}, grid, begin);
      else run(zero, std::integral_constant<int, 1>{}, grid, begin);
      if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

}  // namespace

cudaError_t swiglu_forward(const void* gate_up, void* y, int64_t tokens, int64_t f, Element element, cudaStream_t stream) {
  return launch(tokens, f, element, aligned16(gate_up, y), [&](auto zero, auto width, dim3 grid, int64_t begin) {
    using T = decltype(zero);
    forward_kernel<T, decltype(width)::value><<<grid, kThreads, 0, stream>>>(static_cast<const T*>(gate_up) + begin * 2 * f,
                                                                             static_cast<T*>(y) + begin * f, f);
  });
}

cudaError_t swiglu_backward(const void* dy, const void* gate_up, void* d_gate_up, int64_t tokens, int64_t f, Element element,
                            cudaStream_t stream) {
  return launch(tokens, f, element, aligned16(dy, gate_up, d_gate_up), [&](auto zero, auto width, dim3 grid, int64_t begin) {
    using T = decltype(zero);
    backward_kernel<T, decltype(width)::value><<<grid, kThreads, 0, stream>>>(
        static_cast<const T*>(dy) + begin * f, static_cast<const T*>(gate_up) + begin * 2 * f, static_cast<T*>(d_gate_up) + begin * 2 * f, f);
  });
}

}  // namespace trireme::kernels
