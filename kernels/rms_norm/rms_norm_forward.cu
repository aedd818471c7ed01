#include "kernels/fp8/fp8.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

namespace {

enum class Sink { kPlain, kFp8Tensor, kFp8Row };

constexpr int kBlockRows = 4, kScalarThreads = 256;

/// Greatest of the values of a row's threads; the same rules as row_sum.
__device__ inline float row_amax(float v, int threads, float* scratch) {
  v = warp_amax(v);
  if (threads == 32) return v;
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  for (int w = 0; w < threads / 32; ++w) v = amax_of(v, scratch[w]);
  return v;
}

template <class T, Sink kSink>
__global__ void __launch_bounds__(kMaxRowThreads, 1) forward_kernel(const RmsNormForward a) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kRowElements / kWidth;
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

/// Any width and alignment: the row waits in shared memory between the passes, each thread touching its own columns only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const RmsNormForward a) {
  extern __shared__ float values[];
  __shared__ float scratch[2][32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const int columns = static_cast<int>(a.columns);
  float square[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    T s = static_cast<const T*>(a.x)[base + c];
    if (a.residual != nullptr) s = from_float<T>(to_float(s) + to_float(static_cast<const T*>(a.residual)[base + c]));
    if (a.sum != nullptr) static_cast<T*>(a.sum)[base + c] = s;
    values[c] = to_float(s);
    square[0] += values[c] * values[c];
  }
  row_sum(square, kScalarThreads, scratch[0]);
  const float rstd = rsqrtf(square[0] / static_cast<float>(columns) + a.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = rstd;
  float amax = 0.0f;
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const T y = from_float<T>(to_float(from_float<T>(values[c] * rstd)) * to_float(static_cast<const T*>(a.weight)[c]));
    if (a.y != nullptr) static_cast<T*>(a.y)[base + c] = y;
    values[c] = to_float(y);
    amax = amax_of(amax, values[c]);
  }
  if (a.fp8.data == nullptr) return;
  const float top = row_amax(amax, kScalarThreads, scratch[1]);
  float scale;
  if (a.fp8.scaling == Fp8Scaling::kRow) {
    const float inverse = top > 0.0f ? top / fp8_max(a.fp8.format) : 1.0f;
    scale = 1.0f / inverse;
    if (threadIdx.x == 0) a.fp8.row_inverse[row] = inverse;
  } else {
    scale = *a.fp8.scale;
    if (threadIdx.x == 0 && a.fp8.amax != nullptr) raise_amax(a.fp8.amax, top);
  }
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const float value[1] = {values[c]};
    store_fp8(a.fp8.data + base + c, value, scale, a.fp8.format);
  }
}

template <class T, Sink kSink>
cudaError_t launch(const RmsNormForward& a, cudaStream_t stream) {
  const RowGeometry g = row_geometry(a.columns, 16 / sizeof(T), kBlockRows);
  const dim3 block(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows));
  forward_kernel<T, kSink><<<static_cast<unsigned>(ceil_div(a.rows, g.rows)), block, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_scalar(const RmsNormForward& a, cudaStream_t stream) {
  const size_t shared = a.columns * sizeof(float);
  if (const cudaError_t error = allow_shared_memory(forward_scalar_kernel<T>, shared); error != cudaSuccess) return error;
  forward_scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (a.y == nullptr && a.fp8.data == nullptr)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || !aligned16(a.x, a.residual, a.weight, a.sum, a.y, a.fp8.data)) return launch_scalar<T>(a, stream);
    if (a.fp8.data == nullptr) return launch<T, Sink::kPlain>(a, stream);
    if (a.fp8.scaling == Fp8Scaling::kRow) return launch<T, Sink::kFp8Row>(a, stream);
    return launch<T, Sink::kFp8Tensor>(a, stream);
  });
}

}  // namespace trireme::kernels
