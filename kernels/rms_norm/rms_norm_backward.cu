#include "kernels/column_sum/column_sum.h"
#include "kernels/device.cuh"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_geometry.h"

namespace trireme::kernels {

namespace {

constexpr int kBlockRows = 8, kBlocksPerSm = 2, kScalarThreads = 256;
constexpr size_t kSharedBudget = 104 * 1024, kSharedLimit = 200 * 1024;


/// Blocks stay for the whole matrix. Each thread copies its own packs of the rows to come into its own slots of shared memory, so the
/// pipeline needs no barrier.
template <class T, int kStages, bool kWeight>
__global__ void __launch_bounds__(kMaxRowThreads, 1) backward_kernel(const RmsNormBackward a) {
  constexpr int kWidth = 16 / sizeof(T), kPacks = kRowElements / kWidth;
  extern __shared__ __align__(16) char slots[];
  __shared__ float scratch[2][32];
  const int columns = static_cast<int>(a.columns), stride = blockDim.x * kWidth, first = threadIdx.x * kWidth;
  const int inputs = a.d_residual != nullptr ? 3 : 2;
  const int block_threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const T* sources[3] = {static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.d_residual)};

  const auto slot = [&](int stage, int input, int p) {
    return slots + ((static_cast<size_t>(stage * inputs + input) * kPacks + p) * block_threads + thread) * 16;
  };
  const auto fetch = [&](int64_t row, int stage) {
    if (row < a.rows) {
#pragma unroll
      for (int input = 0; input < 3; ++input) {
        if (input < inputs) {
#pragma unroll
          for (int p = 0; p < kPacks; ++p)
            if (first + p * stride < columns) copy_async16(slot(stage, input, p), sources[input] + row * columns + first + p * stride);
        }
      }
    }
    copy_async_commit();
  };
  const auto read = [&](int stage, int input, int p) { return *reinterpret_cast<const Vec<T, kWidth>*>(slot(stage, input, p)); };

  // Sums of dw and an fp32 weight together are more than the registers hold: L1 keeps the latter.
  constexpr bool kKeep = sizeof(T) == 2;
  const auto read_weight = [&](int p) { return load_shared_read<T, kWidth>(static_cast<const T*>(a.weight) + first + p * stride); };
  Vec<T, kWidth> kept[kKeep ? kPacks : 1];
  if constexpr (kKeep) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      if (first + p * stride < columns) kept[p] = read_weight(p);
  }
  const auto weight = [&](int p) {
    if constexpr (kKeep)
      return kept[p];
    else
      return read_weight(p);
  };
  float dw[kWeight ? kPacks : 1][kWeight ? kWidth : 1];
  if constexpr (kWeight) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) dw[p][i] = 0.0f;
  }

  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch(row + s * row_step, s);
  int stage = 0, turn = 0;
  for (; row < a.rows; row += row_step) {
    fetch(row + (kStages - 1) * row_step, stage == 0 ? kStages - 1 : stage - 1);
    copy_async_wait<kStages - 1>();
    const float rstd = a.rstd[row];
    float dot[1] = {0.0f};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (first + p * stride < columns) {
        float g[kWidth], s[kWidth], v[kWidth];
        to_floats(read(stage, 0, p), g);
        to_floats(read(stage, 1, p), s);
        to_floats(weight(p), v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) dot[0] += g[i] * v[i] * s[i];
      }
    }
    row_sum(dot, blockDim.x, scratch[turn]);
    turn ^= 1;
    const float factor = dot[0] * rstd * rstd / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (first + p * stride < columns) {
        float g[kWidth], s[kWidth], v[kWidth];
        to_floats(read(stage, 0, p), g);
        to_floats(read(stage, 1, p), s);
        if constexpr (kWeight) {
          float n[kWidth];
#pragma unroll
          for (int i = 0; i < kWidth; ++i) n[i] = s[i] * rstd;
          to_floats(from_floats<T>(n), n);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) dw[p][i] += g[i] * n[i];
        }
        to_floats(weight(p), v);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] = rstd * (g[i] * v[i] - s[i] * factor);
        if (inputs == 3) {
          to_floats(read(stage, 2, p), v);
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
      for (int p = 0; p < kPacks; ++p)
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          if (first + p * stride < columns) partial[first + p * stride + i] = dw[p][i];
    } else {
      // One warp per row: the block's warps are added in order.
      copy_async_wait<0>();
      float* sums = reinterpret_cast<float*>(slots);
      for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
        __syncthreads();
        if (static_cast<int>(threadIdx.y) != y) continue;
#pragma unroll
        for (int p = 0; p < kPacks; ++p)
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

/// Any width and alignment. dw gathers in shared memory, each thread touching its own columns only.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const RmsNormBackward a) {
  extern __shared__ float sums[];
  __shared__ float scratch[2][32];
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
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) {
      const float g = to_float(dy[base + c]), s = to_float(x[base + c]);
      if (weight) sums[c] += g * to_float(from_float<T>(s * rstd));
      if (a.dx == nullptr) continue;
      float d = rstd * (g * to_float(w[c]) - s * factor);
      if (a.d_residual != nullptr) d += to_float(static_cast<const T*>(a.d_residual)[base + c]);
      static_cast<T*>(a.dx)[base + c] = from_float<T>(d);
    }
  }
  if (weight)
    for (int c = threadIdx.x; c < columns; c += kScalarThreads) a.workspace[static_cast<int64_t>(blockIdx.x) * columns + c] = sums[c];
}

