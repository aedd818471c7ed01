#include "kernels/column_sum/block_sums.cuh"
#include "kernels/column_sum/column_sum.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kMaxThreads = 512, kBlocksPerSm = 4, kScalarThreads = 256, kStages = 1;
/// Packs of a row per thread. With the weight's gradient kFewPacks for rows of up to kFewThreads * kFewPacks packs, so
/// that short rows still have enough threads.
constexpr int kManyPacks = 4, kFewPacks = 2, kFewThreads = 256;
template <class T>
constexpr int kElements = kManyPacks * 16 / static_cast<int>(sizeof(T));

template <class T, bool kWeight, int kPacks, bool kPlusOne>
__global__ void __launch_bounds__(kPacks == kFewPacks ? kFewThreads : kMaxThreads, kPacks == kFewPacks ? 3 : 1)
    backward_kernel(const RmsNormBackward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][32];
  constexpr int kWidth = 16 / sizeof(T);
  using Pack = Vec<T, kWidth>;
  const bool residual = a.d_residual != nullptr;
  RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  const int64_t row_bytes = a.columns * static_cast<int64_t>(sizeof(T));
  char* free = shared;
  RowPrefetch<kPacks, kStages> gradients(free, a.dy, row_bytes), inputs(free, a.x, row_bytes),
      more(free, a.d_residual, row_bytes, residual);
  start_inputs<kStages>(cursor, gradients, inputs, more);
  const RowVector<T, kPacks> weight(a.weight, cursor);
  const float share = __fdividef(1.0f, static_cast<float>(a.columns));
  float dw[1][kWeight ? kPacks : 1][kWidth] = {};

  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    const int64_t base = cursor.row * a.columns;
    const float rstd = a.rstd[cursor.row];
    Pack dy[kPacks], x[kPacks];
    float dot[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      dy[p] = packed(gradients.template take<Pack>(p, cursor));
      x[p] = packed(inputs.template take<Pack>(p, cursor));
      float g[kWidth], s[kWidth], w[kWidth];
      to_floats(dy[p], g);
      to_floats(x[p], s);
      to_floats(weight.get(p, cursor), w);
      if constexpr (kPlusOne) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) w[i] += 1.0f;
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if constexpr (kWeight) {
          g[i] *= s[i];
          dw[0][p][i] = fmaf(g[i], rstd, dw[0][p][i]);
          dot[0] = fmaf(g[i], w[i], dot[0]);
        } else {
          dot[0] = fmaf(g[i] * w[i], s[i], dot[0]);
        }
      }
    }
    row_sum(dot, blockDim.x, scratch[cursor.turn]);
    const float factor = dot[0] * rstd * rstd * rstd * share;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float g[kWidth], s[kWidth], w[kWidth];
      to_floats(packed(dy[p]), g);
      to_floats(packed(x[p]), s);
      to_floats(weight.get(p, cursor), w);
      if constexpr (kPlusOne) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) w[i] += 1.0f;
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) g[i] = g[i] * rstd * w[i] - s[i] * factor;
      if (residual) {
        to_floats(more.template take<Pack>(p, cursor), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] += w[i];
      }
      if (a.dx != nullptr) store(static_cast<T*>(a.dx) + base + cursor.index(p) * kWidth, from_floats<T>(g));
    }
    end_row();
  }

  if constexpr (kWeight) {
    copy_async_wait<0>();
    leave_sums(
        dw, [&](int p) { return cursor.index(p) * kWidth; }, [&](int p) { return cursor.holds(p); },
        static_cast<int>(a.columns), reinterpret_cast<float*>(shared),
        a.workspace + static_cast<int64_t>(blockIdx.x) * a.columns);
  }
}

/// Any width and alignment. dw is summed in shared memory; each thread touches its own columns only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const RmsNormBackward a) {
  extern __shared__ float sums[];
  __shared__ float scratch[2][32];
  const int columns = static_cast<int>(a.columns);
  const bool weight = a.dw != nullptr;
  const T *dy = static_cast<const T*>(a.dy), *x = static_cast<const T*>(a.x);
  const auto factor_of = [&](int c) {
    return to_float(static_cast<const T*>(a.weight)[c]) + (a.plus_one ? 1.0f : 0.0f);
  };
  if (weight)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) sums[c] = 0.0f;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const int64_t base = row * columns;
    const float rstd = a.rstd[row];
    float dot[1] = {0.0f};
    for (int c = threadIdx.x; c < columns; c += kScalarThreads)
      dot[0] += to_float(dy[base + c]) * factor_of(c) * to_float(x[base + c]);
    row_sum(dot, kScalarThreads, scratch[turn]);
    const float factor = dot[0] * rstd * rstd / static_cast<float>(columns);
    const auto gradient = [&](int c) {
      const float d = rstd * (to_float(dy[base + c]) * factor_of(c) - to_float(x[base + c]) * factor);
      return from_float<T>(a.d_residual != nullptr ? d + to_float(static_cast<const T*>(a.d_residual)[base + c]) : d);
    };
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      if (weight) sums[c] += to_float(dy[base + c]) * rstd * to_float(x[base + c]);
      if (a.dx != nullptr) static_cast<T*>(a.dx)[base + c] = gradient(c);
    }
  }
  if (weight)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads)
      a.workspace[static_cast<int64_t>(blockIdx.x) * columns + c] = sums[c];
}

cudaError_t finish(const RmsNormBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || a.dw == nullptr) return error;
  return column_sum(a.workspace, blocks, a.columns, a.columns, a.dw, a.element, stream);
}

template <class T>
cudaError_t launch_scalar(const RmsNormBackward& a, cudaStream_t stream) {
  const auto kernel = backward_scalar_kernel<T>;
  const size_t shared = a.dw != nullptr ? a.columns * sizeof(float) : 0;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, kScalarThreads, shared, kBlocksPerSm, a.rows);
  kernel<<<static_cast<unsigned>(blocks), kScalarThreads, shared, stream>>>(a);
  return finish(a, blocks, stream);
}

template <class T, bool kWeight, int kPacks = kManyPacks>
cudaError_t launch(const RmsNormBackward& a, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  const RowGeometry g = row_geometry(a.columns / kWidth, kPacks);
  int64_t blocks = 0;
  RowLaunch extra;
  if (kWeight) extra = {block_sums_bytes(g.rows, a.columns, 1), kBlocksPerSm, &blocks};
  const auto kernel =
      a.plus_one ? backward_kernel<T, kWeight, kPacks, true> : backward_kernel<T, kWeight, kPacks, false>;
  const cudaError_t error =
      launch_rows(kernel, a, a.rows, g, (a.d_residual != nullptr ? 48 : 32) * kPacks, stream, extra);
  return error != cudaSuccess ? error : finish(a, blocks, stream);
}

}  // namespace

int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  return (rows < blocks ? rows : blocks) * columns;
}

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (a.dw != nullptr && a.rows > 0 && a.workspace == nullptr))
    return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || a.columns > kElements<T> * kMaxThreads ||
        !aligned16(a.dy, a.x, a.weight, a.d_residual, a.dx, a.workspace))
      return launch_scalar<T>(a, stream);
    if (a.dw == nullptr) return launch<T, false>(a, stream);
    const int64_t packs = a.columns * static_cast<int64_t>(sizeof(T)) / 16;
    if (packs > kFewThreads && packs <= kFewThreads * kFewPacks) return launch<T, true, kFewPacks>(a, stream);
    return launch<T, true>(a, stream);
  });
}

}  // namespace trireme::kernels
