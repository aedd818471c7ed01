#include "kernels/column_sum/block_sums.cuh"
#include "kernels/column_sum/column_sum.h"
#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

// Packs of a row per thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kBlocksPerSm = 8, kStages = 1;

/// For whole rows the registers are limited, so that more rows are in flight.
template <class T, int kPacks, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads, kWhole ? 2 : 1) forward_kernel(const GeluForward a) {
  await_kernel_before();
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
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const GeluForward a) {
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

template <class T, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(const GeluBackward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T), kPacks = kFewPacks;
  using Pack = Vec<T, kWidth>;
  RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  char* free = shared;
  const int64_t row_bytes = a.columns * static_cast<int64_t>(sizeof(T));
  RowPrefetch<kPacks, kStages> gradients(free, a.dy, row_bytes), inputs(free, a.x, row_bytes);
  start_inputs<kStages>(cursor, gradients, inputs);
  float sums[1][kPacks][kWidth] = {};
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    with_kind(a.kind, [&](auto kind) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!cursor.holds(p)) continue;
        float d[kWidth], z[kWidth];
        to_floats(gradients.template take<Pack>(p, cursor), d);
        const Pack input = inputs.template take<Pack>(p, cursor);
        to_floats(
            a.bias == nullptr
                ? input
                : add(input, load_shared_read<T, kWidth>(static_cast<const T*>(a.bias) + cursor.index(p) * kWidth)),
            z);
        gelu_gradient<T, decltype(kind)::value>(d, z);
        const Pack out = packed(from_floats<T>(d));
        store_whole(static_cast<T*>(a.dx) + cursor.row * a.columns + cursor.index(p) * kWidth, out, false);
        add_to(sums[0][p], out);
      }
    });
    end_row();
  }

  copy_async_wait<0>();
  leave_sums(
      sums, [&](int p) { return cursor.index(p) * kWidth; }, [&](int p) { return cursor.holds(p); },
      static_cast<int>(a.columns), reinterpret_cast<float*>(shared),
      a.workspace + static_cast<int64_t>(blockIdx.x) * a.columns);
}

/// Any width and alignment. A block's part of d_bias is summed in the workspace; each thread touches its own columns
/// only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const GeluBackward a) {
  float* partial = a.workspace + blockIdx.x * a.columns;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t base = row * a.columns;
    for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
      float d[1] = {to_float(static_cast<const T*>(a.dy)[base + c])},
            z[1] = {to_float(static_cast<const T*>(a.x)[base + c])};
      if (a.bias != nullptr) z[0] = to_float(from_float<T>(z[0] + to_float(static_cast<const T*>(a.bias)[c])));
      with_kind(a.kind, [&](auto kind) { gelu_gradient<T, decltype(kind)::value>(d, z); });
      const T dx = from_float<T>(d[0]);
      static_cast<T*>(a.dx)[base + c] = dx;
      partial[c] = (row == blockIdx.x ? 0.0f : partial[c]) + to_float(dx);
    }
  }
}

cudaError_t finish(const GeluBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return column_sum(a.workspace, blocks, a.columns, a.columns, a.d_bias, a.element, stream);
}

template <class T, bool kWhole>
cudaError_t launch(const GeluBackward& a, const RowGeometry& g, cudaStream_t stream) {
  int64_t blocks = 0;
  const RowLaunch extra = {block_sums_bytes(g.rows, a.columns, 1), kBlocksPerSm, &blocks};
  const cudaError_t error = launch_rows(backward_kernel<T, kWhole>, a, a.rows, g, 32 * kFewPacks, stream, extra);
  return error != cudaSuccess ? error : finish(a, blocks, stream);
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
    forward_scalar_kernel<T><<<static_cast<unsigned>(a.rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

int64_t gelu_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  return (rows < blocks ? rows : blocks) * columns;
}

cudaError_t gelu_backward(const GeluBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.d_bias == nullptr || (a.rows > 0 && a.workspace == nullptr)) return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = a.columns / kWidth;
    if (a.columns % kWidth == 0 && packs <= kFewPacks * kMaxThreads &&
        aligned16(a.dy, a.x, a.bias, a.dx, a.workspace)) {
      const RowGeometry g = row_geometry(packs, kFewPacks);
      if constexpr (sizeof(T) == 2) {
        if (whole_rows(packs, kFewPacks)) return launch<T, true>(a, g, stream);
      }
      return launch<T, false>(a, g, stream);
    }
    const int64_t blocks = resident_blocks(backward_scalar_kernel<T>, kScalarThreads, 0, kBlocksPerSm, a.rows);
    backward_scalar_kernel<T><<<static_cast<unsigned>(blocks), kScalarThreads, 0, stream>>>(a);
    return finish(a, blocks, stream);
  });
}

}  // namespace trireme::kernels
