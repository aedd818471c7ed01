#include "kernels/column_sum/block_sums.cuh"
#include "kernels/column_sum/column_sum.h"
#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kBlocksPerSm = 8, kStages = 1;

template <class T, int kPacks, bool kBias, bool kWhole>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(const GeluBackward a) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T);
  using Pack = Vec<T, kWidth>;
  RowCursor<kWhole ? kPacks : 0> cursor(a.rows, static_cast<int>(a.columns / kWidth));
  char* free = shared;
  const int64_t row_bytes = a.columns * static_cast<int64_t>(sizeof(T));
  RowPrefetch<kPacks, 16, kStages> gradients(free, a.dy, row_bytes), inputs(free, a.x, row_bytes);
  start_inputs<kStages>(cursor, gradients, inputs);
  float sums[1][kBias ? kPacks : 1][kWidth] = {};
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
        if constexpr (kBias) add_to(sums[0][p], out);
      }
    });
    end_row();
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
  float* partial = a.d_bias != nullptr ? a.workspace + blockIdx.x * a.columns : nullptr;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t base = row * a.columns;
    for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
      float d[1] = {to_float(static_cast<const T*>(a.dy)[base + c])},
            z[1] = {to_float(static_cast<const T*>(a.x)[base + c])};
      if (a.bias != nullptr) z[0] = to_float(from_float<T>(z[0] + to_float(static_cast<const T*>(a.bias)[c])));
      with_kind(a.kind, [&](auto kind) { gelu_gradient<T, decltype(kind)::value>(d, z); });
      const T dx = from_float<T>(d[0]);
      static_cast<T*>(a.dx)[base + c] = dx;
      if (partial != nullptr) partial[c] = (row == blockIdx.x ? 0.0f : partial[c]) + to_float(dx);
    }
  }
}

cudaError_t finish(const GeluBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || a.d_bias == nullptr) return error;
  return column_sum(a.workspace, blocks, a.columns, a.columns, a.d_bias, a.element, false, stream);
}

template <class T, int kPacks, bool kBias, bool kWhole>
cudaError_t launch(const GeluBackward& a, const RowGeometry& g, cudaStream_t stream) {
  int64_t blocks = 0;
  RowLaunch extra;
  if (kBias) extra = {block_sums_bytes(g.rows, a.columns, 1), kBlocksPerSm, &blocks};
  if (const cudaError_t error =
          launch_rows(backward_kernel<T, kPacks, kBias, kWhole>, a, a.rows, g, 32 * kPacks, stream, extra);
      error != cudaSuccess)
    return error;
  return finish(a, blocks, stream);
}

template <class T, int kPacks, bool kBias>
cudaError_t launch(const GeluBackward& a, int64_t packs, cudaStream_t stream) {
  const RowGeometry g = row_geometry(packs, kPacks);
  if constexpr (sizeof(T) == 2 && kPacks == kFewPacks) {
    if (whole_rows(packs, kPacks)) return launch<T, kPacks, kBias, true>(a, g, stream);
  }
  return launch<T, kPacks, kBias, false>(a, g, stream);
}

}  // namespace

int64_t gelu_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  return (rows < blocks ? rows : blocks) * columns;
}

cudaError_t gelu_backward(const GeluBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.d_bias != nullptr && a.rows > 0 && a.workspace == nullptr) return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = a.columns / kWidth,
                  most = static_cast<int64_t>(a.d_bias != nullptr ? kFewPacks : kManyPacks) * kMaxThreads;
    if (a.columns % kWidth == 0 && packs <= most && aligned16(a.dy, a.x, a.bias, a.dx, a.workspace)) {
      if (packs > kFewPacks * kMaxThreads) return launch<T, kManyPacks, false>(a, packs, stream);
      return a.d_bias != nullptr ? launch<T, kFewPacks, true>(a, packs, stream)
                                 : launch<T, kFewPacks, false>(a, packs, stream);
    }
    const int64_t blocks = resident_blocks(scalar_kernel<T>, kScalarThreads, 0, kBlocksPerSm, a.rows);
    scalar_kernel<T><<<static_cast<unsigned>(blocks), kScalarThreads, 0, stream>>>(a);
    return finish(a, blocks, stream);
  });
}

}  // namespace trireme::kernels
