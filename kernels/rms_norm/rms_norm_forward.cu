#include "kernels/fp8/fp8.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

namespace {

enum class Sink { kPlain, kFp8Tensor, kFp8Row };

constexpr int kMaxThreads = 1024, kBlockRows = 4;

/// Greatest of the values of a row's threads; the same rules as row_sum.
__device__ inline float row_amax(float v, int threads, float* scratch) {
  v = warp_amax(v);
  if (threads == 32) return v;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  for (int w = 0; w < threads / 32; ++w) v = amax_of(v, scratch[w]);
  return v;
}

template <class T, int kWidth, int kPacks, Sink kSink>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const RmsNormForward a) {
  __shared__ float scratch[2][32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;  // whole warps only: a block of several warps per row has one row
  const int columns = static_cast<int>(a.columns), stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  const int64_t base = row * columns;

  Vec<T, kWidth> x[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (first + p * stride < columns) x[p] = load_stream<T, kWidth>(static_cast<const T*>(a.x) + base + first + p * stride);
  if (a.residual != nullptr) {
    Vec<T, kWidth> r[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (first + p * stride < columns) r[p] = load_stream<T, kWidth>(static_cast<const T*>(a.residual) + base + first + p * stride);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (first + p * stride < columns) {
        float u[kWidth], v[kWidth];
        to_floats(x[p], u);
        to_floats(r[p], v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) u[i] += v[i];
        x[p] = from_floats<T>(u);
      }
    }
  }
  if (a.sum != nullptr) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (first + p * stride < columns) store(static_cast<T*>(a.sum) + base + first + p * stride, x[p]);
  }
  float square[1] = {0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (first + p * stride < columns) {
      float u[kWidth];
      to_floats(x[p], u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) square[0] += u[i] * u[i];
    }
  }
  row_sum(square, blockDim.x, scratch[0]);
  const float rstd = rsqrtf(square[0] / static_cast<float>(columns) + a.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = rstd;

  float amax = 0.0f;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (first + p * stride < columns) {
      float u[kWidth], w[kWidth];
      to_floats(x[p], u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) u[i] *= rstd;
      to_floats(from_floats<T>(u), u);
      to_floats(load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + first + p * stride), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) u[i] *= w[i];
      x[p] = from_floats<T>(u);
      if (kSink == Sink::kPlain || a.y != nullptr) store(static_cast<T*>(a.y) + base + first + p * stride, x[p]);
      if constexpr (kSink != Sink::kPlain) {
        to_floats(x[p], u);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) amax = amax_of(amax, u[i]);
      }
    }
  }
  if constexpr (kSink != Sink::kPlain) {
    float scale;
    if constexpr (kSink == Sink::kFp8Row) {
      const float top = row_amax(amax, blockDim.x, scratch[1]);
      const float inverse = top > 0.0f ? top / fp8_max(a.fp8.format) : 1.0f;
      scale = 1.0f / inverse;
      if (threadIdx.x == 0) a.fp8.row_inverse[row] = inverse;
    } else {
      scale = *a.fp8.scale;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (first + p * stride < columns) {
        float u[kWidth];
        to_floats(x[p], u);
        store_fp8(a.fp8.data + base + first + p * stride, u, scale, a.fp8.format);
      }
    }
    if (kSink == Sink::kFp8Tensor && a.fp8.amax != nullptr) {
      amax = warp_amax(amax);
      // Nearly every warp loses: reading first spares the atomic.
      if (threadIdx.x % 32 == 0 && !(amax <= *static_cast<volatile float*>(a.fp8.amax))) raise_amax(a.fp8.amax, amax);
    }
  }
}

template <class T, int kWidth, int kPacks, Sink kSink>
cudaError_t launch(const RmsNormForward& a, cudaStream_t stream) {
  const RowGeometry g = row_geometry(a.columns, kWidth, kPacks, kMaxThreads, kBlockRows);
  if (!g.fits) return cudaErrorInvalidValue;
  const dim3 block(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows));
  forward_kernel<T, kWidth, kPacks, kSink><<<static_cast<unsigned>(ceil_div(a.rows, g.rows)), block, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int kWidth, int kPacks>
cudaError_t launch_sink(const RmsNormForward& a, cudaStream_t stream) {
  if (a.fp8.data == nullptr) return launch<T, kWidth, kPacks, Sink::kPlain>(a, stream);
  if (a.fp8.scaling == Fp8Scaling::kRow) return launch<T, kWidth, kPacks, Sink::kFp8Row>(a, stream);
  return launch<T, kWidth, kPacks, Sink::kFp8Tensor>(a, stream);
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (a.y == nullptr && a.fp8.data == nullptr)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    if (a.columns % kPack == 0 && aligned16(a.x, a.residual, a.weight, a.sum, a.y, a.fp8.data)) return launch_sink<T, kPack, 4>(a, stream);
    return launch_sink<T, 1, 16>(a, stream);
  });
}

}  // namespace trireme::kernels
