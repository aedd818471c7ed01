#include "kernels/column_sum/column_sum.h"
#include "kernels/fp8/fp8.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_pipeline.cuh"

namespace trireme::kernels {

namespace {

// Sums of dw take registers: with them a thread has fewer elements of the row.
constexpr int kPlainElements = 32, kWeightElements = 16, kBlocksPerSm = 4, kScalarThreads = 256;

enum class Mode { kPlain, kFp8, kWeight };
template <Mode kMode>
constexpr int kElements = kMode == Mode::kWeight ? kWeightElements : kPlainElements;

template <class T, int kStages, Mode kMode>
__global__ void __launch_bounds__(kMaxColumns / kElements<kMode>, 1) backward_kernel(const RmsNormBackward a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[8][3][32];
  constexpr bool kWeight = kMode == Mode::kWeight, kFp8 = kMode == Mode::kFp8;
  using Pipeline = RowPipeline<T, kElements<kMode>, kStages, 3>;
  constexpr int kWidth = Pipeline::kWidth, kPacks = Pipeline::kPacks;
  const bool residual = a.d_residual != nullptr;
  Pipeline rows(shared, {static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.d_residual)}, residual ? 3 : 2, a.rows,
                static_cast<int>(a.columns));

  // Left to L1: sums of dw and the weight together are more than the registers hold.
  const auto weight = [&](int p) { return load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + rows.column(p)); };
  float dw[kPacks][kWidth] = {};

  for (int turn = 0; rows.row < rows.rows; rows.advance(), turn ^= 1) {
    rows.acquire();
    const float rstd = a.rstd[rows.row];
    float dot[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!rows.holds(p)) continue;
      float g[kWidth], s[kWidth], w[kWidth];
      to_floats(rows.at(0, p), g);
      to_floats(rows.at(1, p), s);
      to_floats(weight(p), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dot[0] += g[i] * w[i] * s[i];
    }
    row_sum(dot, blockDim.x, scratch[threadIdx.y][turn]);
    const float factor = dot[0] * rstd * rstd * rstd / static_cast<float>(rows.columns);
    Amax<T> amax;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!rows.holds(p)) continue;
      float g[kWidth], s[kWidth], w[kWidth];
      to_floats(rows.at(0, p), g);
      to_floats(rows.at(1, p), s);
      to_floats(weight(p), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        g[i] *= rstd;
        if constexpr (kWeight) dw[p][i] += g[i] * s[i];
        g[i] = g[i] * w[i] - s[i] * factor;
      }
      if (residual) {
        to_floats(rows.at(2, p), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] += w[i];
      }
      const Vec<T, kWidth> dx = from_floats<T>(g);
      if (a.dx != nullptr) store(static_cast<T*>(a.dx) + rows.offset(p), dx);
      if constexpr (kFp8) {
        amax.add(dx);
        rows.at(0, p) = dx;
      }
    }
    if constexpr (kFp8) {
      // The next row's dot comes between two of these: one scratch is enough.
      const float scale = settle_scale(a.fp8, row_amax(amax.get(), blockDim.x, scratch[threadIdx.y][2]), rows.row);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!rows.holds(p)) continue;
        float v[kWidth];
        to_floats(rows.at(0, p), v);
        store_fp8(a.fp8.data + rows.offset(p), v, scale, a.fp8.format);
      }
    }
  }

  if constexpr (kWeight) {
    float* partial = a.workspace + static_cast<int64_t>(blockIdx.x) * rows.columns;
    float* sums = reinterpret_cast<float*>(shared);
    copy_async_wait<0>();
    // The rows of the block are added in order.
    for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
      __syncthreads();
      if (static_cast<int>(threadIdx.y) != y) continue;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!rows.holds(p)) continue;
        const int column = rows.column(p);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const float sum = y == 0 ? dw[p][i] : sums[column + i] + dw[p][i];
          if (y + 1 == static_cast<int>(blockDim.y))
            partial[column + i] = sum;
          else
            sums[column + i] = sum;
        }
      }
    }
  }
}

