#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

// Packs of a row per thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256;

/// For whole rows the registers are limited, so that more rows are in flight.
template <class T, int kPacks, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, kWhole ? 2 : 1) forward_kernel(const GeluForward a) {
  constexpr int kWidth = 16 / sizeof(T);
  const RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  if (!cursor.active()) return;  // whole warps exit; no barrier waits for them
  const int64_t base = cursor.row * a.columns;
  const bool once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  Words<4> z[kPacks];
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
  with_kind(a.kind, [&](auto kind) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      to_floats(packed(as_pack<T>(z[p])), v);
      gelu<T, decltype(kind)::value>(v);
      store_whole(static_cast<T*>(a.y) + base + cursor.index(p) * kWidth, from_floats<T>(v), once);
    }
  });
}

/// Any width and alignment.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const GeluForward a) {
  const int64_t base = blockIdx.x * a.columns;
  for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
    float v[1] = {to_float(static_cast<const T*>(a.x)[base + c])};
    if (a.bias != nullptr) v[0] = to_float(from_float<T>(v[0] + to_float(static_cast<const T*>(a.bias)[c])));
    with_kind(a.kind, [&](auto kind) { gelu<T, decltype(kind)::value>(v); });
    static_cast<T*>(a.y)[base + c] = from_float<T>(v[0]);
  }
}

template <class T, int kPacks>
cudaError_t launch(const GeluForward& a, int64_t packs, cudaStream_t stream) {
  const RowGeometry g = row_geometry(packs, kPacks);
  if constexpr (sizeof(T) == 2 && kPacks == kFewPacks) {
    if (whole_rows(packs, kPacks)) return launch_each_row(forward_kernel<T, kPacks, true>, a, a.rows, g, stream);
  }
  return launch_each_row(forward_kernel<T, kPacks, false>, a, a.rows, g, stream);
}

}  // namespace

cudaError_t gelu_forward(const GeluForward& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = a.columns / kWidth;
    if (a.columns % kWidth == 0 && packs <= kManyPacks * kMaxThreads && aligned16(a.x, a.bias, a.y))
      return packs <= kFewPacks * kMaxThreads ? launch<T, kFewPacks>(a, packs, stream)
                                              : launch<T, kManyPacks>(a, packs, stream);
    scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
