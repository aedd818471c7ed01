#include "kernels/column_sum/block_sums.cuh"
#include "kernels/column_sum/column_sum.h"
#include "kernels/fp8/fp8.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/gelu/gelu_backward_codes.h"
#include "kernels/row_prefetch.cuh"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kBlocksPerSm = 8, kStages = 1;

template <class T, int kPacks, bool kFromCodes, bool kBias, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(const GeluBackward a) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T);
  __shared__ float scratch[2][32];
  using Pack = Vec<T, kWidth>;
  using Kept = std::conditional_t<kFromCodes, Vec<uint16_t, kWidth / 2>, Pack>;
  RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  char* free = shared;
  RowPrefetch<kPacks, 16, kStages> gradients(free, a.dy, a.columns * static_cast<int64_t>(sizeof(T)));
  RowPrefetch<kPacks, sizeof(Kept), kStages> inputs(free, kFromCodes ? a.saved.data : a.x,
                                                    a.columns * static_cast<int64_t>(sizeof(Kept)) / kWidth);
  start_inputs<kStages>(cursor, gradients, inputs);
  float sums[1][kBias ? kPacks : 1][kWidth] = {};
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    float inverse = 1.0f;
    if constexpr (kFromCodes) inverse = a.saved.inverse[cursor.row];
    Words<4> dx[kPacks];
    Amax<T> top;
    const auto differentiate = [&](auto kind, auto format) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!cursor.holds(p)) continue;
        float d[kWidth];
        to_floats(gradients.template take<Pack>(p, cursor), d);
        const Kept input = inputs.template take<Kept>(p, cursor);
        float z[kWidth];
        if constexpr (kFromCodes)
          from_fp8<decltype(format)::value>(input, inverse, z);
        else
          to_floats(
              a.bias == nullptr
                  ? input
                  : add(input, load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + cursor.index(p) * kWidth)),
              z);
        gelu_gradient<T, decltype(kind)::value>(d, z);
        const Pack out = packed(from_floats<T>(d));
        dx[p] = as_words(out);
        top.add(out);
        if constexpr (kBias) add_to(sums[0][p], out);
      }
    };
    with_kind(a.kind, [&](auto kind) {
      if constexpr (kFromCodes)
        with_format(a.saved.format, [&](auto format) { differentiate(kind, format); });
      else
        differentiate(kind, 0);
    });
    end_row();
    if (a.dx != nullptr) store_row(static_cast<T*>(a.dx) + cursor.row * a.columns, dx, cursor, false);
    if (a.fp8.data == nullptr) continue;
    const float scale = settle_scale(a.fp8, row_amax(top.get(), blockDim.x, scratch[cursor.turn]), cursor.row);
    store_row_fp8<T>(a.fp8.data + cursor.row * a.columns, dx, cursor, scale, a.fp8.format, false);
  }

  if constexpr (kBias) {
    copy_async_wait<0>();
    leave_sums(
        sums, [&](int p) { return cursor.index(p) * kWidth; }, [&](int p) { return cursor.holds(p); },
        static_cast<int>(a.columns), reinterpret_cast<float*>(shared),
        a.workspace + static_cast<int64_t>(blockIdx.x) * a.columns);
  }
}

/// Any width and alignment. A block's part of d_bias is summed in the workspace; each thread touches its own columns
/// only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const GeluBackward a) {
  __shared__ float scratch[2][32];
  float* partial = a.d_bias != nullptr ? a.workspace + blockIdx.x * a.columns : nullptr;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const int64_t base = row * a.columns;
    const auto gradient = [&](int64_t c) {
      float d[1] = {to_float(static_cast<const T*>(a.dy)[base + c])}, z[1];
      if (a.saved.data != nullptr) {
        z[0] = from_fp8(a.saved.data[base + c], a.saved.format) * a.saved.inverse[row];
      } else {
        z[0] = to_float(static_cast<const T*>(a.x)[base + c]);
        if (a.bias != nullptr) z[0] = to_float(from_float<T>(z[0] + to_float(static_cast<const T*>(a.bias)[c])));
      }
      with_kind(a.kind, [&](auto kind) { gelu_gradient<T, decltype(kind)::value>(d, z); });
      return from_float<T>(d[0]);
    };
    float top = 0.0f;
    for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
      const T dx = gradient(c);
      top = amax_of(top, to_float(dx));
      if (a.dx != nullptr) static_cast<T*>(a.dx)[base + c] = dx;
      if (partial != nullptr) partial[c] = (row == blockIdx.x ? 0.0f : partial[c]) + to_float(dx);
    }
    if (a.fp8.data == nullptr) continue;
    const float scale = settle_scale(a.fp8, row_amax(top, kScalarThreads, scratch[turn]), row);
    for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
      // Reread from dx if it is written: dx may have overwritten dy.
      const float value[1] = {to_float(a.dx != nullptr ? static_cast<const T*>(a.dx)[base + c] : gradient(c))};
      store_fp8(a.fp8.data + base + c, value, scale, a.fp8.format);
    }
  }
}

