#include "kernels/fp8/fp8.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kMaxThreads = 512, kScalarThreads = 256;
/// Largest number of elements of a row per thread.
template <class T>
constexpr int kElements = sizeof(T) == 2 ? 32 : 16;

/// y of the normalised values u.
template <class T, bool kPlusOne, int kWidth>
__device__ inline Vec<T, kWidth> weighted(float (&u)[kWidth], const Vec<T, kWidth>& weight) {
  if constexpr (kPlusOne) {
    float w[kWidth];
    to_floats(weight, w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) u[i] = fmaf(u[i], w[i], u[i]);
    return from_floats<T>(u);
  } else {
    return multiply(from_floats<T>(u), weight);
  }
}

/// kCodesOnly: whole rows whose only output is FP8 codes. Their registers are limited (bf16 only), so that more rows
/// are in flight.
template <class T, bool kFp8, bool kWhole, bool kCodesOnly = false, bool kPlusOne = false, bool kAmax = false>
__global__ void __launch_bounds__(kMaxThreads, !kWhole || __is_same(T, __half) ? 1
                                               : kCodesOnly                    ? 3
                                                            : 2) forward_kernel(const RmsNormForward a) {
  await_kernel_before();
  __shared__ float scratch[2][32];
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  using Pack = Vec<T, kWidth>;
  const RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  if (!cursor.active()) return;  // whole warps exit; no barrier waits for them
  const int64_t base = cursor.row * a.columns;
  const bool once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  Words<4> s[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    const int64_t at = base + cursor.index(p) * kWidth;
    s[p] = load_words(static_cast<const T*>(a.x) + at);
  }
  [[maybe_unused]] float seen = 0.0f;
  if constexpr (kAmax) seen = *static_cast<volatile float*>(a.maxima.amax);
  float square[1] = {0.0f};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    float u[kWidth];
    to_floats(as_pack<T>(s[p]), u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) square[0] = fmaf(u[i], u[i], square[0]);
  }
  row_sum(square, blockDim.x, scratch[0]);
  const float rstd = rsqrtf(square[0] * __fdividef(1.0f, static_cast<float>(a.columns)) + a.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[cursor.row] = rstd;

  Amax<T> amax;
  [[maybe_unused]] const UnpackAgain again(a.rows);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    const int column = cursor.index(p) * kWidth;
    float u[kWidth];
    if constexpr (kCodesOnly)
      again(as_pack<T>(s[p]), u);
    else
      to_floats(packed(as_pack<T>(s[p])), u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) u[i] *= rstd;
    const Pack y = weighted<T, kPlusOne>(u, load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + column));
    if constexpr (kFp8 || kAmax) amax.add(y);
    if constexpr (!kFp8)
      store_whole(static_cast<T*>(a.y) + base + column, y, once);
    else
      s[p] = as_words(y);
  }
  if constexpr (kAmax) {
    // One thread of a row: the first rows all raise it.
    const float top = row_amax(amax.get(), blockDim.x, scratch[1]);
    if (threadIdx.x == 0 && !(top <= seen)) raise_amax(a.maxima.amax, top);
  }
  if constexpr (kFp8) {
    if (!kCodesOnly && a.y != nullptr) store_row(static_cast<T*>(a.y) + base, s, cursor, once);
    const float scale = settle_scale(a.fp8, row_amax(amax.get(), blockDim.x, scratch[1]), cursor.row);
    store_row_fp8<T>(a.fp8.data + base, s, cursor, scale, once);
  }
}

/// Any width and alignment: the row stays in shared memory between the passes; each thread touches its own columns
/// only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const RmsNormForward a) {
  extern __shared__ float values[];
  __shared__ float scratch[2][32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const int columns = static_cast<int>(a.columns);
  float square[1] = {0.0f};
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    values[c] = to_float(static_cast<const T*>(a.x)[base + c]);
    square[0] += values[c] * values[c];
  }
  row_sum(square, kScalarThreads, scratch[0]);
  const float rstd = rsqrtf(square[0] / static_cast<float>(columns) + a.eps);
  if (a.rstd != nullptr && threadIdx.x == 0) a.rstd[row] = rstd;
  float amax = 0.0f;
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const float normed = values[c] * rstd, weight = to_float(static_cast<const T*>(a.weight)[c]);
    const T y = from_float<T>(a.plus_one ? fmaf(normed, weight, normed) : to_float(from_float<T>(normed)) * weight);
    if (a.y != nullptr) static_cast<T*>(a.y)[base + c] = y;
    values[c] = to_float(y);
    amax = amax_of(amax, values[c]);
  }
  if (a.fp8.data == nullptr) return;
  const float scale = settle_scale(a.fp8, row_amax(amax, kScalarThreads, scratch[1]), row);
  for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
    const float value[1] = {values[c]};
    store_fp8(a.fp8.data + base + c, value, scale);
  }
}

template <class T, bool kFp8, bool kAmax = false>
cudaError_t launch(const RmsNormForward& a, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kElements<T> / kWidth;
  const RowGeometry g = row_geometry(a.columns / kWidth, kPacks);
  if constexpr (!kFp8)
    if (a.plus_one) return launch_each_row(forward_kernel<T, false, false, false, true, kAmax>, a, a.rows, g, stream);
  if constexpr (sizeof(T) == 2) {
    if (whole_rows(a.columns / kWidth, kPacks)) {
      if constexpr (kFp8) {
        if (a.y == nullptr) return launch_each_row(forward_kernel<T, true, true, true>, a, a.rows, g, stream);
      }
      return launch_each_row(forward_kernel<T, kFp8, true, false, false, kAmax>, a, a.rows, g, stream);
    }
  }
  return launch_each_row(forward_kernel<T, kFp8, false, false, false, kAmax>, a, a.rows, g, stream);
}

template <class T>
cudaError_t launch_scalar(const RmsNormForward& a, cudaStream_t stream) {
  const size_t shared = a.columns * sizeof(float);
  if (const cudaError_t error = allow_shared_memory(forward_scalar_kernel<T>, shared); error != cudaSuccess)
    return error;
  forward_scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormForward& a, cudaStream_t stream) {
  if (a.maxima.found != nullptr) *a.maxima.found = {};
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (a.y == nullptr && a.fp8.data == nullptr) || (a.plus_one && a.fp8.data != nullptr))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || a.columns > kElements<T> * kMaxThreads ||
        !aligned16(a.x, a.weight, a.y, a.fp8.data))
      return launch_scalar<T>(a, stream);
    if (a.fp8.data != nullptr) return launch<T, true>(a, stream);
    if constexpr (sizeof(T) == 2) {
      if (a.maxima.amax != nullptr) {
        const cudaError_t error = start_amax(a.maxima, stream);
        return error == cudaSuccess ? launch<T, false, true>(a, stream) : error;
      }
    }
    return launch<T, false>(a, stream);
  });
}

}  // namespace trireme::kernels
