#include "kernels/fp8/fp8.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_pipeline.cuh"

namespace trireme::kernels {

namespace {

enum class Sink { kPlain, kFp8Tensor, kFp8Row };

constexpr int kElements = 32, kMaxThreads = kMaxColumns / kElements, kBlocksPerSm = 8, kScalarThreads = 256;

template <class T, int kStages, Sink kSink>
__global__ void __launch_bounds__(kMaxThreads, 2) forward_kernel(const RmsNormForward a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[8][3][32];
  using Pipeline = RowPipeline<T, kElements, kStages, 2>;
  constexpr int kWidth = Pipeline::kWidth, kPacks = Pipeline::kPacks;
  const bool residual = a.residual != nullptr;
  Pipeline rows(shared, {static_cast<const T*>(a.x), static_cast<const T*>(a.residual)}, residual ? 2 : 1, a.rows, static_cast<int>(a.columns));
  const auto weight = [&](int p) { return load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + rows.column(p)); };
  Amax<T> amax;
  for (int turn = 0; rows.row < rows.rows; rows.advance(), turn ^= 1) {
    rows.acquire();
    float square[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!rows.holds(p)) continue;
      float u[kWidth];
      to_floats(rows.at(0, p), u);
      if (residual) {
        float v[kWidth];
        to_floats(rows.at(1, p), v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) u[i] += v[i];
        const Vec<T, kWidth> sum = from_floats<T>(u);
        rows.at(0, p) = sum;
        to_floats(sum, u);
      }
      if (a.sum != nullptr) store(static_cast<T*>(a.sum) + rows.offset(p), rows.at(0, p));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) square[0] += u[i] * u[i];
    }
    row_sum(square, blockDim.x, scratch[threadIdx.y][turn]);
    const float rstd = rsqrtf(square[0] / static_cast<float>(rows.columns) + a.eps);
    if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[rows.row] = rstd;

    if constexpr (kSink == Sink::kFp8Row) amax = Amax<T>();
    const float scale = kSink == Sink::kFp8Tensor ? *a.fp8.scale : 0.0f;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!rows.holds(p)) continue;
      float u[kWidth], w[kWidth];
      to_floats(rows.at(0, p), u);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) u[i] *= rstd;
      to_floats(from_floats<T>(u), u);
      to_floats(weight(p), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) u[i] *= w[i];
      const Vec<T, kWidth> y = from_floats<T>(u);
      if (kSink == Sink::kPlain || a.y != nullptr) store(static_cast<T*>(a.y) + rows.offset(p), y);
      if constexpr (kSink != Sink::kPlain) amax.add(y);
      if constexpr (kSink == Sink::kFp8Row) rows.at(0, p) = y;
      if constexpr (kSink == Sink::kFp8Tensor) {
        to_floats(y, u);
        store_fp8(a.fp8.data + rows.offset(p), u, scale, a.fp8.format);
      }
    }
    if constexpr (kSink == Sink::kFp8Row) {
      // The next row's first sum comes between two of these: one scratch is enough.
      const float inverse = row_inverse_scale(row_amax(amax.get(), blockDim.x, scratch[threadIdx.y][2]), a.fp8.format), factor = 1.0f / inverse;
      if (threadIdx.x == 0) a.fp8.row_inverse[rows.row] = inverse;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!rows.holds(p)) continue;
        float u[kWidth];
        to_floats(rows.at(0, p), u);
        store_fp8(a.fp8.data + rows.offset(p), u, factor, a.fp8.format);
      }
    }
  }
  if (kSink == Sink::kFp8Tensor && a.fp8.amax != nullptr) raise_amax_by_warp(a.fp8.amax, amax.get());
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
    const float inverse = row_inverse_scale(top, a.fp8.format);
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

template <class T, int kStages, Sink kSink>
cudaError_t launch(const RmsNormForward& a, const RowGeometry& g, size_t shared, cudaStream_t stream) {
  const auto kernel = forward_kernel<T, kStages, kSink>;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, g.threads * g.rows, shared, kBlocksPerSm, ceil_div(a.rows, g.rows));
  kernel<<<static_cast<unsigned>(blocks), dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream>>>(a);
  return cudaGetLastError();
}

template <class T, Sink kSink>
cudaError_t launch_stages(const RmsNormForward& a, cudaStream_t stream) {
  const RowGeometry g = row_geometry(a.columns, kElements);
  const size_t bytes = stage_bytes<T, kElements>(g, a.residual != nullptr ? 2 : 1);
  if (3 * bytes <= kSharedLimit / 4) return launch<T, 3, kSink>(a, g, 3 * bytes, stream);
  return launch<T, 2, kSink>(a, g, 2 * bytes, stream);
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
    // fp32 rows with a residual of more than about 12,000 columns: two stages do not fit.
    if (2 * stage_bytes<T, kElements>(row_geometry(a.columns, kElements), a.residual != nullptr ? 2 : 1) > kSharedLimit) return launch_scalar<T>(a, stream);
    if (a.fp8.data == nullptr) return launch_stages<T, Sink::kPlain>(a, stream);
    if (a.fp8.scaling == Fp8Scaling::kRow) return launch_stages<T, Sink::kFp8Row>(a, stream);
    return launch_stages<T, Sink::kFp8Tensor>(a, stream);
  });
}

}  // namespace trireme::kernels