int64_t partial_rows(int64_t rows, int rows_per_block) {
  const int64_t blocks = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm, needed = ceil_div(rows, rows_per_block);
  return needed < blocks ? needed : blocks;
}

bool wants_weight(const RmsNormBackward& a) { return a.dw != nullptr || a.dw_fp32 != nullptr; }

cudaError_t finish(const RmsNormBackward& a, int64_t blocks, cudaStream_t stream) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess || !wants_weight(a)) return error;
  void* out = a.dw_fp32 != nullptr ? a.dw_fp32 : a.dw;
  return column_sum(a.workspace, blocks, a.columns, a.columns, out, a.dw_fp32 != nullptr ? Element::kF32 : a.element, a.accumulate, stream);
}

template <class T, int kStages, bool kWeight>
cudaError_t launch(const RmsNormBackward& a, const RowGeometry& g, size_t stage_bytes, cudaStream_t stream) {
  const auto kernel = backward_kernel<T, kStages, kWeight>;
  const size_t stages = kStages * stage_bytes, sums = kWeight && g.rows > 1 ? a.columns * sizeof(float) : 0;
  const size_t shared = stages > sums ? stages : sums;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  const int64_t blocks = partial_rows(a.rows, g.rows);
  kernel<<<static_cast<unsigned>(blocks), dim3(static_cast<unsigned>(g.threads), static_cast<unsigned>(g.rows)), shared, stream>>>(a);
  return finish(a, blocks, stream);
}

template <class T, int kStages>
cudaError_t launch_weight(const RmsNormBackward& a, const RowGeometry& g, size_t stage_bytes, cudaStream_t stream) {
  return wants_weight(a) ? launch<T, kStages, true>(a, g, stage_bytes, stream) : launch<T, kStages, false>(a, g, stage_bytes, stream);
}

template <class T>
cudaError_t launch_scalar(const RmsNormBackward& a, cudaStream_t stream) {
  const size_t shared = wants_weight(a) ? a.columns * sizeof(float) : 0;
  if (const cudaError_t error = allow_shared_memory(backward_scalar_kernel<T>, shared); error != cudaSuccess) return error;
  const int64_t blocks = partial_rows(a.rows, 1);
  backward_scalar_kernel<T><<<static_cast<unsigned>(blocks), kScalarThreads, shared, stream>>>(a);
  return finish(a, blocks, stream);
}

}  // namespace

int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns) { return partial_rows(rows, 1) * columns; }

cudaError_t rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  if (a.columns > kMaxColumns || (wants_weight(a) && a.rows > 0 && a.workspace == nullptr)) return cudaErrorInvalidValue;
  if (a.rows == 0) return finish(a, 0, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T), kPacks = kRowElements / kPack;
    if (a.columns % kPack != 0 || !aligned16(a.dy, a.x, a.weight, a.d_residual, a.dx)) return launch_scalar<T>(a, stream);
    const RowGeometry g = row_geometry(a.columns, kPack, kBlockRows);
    const size_t bytes = size_t{16} * g.threads * g.rows * kPacks * (a.d_residual != nullptr ? 3 : 2);
    // Two blocks share a multiprocessor as long as a useful number of stages fits; the widest rows take it alone.
    if (3 * bytes <= kSharedBudget) return launch_weight<T, 3>(a, g, bytes, stream);
    if (2 * bytes <= kSharedLimit) return launch_weight<T, 2>(a, g, bytes, stream);
    return launch_scalar<T>(a, stream);  // fp32 rows of more than about 12,000 columns
  });
}

}  // namespace trireme::kernels
