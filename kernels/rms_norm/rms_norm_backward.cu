#include "kernels/column_sum/column_sum.h"
#include "kernels/device.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

namespace {

constexpr int kBlockRows = 8, kBlocksPerSm = 2, kPacks = 4, kScalarPacks = 16;
constexpr size_t kSharedBudget = 104 * 1024, kSharedLimit = 200 * 1024;

// Threads keep one sum of dw per column they own: 16-bit packs have eight, so fewer threads may take part than with 4-byte ones.
template <class T, int kWidth>
constexpr int kMaxThreads = kWidth == 8 ? 512 : 1024;

/// Blocks stay for the whole matrix. Each thread copies its own packs of the rows to come into its own slots of shared memory, so the
/// pipeline needs no barrier; kStages = 0 reads global memory directly (odd widths).
template <class T, int kWidth, int kP, int kStages, bool kWeight>
__global__ void __launch_bounds__(kMaxThreads<T, kWidth>) backward_kernel(const RmsNormBackward a) {
  extern __shared__ __align__(16) char slots[];
  __shared__ float scratch[2][32];
  const int columns = static_cast<int>(a.columns), stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  const int inputs = a.d_residual != nullptr ? 3 : 2;
  const int block_threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const T* sources[3] = {static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.d_residual)};

  const auto slot = [&](int stage, int input, int p) {
    return slots + ((static_cast<size_t>(stage * inputs + input) * kP + p) * block_threads + thread) * 16;
  };
  const auto fetch = [&](int64_t row, int stage) {
    if (row < a.rows) {
#pragma unroll
      for (int input = 0; input < 3; ++input) {
        if (input < inputs) {
#pragma unroll
          for (int p = 0; p < kP; ++p)
            if (first + p * stride < columns) copy_async16(slot(stage, input, p), sources[input] + row * columns + first + p * stride);
        }
      }
    }
    copy_async_commit();
  };
  const auto read = [&](int64_t row, int stage, int input, int p) -> Vec<T, kWidth> {
    if constexpr (kStages > 0)
      return *reinterpret_cast<const Vec<T, kWidth>*>(slot(stage, input, p));
    else
      return load_stream<T, kWidth>(sources[input] + row * columns + first + p * stride);
  };

  Vec<T, kWidth> w[kP];
#pragma unroll
  for (int p = 0; p < kP; ++p)
    if (first + p * stride < columns) w[p] = load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + first + p * stride);
  float dw[kWeight ? kP : 1][kWeight ? kWidth : 1];
  if constexpr (kWeight) {
#pragma unroll
    for (int p = 0; p < kP; ++p)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dw[p][i] = 0.0f;
  }

  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if constexpr (kStages > 1) {
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) fetch(row + s * row_step, s);
  }
  int stage = 0, turn = 0;
  for (; row < a.rows; row += row_step) {
    if constexpr (kStages > 0) {
      fetch(row + (kStages - 1) * row_step, stage == 0 ? kStages - 1 : stage - 1);
      copy_async_wait<kStages - 1>();
    }
    const float rstd = a.rstd[row];
    float dot[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kP; ++p) {
      if (first + p * stride < columns) {
        float g[kWidth], s[kWidth], v[kWidth];
        to_floats(read(row, stage, 0, p), g);
        to_floats(read(row, stage, 1, p), s);
        to_floats(w[p], v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) dot[0] += g[i] * v[i] * s[i];
      }
    }
    row_sum(dot, blockDim.x, scratch[turn]);
    turn ^= 1;
    const float factor = dot[0] * rstd * rstd / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < kP; ++p) {
      if (first + p * stride < columns) {
        float g[kWidth], s[kWidth], v[kWidth];
        to_floats(read(row, stage, 0, p), g);
        to_floats(read(row, stage, 1, p), s);
        if constexpr (kWeight) {
          float n[kWidth];
#pragma unroll
          for (int i = 0; i < kWidth; ++i) n[i] = s[i] * rstd;
          to_floats(from_floats<T>(n), n);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) dw[p][i] += g[i] * n[i];
        }
        to_floats(w[p], v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] = rstd * (g[i] * v[i] - s[i] * factor);
        if (inputs == 3) {
          to_floats(read(row, stage, 2, p), v);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) g[i] += v[i];
        }
        if (a.dx != nullptr) store(static_cast<T*>(a.dx) + row * columns + first + p * stride, from_floats<T>(g));
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  if constexpr (kWeight) {
    float* partial = a.workspace + static_cast<int64_t>(blockIdx.x) * columns;
    if (blockDim.y == 1) {
#pragma unroll
      for (int p = 0; p < kP; ++p)
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (first + p * stride < columns) partial[first + p * stride + i] = dw[p][i];
    } else {
      // One warp per row: the block's warps are added in order, four at a time to fit the memory at hand.
      copy_async_wait<0>();
      float* sums = reinterpret_cast<float*>(slots);
      for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
        __syncthreads();
        if (static_cast<int>(threadIdx.y) != y) continue;
#pragma unroll
        for (int p = 0; p < kP; ++p)
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            const int column = first + p * stride + i;
            if (first + p * stride < columns) sums[column] = y == 0 ? dw[p][i] : sums[column] + dw[p][i];
          }
      }
      __syncthreads();
      for (int c = thread; c < columns; c += block_threads) partial[c] = sums[c];
    }
  }
}