/// Any width and alignment. dw gathers in shared memory, each thread touching its own columns only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const RmsNormBackward a) {
  extern __shared__ float sums[];
  __shared__ float scratch[3][32];
  const int columns = static_cast<int>(a.columns);
  const bool weight = a.dw != nullptr || a.dw_fp32 != nullptr;
  const T *dy = static_cast<const T*>(a.dy), *x = static_cast<const T*>(a.x), *w = static_cast<const T*>(a.weight);
  if (weight)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) sums[c] = 0.0f;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
    const int64_t base = row * columns;
    const float rstd = a.rstd[row];
    float dot[1] = {0.0f};
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) dot[0] += to_float(dy[base + c]) * to_float(w[c]) * to_float(x[base + c]);
    row_sum(dot, kScalarThreads, scratch[turn]);
    const float factor = dot[0] * rstd * rstd / static_cast<float>(columns);
    const auto gradient = [&](int c) {
      const float d = rstd * (to_float(dy[base + c]) * to_float(w[c]) - to_float(x[base + c]) * factor);
      return from_float<T>(a.d_residual != nullptr ? d + to_float(static_cast<const T*>(a.d_residual)[base + c]) : d);
    };
    float top = 0.0f;
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      if (weight) sums[c] += to_float(dy[base + c]) * rstd * to_float(x[base + c]);
      if (a.dx == nullptr && a.fp8.data == nullptr) continue;
      const T dx = gradient(c);
      top = amax_of(top, to_float(dx));
      if (a.dx != nullptr) static_cast<T*>(a.dx)[base + c] = dx;
    }
    if (a.fp8.data == nullptr) continue;
    const float scale = settle_scale(a.fp8, row_amax(top, kScalarThreads, scratch[2]), row);
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      // dx may have taken the place of d_residual.
      const float value[1] = {to_float(a.dx != nullptr ? static_cast<const T*>(a.dx)[base + c] : gradient(c))};
      store_fp8(a.fp8.data + base + c, value, scale, a.fp8.format);
    }
  }
  if (weight)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) a.workspace[static_cast<int64_t>(blockIdx.x) * columns + c] = sums[c];
}

bool wants_weight(const RmsNormBackward& a) { return a.dw != nullptr || a.dw_fp32 != nullptr; }

cudaError_t finish(const RmsNormBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || !wants_weight(a)) return error;
  void* out = a.dw_fp32 != nullptr ? a.dw_fp32 : a.dw;
  return column_sum(a.workspace, blocks, a.columns, a.columns, out, a.dw_fp32 != nullptr ? Element::kF32 : a.element, a.accumulate, stream);
}

template <class T, int kStages, Mode kMode>
cudaError_t launch(const RmsNormBackward& a, const RowGeometry& g, size_t stages, cudaStream_t stream) {
  const auto kernel = backward_kernel<T, kStages, kMode>;
  const size_t sums = kMode == Mode::kWeight && g.rows > 1 ? a.columns * sizeof(float) : 0, shared = stages > sums ? stages : sums;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, g.threads * g.rows, shared, kBlocksPerSm, ceil_div(a.rows, g.rows));
  kernel<<<static_cast<unsigned>(blocks), dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream>>>(a);
  return finish(a, blocks, stream);
}

template <class T>
cudaError_t launch_scalar(const RmsNormBackward& a, cudaStream_t stream) {
  const auto kernel = backward_scalar_kernel<T>;
  const size_t shared = wants_weight(a) ? a.columns * sizeof(float) : 0;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = resident_blocks(kernel, kScalarThreads, shared, kBlocksPerSm, a.rows);
  kernel<<<static_cast<unsigned>(blocks), kScalarThreads, shared, stream>>>(a);
  return finish(a, blocks, stream);
}

template <class T, Mode kMode>
cudaError_t launch_stages(const RmsNormBackward& a, cudaStream_t stream) {
  const RowGeometry g = row_geometry(a.columns, kElements<kMode>);
  const size_t bytes = stage_bytes<T, kElements<kMode>>(g, a.d_residual != nullptr ? 3 : 2);
  if (3 * bytes <= kSharedLimit / 2) return launch<T, 3, kMode>(a, g, 3 * bytes, stream);
  if (2 * bytes <= kSharedLimit) return launch<T, 2, kMode>(a, g, 2 * bytes, stream);
  return launch_scalar<T>(a, stream);  // fp32 rows of more than about 8,000 columns
}

}  // namespace

int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  return (rows < blocks ? rows : blocks) * columns;
}

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (wants_weight(a) && a.rows > 0 && a.workspace == nullptr) || (wants_weight(a) && a.fp8.data != nullptr))
    return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % (16 / sizeof(T)) != 0 || !aligned16(a.dy, a.x, a.weight, a.d_residual, a.dx, a.fp8.data)) return launch_scalar<T>(a, stream);
    if (wants_weight(a)) return launch_stages<T, Mode::kWeight>(a, stream);
    return a.fp8.data != nullptr ? launch_stages<T, Mode::kFp8>(a, stream) : launch_stages<T, Mode::kPlain>(a, stream);
  });
}

}  // namespace trireme::kernels