cudaError_t finish(const GeluBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || a.d_bias == nullptr) return error;
  return column_sum(a.workspace, blocks, a.columns, a.columns, a.d_bias, a.fp32 ? Element::kF32 : a.element,
                    a.accumulate, stream);
}

template <class T, int kPacks, bool kFromCodes, bool kBias, bool kWhole>
cudaError_t launch(const GeluBackward& a, const RowGeometry& g, cudaStream_t stream) {
  const int bytes = (kFromCodes ? 16 + 16 / static_cast<int>(sizeof(T)) : 32) * kPacks;
  int64_t blocks = 0;
  RowLaunch extra;
  if (kBias) extra = {block_sums_bytes(g.rows, a.columns, 1), kBlocksPerSm, &blocks};
  if (const cudaError_t error =
          launch_rows(backward_kernel<T, kPacks, kFromCodes, kBias, kWhole>, a, a.rows, g, bytes, stream, extra);
      error != cudaSuccess)
    return error;
  return finish(a, blocks, stream);
}

template <class T, int kPacks, bool kFromCodes, bool kBias>
cudaError_t launch(const GeluBackward& a, int64_t packs, cudaStream_t stream) {
  const RowGeometry g = row_geometry(packs, kPacks);
  if constexpr (sizeof(T) == 2 && kPacks == kFewPacks && !kFromCodes) {
    if (whole_rows(packs, kPacks)) return launch<T, kPacks, kFromCodes, kBias, true>(a, g, stream);
  }
  return launch<T, kPacks, kFromCodes, kBias, false>(a, g, stream);
}

template <class T, bool kFromCodes>
cudaError_t launch(const GeluBackward& a, cudaStream_t stream) {
  const int64_t packs = a.columns / (16 / sizeof(T));
  if (packs <= kFewPacks * kMaxThreads)
    return a.d_bias != nullptr ? launch<T, kFewPacks, kFromCodes, true>(a, packs, stream)
                               : launch<T, kFewPacks, kFromCodes, false>(a, packs, stream);
  return launch<T, kManyPacks, kFromCodes, false>(a, packs, stream);
}

}  // namespace

int64_t gelu_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  return (rows < blocks ? rows : blocks) * columns;
}

cudaError_t gelu_backward(const GeluBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if ((a.x == nullptr) == (a.saved.data == nullptr) ||
      (a.dx == nullptr && a.fp8.data == nullptr && a.d_bias == nullptr) ||
      (a.d_bias != nullptr && a.rows > 0 && a.workspace == nullptr))
    return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t most = static_cast<int64_t>(a.d_bias != nullptr ? kFewPacks : kManyPacks) * kMaxThreads;
    if (a.columns % kWidth == 0 && a.columns / kWidth <= most &&
        aligned16(a.dy, a.x, a.bias, a.saved.data, a.dx, a.fp8.data, a.workspace)) {
      if (a.saved.data == nullptr) return launch<T, false>(a, stream);
      if (gelu_backward_codes_fits(a)) {
        int64_t blocks = 0;
        const cudaError_t error = gelu_backward_codes(a, &blocks, stream);
        return error != cudaSuccess ? error : finish(a, blocks, stream);
      }
      if constexpr (sizeof(T) == 2) return launch<T, true>(a, stream);
    }
    const int64_t blocks = resident_blocks(scalar_kernel<T>, kScalarThreads, 0, kBlocksPerSm, a.rows);
    scalar_kernel<T><<<static_cast<unsigned>(blocks), kScalarThreads, 0, stream>>>(a);
    return finish(a, blocks, stream);
  });
}

}  // namespace trireme::kernels
