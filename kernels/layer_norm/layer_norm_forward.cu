#include "kernels/fp8/fp8.cuh"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/row_dropout.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kMaxThreads = 512, kScalarThreads = 256;
/// Of a row, for a thread.
template <class T>
constexpr int kElements = sizeof(T) == 2 ? 32 : 16;

template <class T, bool kFp8, bool kPrologue>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const LayerNormForward a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[3][32];
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth,
                kStages = kPrologue ? 1 : 2;
  using Pack = Vec<T, kWidth>;
  const bool residual = kPrologue && a.residual != nullptr;
  RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  const int64_t row_bytes = a.columns * static_cast<int64_t>(sizeof(T));
  char* free = shared;
  RowPrefetch<kPacks, 16, kStages> input(free, a.x, row_bytes),
      residuals(free, a.residual, row_bytes, residual);
  start_inputs<kStages>(cursor, input, residuals);
  const RowVector<T, kPacks> gammas(a.gamma, cursor), betas(a.beta, cursor);
  const float share = __fdividef(1.0f, static_cast<float>(a.columns));
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    const int64_t base = cursor.row * a.columns;
    RowMask mask;
    if (kPrologue && a.dropout.ids != nullptr) mask = RowMask(a.dropout, cursor.row, a.columns);
    Pack s[kPacks];
    float total[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      s[p] = packed(input.template take<Pack>(p, cursor));
      float v[kWidth];
      if constexpr (kPrologue) {
        const int column = cursor.index(p) * kWidth;
        if (a.bias != nullptr)
          s[p] = add(s[p], load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + column));
        if (a.dropout.ids != nullptr) {
          to_floats(s[p], v);
          mask.apply(v, column);
          s[p] = from_floats<T>(v);
        }
        if (residual) s[p] = add(s[p], residuals.template take<Pack>(p, cursor));
        s[p] = packed(s[p]);
        if (a.sum != nullptr) store(static_cast<T*>(a.sum) + base + column, s[p]);
      }
      to_floats(s[p], v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) total[0] += v[i];
    }
    end_row();
    row_sum(total, blockDim.x, scratch[0]);
    const float mean = total[0] * share;
    float square[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      to_floats(packed(s[p]), v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) square[0] = fmaf(v[i] - mean, v[i] - mean, square[0]);
    }
    row_sum(square, blockDim.x, scratch[1]);
    const float rstd = rsqrtf(square[0] * share + a.eps);
    if (threadIdx.x == 0) {
      if (a.mean != nullptr) a.mean[cursor.row] = mean;
      if (a.rstd != nullptr) a.rstd[cursor.row] = rstd;
    }
    Amax<T> amax;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth], gamma[kWidth], beta[kWidth];
      to_floats(packed(s[p]), v);
      to_floats(gammas.get(p, cursor), gamma);
      to_floats(betas.get(p, cursor), beta);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = fmaf((v[i] - mean) * rstd, gamma[i], beta[i]);
      s[p] = packed(from_floats<T>(v));
      if (!kFp8 || a.y != nullptr)
        store(static_cast<T*>(a.y) + base + cursor.index(p) * kWidth, s[p]);
      if constexpr (kFp8) amax.add(s[p]);
    }
    if constexpr (kFp8) {
      const float scale =
          settle_scale(a.fp8, row_amax(amax.get(), blockDim.x, scratch[2]), cursor.row);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!cursor.holds(p)) continue;
        float v[kWidth];
        to_floats(packed(s[p]), v);
        store_fp8(a.fp8.data + base + cursor.index(p) * kWidth, v, scale, a.fp8.format);
      }
    }
  }
}

/// Any width and alignment: the row waits in shared memory between the passes, each thread touching
/// its own columns only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const LayerNormForward a) {
  extern __shared__ float values[];
  __shared__ float scratch[3][32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const int columns = static_cast<int>(a.columns);
  float total[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    T s = static_cast<const T*>(a.x)[base + c];
    if (a.bias != nullptr)
      s = from_float<T>(to_float(s) + to_float(static_cast<const T*>(a.bias)[c]));
    if (a.dropout.ids != nullptr)
      s = from_float<T>(RowMask(a.dropout, row, columns)(to_float(s), c));
    if (a.residual != nullptr)
      s = from_float<T>(to_float(s) + to_float(static_cast<const T*>(a.residual)[base + c]));
    if (a.sum != nullptr) static_cast<T*>(a.sum)[base + c] = s;
    values[c] = to_float(s);
    total[0] += values[c];
  }
  row_sum(total, kScalarThreads, scratch[0]);
  const float share = 1.0f / static_cast<float>(columns), mean = total[0] * share;
  float square[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads)
    square[0] = fmaf(values[c] - mean, values[c] - mean, square[0]);
  row_sum(square, kScalarThreads, scratch[1]);
  const float rstd = rsqrtf(square[0] * share + a.eps);
  if (threadIdx.x == 0) {
    if (a.mean != nullptr) a.mean[row] = mean;
    if (a.rstd != nullptr) a.rstd[row] = rstd;
  }
  float amax = 0.0f;
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const T y =
        from_float<T>(fmaf((values[c] - mean) * rstd, to_float(static_cast<const T*>(a.gamma)[c]),
                           to_float(static_cast<const T*>(a.beta)[c])));
    if (a.y != nullptr) static_cast<T*>(a.y)[base + c] = y;
    values[c] = to_float(y);
    amax = amax_of(amax, values[c]);
  }
  if (a.fp8.data == nullptr) return;
  const float scale = settle_scale(a.fp8, row_amax(amax, kScalarThreads, scratch[2]), row);
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const float value[1] = {values[c]};
    store_fp8(a.fp8.data + base + c, value, scale, a.fp8.format);
  }
}

template <class T, bool kFp8>
cudaError_t launch(const LayerNormForward& a, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  const RowGeometry g = row_geometry(a.columns / kWidth, kPacks);
  if (a.bias != nullptr || a.dropout.ids != nullptr || a.residual != nullptr || a.sum != nullptr)
    return launch_rows(forward_kernel<T, kFp8, true>, a, a.rows, g,
                       (a.residual != nullptr ? 32 : 16) * kPacks, stream);
  return launch_rows(forward_kernel<T, kFp8, false>, a, a.rows, g, 2 * 16 * kPacks, stream);
}

template <class T>
cudaError_t launch_scalar(const LayerNormForward& a, cudaStream_t stream) {
  const size_t shared = a.columns * sizeof(float);
  if (const cudaError_t error = allow_shared_memory(forward_scalar_kernel<T>, shared);
      error != cudaSuccess)
    return error;
  forward_scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t layer_norm_forward(const LayerNormForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || a.rows > INT32_MAX || a.dropout.rows_per_sample < 1 ||
      (a.y == nullptr && a.fp8.data == nullptr))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || a.columns > kElements<T> * kMaxThreads ||
        !aligned16(a.x, a.bias, a.residual, a.gamma, a.beta, a.sum, a.y, a.fp8.data))
      return launch_scalar<T>(a, stream);
    return a.fp8.data != nullptr ? launch<T, true>(a, stream) : launch<T, false>(a, stream);
  });
}

}  // namespace trireme::kernels
