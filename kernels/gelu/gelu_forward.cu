#include "kernels/fp8/fp8.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

// Packs of a row per thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256;

__device__ inline float settle_saved(const GeluCodes& saved, float top, int64_t row) {
  const float inverse = row_inverse_scale(top, saved.format);
  if (threadIdx.x == 0) saved.inverse[row] = inverse;
  return 1.0f / inverse;
}

enum class Outputs { kPlain, kFp8, kAny };

/// For whole rows the registers are limited, so that more rows are in flight.
template <class T, int kPacks, Outputs kOutputs, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, !kWhole                     ? 1
                                               : kOutputs == Outputs::kFp8 ? 3
                                                                           : 2) forward_kernel(const GeluForward a) {
  __shared__ float scratch[2 * 32];
  constexpr int kWidth = 16 / sizeof(T);
  constexpr bool kFp8 = kOutputs != Outputs::kPlain, kAny = kOutputs == Outputs::kAny;
  const RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  if (!cursor.active()) return;  // whole warps exit; no barrier waits for them
  const int64_t base = cursor.row * a.columns;
  const bool once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  Words<4> z[kPacks], y[kFp8 ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (cursor.holds(p)) z[p] = load_words(static_cast<const T*>(a.x) + base + cursor.index(p) * kWidth);
  if (a.bias != nullptr) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (cursor.holds(p))
        z[p] = as_words(add(as_pack<T>(z[p]),
                            load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + cursor.index(p) * kWidth)));
  }
  Amax<T> top_y, top_z;
  with_kind(a.kind, [&](auto kind) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      to_floats(packed(as_pack<T>(z[p])), v);
      gelu<T, decltype(kind)::value>(v);
      const Vec<T, kWidth> activated = from_floats<T>(v);
      if constexpr (kFp8)
        y[p] = as_words(activated), top_y.add(activated);
      else
        store_whole(static_cast<T*>(a.y) + base + cursor.index(p) * kWidth, activated, once);
    }
  });
  if constexpr (kFp8) {
    if (kAny && a.y != nullptr) store_row(static_cast<T*>(a.y) + base, y, cursor, once);
    float top[kAny ? 2 : 1] = {top_y.get()};
    if constexpr (kAny) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p)
        if (cursor.holds(p)) top_z.add(as_pack<T>(z[p]));
      top[1] = top_z.get();
    }
    row_amax(top, blockDim.x, scratch);
    if (!kAny || a.fp8.data != nullptr)
      store_row_fp8<T>(a.fp8.data + base, y, cursor, settle_scale(a.fp8, top[0], cursor.row), a.fp8.format, once);
    if constexpr (kAny) {
      if (a.saved.data != nullptr)
        store_row_fp8<T>(a.saved.data + base, z, cursor, settle_saved(a.saved, top[1], cursor.row), a.saved.format,
                         once);
    }
  }
}

/// Any width and alignment; reads its row once more for each FP8 output.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const GeluForward a) {
  __shared__ float scratch[2 * 32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const auto input = [&](int64_t c) {
    const T x = static_cast<const T*>(a.x)[base + c];
    return a.bias == nullptr ? x : from_float<T>(to_float(x) + to_float(static_cast<const T*>(a.bias)[c]));
  };
  const auto activated = [&](int64_t c) {
    float v[1] = {to_float(input(c))};
    with_kind(a.kind, [&](auto kind) { gelu<T, decltype(kind)::value>(v); });
    return from_float<T>(v[0]);
  };
  float top[2] = {};
  for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
    const T y = activated(c);
    if (a.y != nullptr) static_cast<T*>(a.y)[base + c] = y;
    top[0] = amax_of(top[0], to_float(y));
    top[1] = amax_of(top[1], to_float(input(c)));
  }
  row_amax(top, kScalarThreads, scratch);
  if (a.fp8.data != nullptr) {
    const float scale = settle_scale(a.fp8, top[0], row);
    for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
      const float value[1] = {to_float(activated(c))};
      store_fp8(a.fp8.data + base + c, value, scale, a.fp8.format);
    }
  }
  if (a.saved.data == nullptr) return;
  const float scale = settle_saved(a.saved, top[1], row);
  for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
    const float value[1] = {to_float(input(c))};
    store_fp8(a.saved.data + base + c, value, scale, a.saved.format);
  }
}

template <class T, int kPacks, Outputs kOutputs>
cudaError_t launch(const GeluForward& a, int64_t packs, cudaStream_t stream) {
  const RowGeometry g = row_geometry(packs, kPacks);
  if constexpr (sizeof(T) == 2 && kPacks == kFewPacks) {
    if (whole_rows(packs, kPacks))
      return launch_each_row(forward_kernel<T, kPacks, kOutputs, true>, a, a.rows, g, stream);
  }
  return launch_each_row(forward_kernel<T, kPacks, kOutputs, false>, a, a.rows, g, stream);
}

template <class T, Outputs kOutputs>
cudaError_t launch(const GeluForward& a, int64_t packs, cudaStream_t stream) {
  return packs <= kFewPacks * kMaxThreads ? launch<T, kFewPacks, kOutputs>(a, packs, stream)
                                          : launch<T, kManyPacks, kOutputs>(a, packs, stream);
}

}  // namespace

cudaError_t gelu_forward(const GeluForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.y == nullptr && a.fp8.data == nullptr && a.saved.data == nullptr) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = a.columns / kWidth;
    if (a.columns % kWidth == 0 && packs <= kManyPacks * kMaxThreads &&
        aligned16(a.x, a.bias, a.y, a.fp8.data, a.saved.data))
      return a.fp8.data == nullptr && a.saved.data == nullptr ? launch<T, Outputs::kPlain>(a, packs, stream)
             : a.y == nullptr && a.saved.data == nullptr      ? launch<T, Outputs::kFp8>(a, packs, stream)
                                                              : launch<T, Outputs::kAny>(a, packs, stream);
    scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
