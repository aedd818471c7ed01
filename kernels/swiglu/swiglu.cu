#include "kernels/swiglu/swiglu.h"

#include "kernels/launch.h"
#include "kernels/swiglu/swiglu.cuh"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 2;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* gate_up, T* y, int64_t f) {
  const int64_t token = blockIdx.y,
                first = (static_cast<int64_t>(blockIdx.x) * kUnroll * kThreads + threadIdx.x) * kWidth;
  const T* row = gate_up + token * 2 * f;
  Vec<T, kWidth> gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kThreads * kWidth;
    if (column >= f) continue;
    gate[k] = load_stream<T, kWidth>(row + column);
    up[k] = load_stream<T, kWidth>(row + f + column);
  }
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kThreads * kWidth;
    if (column >= f) continue;
    float g[kWidth], u[kWidth];
    to_floats(gate[k], g);
    to_floats(up[k], u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = swiglu<T>(g[i], u[i]);
    store(y + token * f + column, from_floats<T>(g));
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) backward_kernel(const T* dy, const T* gate_up, T* d_gate_up, int64_t f) {
  const int64_t token = blockIdx.y,
                first = (static_cast<int64_t>(blockIdx.x) * kUnroll * kThreads + threadIdx.x) * kWidth;
  const T* row = gate_up + token * 2 * f;
  T* out = d_gate_up + token * 2 * f;
  Vec<T, kWidth> gate[kUnroll], up[kUnroll], grad[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kThreads * kWidth;
    if (column >= f) continue;
    gate[k] = load_stream<T, kWidth>(row + column);
    up[k] = load_stream<T, kWidth>(row + f + column);
    grad[k] = load_stream<T, kWidth>(dy + token * f + column);
  }
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kThreads * kWidth;
    if (column >= f) continue;
    float g[kWidth], u[kWidth], d[kWidth];
    to_floats(gate[k], g);
    to_floats(up[k], u);
    to_floats(grad[k], d);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) swiglu_gradient<T>(d[i], g[i], u[i]);
    store(out + column, from_floats<T>(g));
    store(out + f + column, from_floats<T>(u));
  }
}

template <class F>
cudaError_t launch(int64_t tokens, int64_t f, Element element, bool aligned, const F& run) {
  if (tokens == 0 || f == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const bool packed = aligned && f % kPack == 0;
    const unsigned blocks = static_cast<unsigned>(ceil_div(f, kThreads * kUnroll * (packed ? kPack : 1)));
    return launch_pieces(tokens, [&](int64_t begin, unsigned count) {
      const dim3 grid(blocks, count);
      if (packed)
        run(zero, std::integral_constant<int, kPack>{}, grid, begin);
      else
        run(zero, std::integral_constant<int, 1>{}, grid, begin);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t swiglu_forward(const void* gate_up, void* y, int64_t tokens, int64_t f, Element element,
                           cudaStream_t stream) {
  return launch(tokens, f, element, aligned16(gate_up, y), [&](auto zero, auto width, dim3 grid, int64_t begin) {
    using T = decltype(zero);
    forward_kernel<T, decltype(width)::value><<<grid, kThreads, 0, stream>>>(
        static_cast<const T*>(gate_up) + begin * 2 * f, static_cast<T*>(y) + begin * f, f);
  });
}

cudaError_t swiglu_backward(const void* dy, const void* gate_up, void* d_gate_up, int64_t tokens, int64_t f,
                            Element element, cudaStream_t stream) {
  return launch(tokens, f, element, aligned16(dy, gate_up, d_gate_up),
                [&](auto zero, auto width, dim3 grid, int64_t begin) {
                  using T = decltype(zero);
                  backward_kernel<T, decltype(width)::value><<<grid, kThreads, 0, stream>>>(
                      static_cast<const T*>(dy) + begin * f, static_cast<const T*>(gate_up) + begin * 2 * f,
                      static_cast<T*>(d_gate_up) + begin * 2 * f, f);
                });
}

}  // namespace trireme::kernels