int64_t partial_rows(int64_t rows, int rows_per_block) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm, needed = ceil_div(rows, rows_per_block);
  return needed < blocks ? needed : blocks;
}

template <class T, int kWidth, int kP, int kStages, bool kWeight>
cudaError_t launch(const RmsNormBackward& a, const RowGeometry& g, size_t stage_bytes, cudaStream_t stream) {
  const auto kernel = backward_kernel<T, kWidth, kP, kStages, kWeight>;
  size_t shared = kStages * stage_bytes;
  if (kWeight && g.rows > 1 && shared < a.columns * sizeof(float)) shared = a.columns * sizeof(float);
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = partial_rows(a.rows, g.rows);
  kernel<<<static_cast<unsigned>(blocks), dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream>>>(a);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || !kWeight) return error;
  void* out = a.dw_fp32 != nullptr ? a.dw_fp32 : a.dw;
  return column_sum(a.workspace, blocks, a.columns, a.columns, out, a.dw_fp32 != nullptr ? Element::kF32 : a.element, a.accumulate, stream);
}

template <class T, int kWidth, int kP, int kStages>
cudaError_t launch_weight(const RmsNormBackward& a, const RowGeometry& g, size_t stage_bytes, cudaStream_t stream) {
  if (a.dw != nullptr || a.dw_fp32 != nullptr) return launch<T, kWidth, kP, kStages, true>(a, g, stage_bytes, stream);
  return launch<T, kWidth, kP, kStages, false>(a, g, stage_bytes, stream);
}

}  // namespace

int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns) { return partial_rows(rows, 1) * columns; }

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  const bool weight = a.dw != nullptr || a.dw_fp32 != nullptr;
  if (a.columns == 0 || (a.rows == 0 && (!weight || a.accumulate))) return cudaSuccess;
  if (a.columns > kMaxColumns || (weight && a.workspace == nullptr)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    if (a.rows == 0)
      return column_sum(a.workspace, 0, a.columns, a.columns, a.dw_fp32 != nullptr ? a.dw_fp32 : a.dw,
                        a.dw_fp32 != nullptr ? Element::kF32 : a.element, false, stream);
    if (a.columns % kPack == 0 && aligned16(a.dy, a.x, a.weight, a.d_residual, a.dx)) {
      const RowGeometry g = row_geometry(a.columns, kPack, kPacks, kMaxThreads<T, kPack>, kBlockRows);
      const size_t bytes = size_t{16} * g.threads * g.rows * kPacks * (a.d_residual != nullptr ? 3 : 2);
      if (!g.fits) return cudaErrorInvalidValue;
      // Two blocks share a multiprocessor as long as a useful number of stages fits; the widest rows take it alone.
      if (3 * bytes <= kSharedBudget) return launch_weight<T, kPack, kPacks, 3>(a, g, bytes, stream);
      if (2 * bytes <= kSharedLimit) return launch_weight<T, kPack, kPacks, 2>(a, g, bytes, stream);
      return launch_weight<T, kPack, kPacks, 1>(a, g, bytes, stream);
    }
    const RowGeometry g = row_geometry(a.columns, 1, kScalarPacks, kMaxThreads<T, 1>, kBlockRows);
    if (!g.fits) return cudaErrorInvalidValue;
    return launch_weight<T, 1, kScalarPacks, 0>(a, g, 0, stream);
  });
}

}  // namespace trireme::kernels
