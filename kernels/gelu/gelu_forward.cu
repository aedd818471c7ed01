#include "kernels/fp8/fp8.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

// Packs of a row for a thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256;

__device__ inline float settle_saved(const GeluCodes& saved, float top, int64_t row) {
  const float inverse = row_inverse_scale(top, saved.format);
  if (threadIdx.x == 0) saved.inverse[row] = inverse;
  return 1.0f / inverse;
}

template <class T, int kPacks, bool kFp8>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const GeluForward a) {
  __shared__ float scratch[2 * 32];
  constexpr int kWidth = 16 / sizeof(T);
  const RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  if (!cursor.active()) return;  // a whole warp, which no other waits for
  const int64_t base = cursor.row * a.columns;
  const bool once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  Words<4> z[kPacks], y[kFp8 ? kPacks : 1];
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
    if (cursor.holds(p))
      z[p] = load_words(static_cast<const T*>(a.x) + base + cursor.index(p) * kWidth);
  Amax<T> top_y, top_z;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!cursor.holds(p)) continue;
    const int column = cursor.index(p) * kWidth;
    if (a.bias != nullptr)
      z[p] = as_words(add(as_pack<T>(z[p]),
                          load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + column)));
    float v[kWidth];
    to_floats(as_pack<T>(z[p]), v);
    gelu<T>(v, a.kind);
    const Vec<T, kWidth> activated = from_floats<T>(v);
    if (a.y != nullptr) store_whole(static_cast<T*>(a.y) + base + column, activated, once);
    if constexpr (kFp8) {
      y[p] = as_words(activated);
      if (a.saved.data != nullptr) top_z.add(as_pack<T>(z[p]));
      top_y.add(activated);
    }
  }
  if constexpr (kFp8) {
    float top[2] = {top_y.get(), top_z.get()};
    row_amax(top, blockDim.x, scratch);
    const float scale = a.fp8.data != nullptr ? settle_scale(a.fp8, top[0], cursor.row) : 0.0f;
    const float saved_scale =
        a.saved.data != nullptr ? settle_saved(a.saved, top[1], cursor.row) : 0.0f;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      const int64_t at = base + cursor.index(p) * kWidth;
      float v[kWidth];
      if (a.fp8.data != nullptr) {
        to_floats(as_pack<T>(y[p]), v);
        store_fp8(a.fp8.data + at, v, scale, a.fp8.format, once);
      }
      if (a.saved.data != nullptr) {
        to_floats(as_pack<T>(z[p]), v);
        store_fp8(a.saved.data + at, v, saved_scale, a.saved.format, once);
      }
    }
  }
}

/// Any width and alignment; reads its row again for each FP8 output.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const GeluForward a) {
  __shared__ float scratch[2 * 32];
  const int64_t row = blockIdx.x, base = row * a.columns;
  const auto input = [&](int64_t c) {
    const T x = static_cast<const T*>(a.x)[base + c];
    return a.bias == nullptr
               ? x
               : from_float<T>(to_float(x) + to_float(static_cast<const T*>(a.bias)[c]));
  };
  const auto activated = [&](int64_t c) {
    float v[1] = {to_float(input(c))};
    gelu<T>(v, a.kind);
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

template <class T, bool kFp8>
cudaError_t launch(const GeluForward& a, int64_t packs, cudaStream_t stream) {
  if (packs <= kFewPacks * kMaxThreads)
    return launch_each_row(forward_kernel<T, kFewPacks, kFp8>, a, a.rows,
                           row_geometry(packs, kFewPacks), stream);
  return launch_each_row(forward_kernel<T, kManyPacks, kFp8>, a, a.rows,
                         row_geometry(packs, kManyPacks), stream);
}

}  // namespace

cudaError_t gelu_forward(const GeluForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.y == nullptr && a.fp8.data == nullptr && a.saved.data == nullptr)
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = a.columns / kWidth;
    if (a.columns % kWidth == 0 && packs <= kManyPacks * kMaxThreads &&
        aligned16(a.x, a.bias, a.y, a.fp8.data, a.saved.data))
      return a.fp8.data != nullptr || a.saved.data != nullptr ? launch<T, true>(a, packs, stream)
                                                              : launch<T, false>(a, packs, stream);
    scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
