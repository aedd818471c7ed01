#include "kernels/optimizer/optimizer.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 512, kBlocksPerSm = 2, kMaxBuffers = 64, kUnroll = 8;

struct Buffers {
  const void* data[kMaxBuffers];
  int64_t count[kMaxBuffers];
  double share[kMaxBuffers];
  int number;
};

__device__ inline double block_sum(double sum, double* scratch) {
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = 0.0;
  if (threadIdx.x == 0)
    for (int w = 0; w < kThreads / 32; ++w) total += scratch[w];
  return total;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    square_kernel(const __grid_constant__ Buffers buffers, double* partial, bool accumulate) {
  await_kernel_before();
  __shared__ double scratch[kThreads / 32];
  constexpr int kPack = 16 / sizeof(T);
  double sum = 0.0;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                threads = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int b = 0; b < buffers.number; ++b) {
    const T* data = static_cast<const T*>(buffers.data[b]);
    const int64_t count = buffers.count[b];
    const bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    const int64_t packs = aligned ? count / kPack : 0;
    double local = 0.0;
    for (int64_t first = thread; first < packs; first += threads * kUnroll) {
      Vec<T, kPack> vec[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (first + k * threads < packs) vec[k] = load_stream<T, kPack>(data + (first + k * threads) * kPack);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (first + k * threads >= packs) continue;
        float v[kPack];
        to_floats(vec[k], v);
        if constexpr (sizeof(T) == 2) {
          // Eight squares are summed in fp32, where they neither overflow nor underflow: fp64 alone would be slower
          // than the memory.
          float part = 0.0f;
#pragma unroll
          for (int i = 0; i < kPack; ++i) part += v[i] * v[i];
          if (part > 1e-20f && part < 1e38f) {
            local += static_cast<double>(part);
            continue;
          }
        }
#pragma unroll
        for (int i = 0; i < kPack; ++i) local = fma(static_cast<double>(v[i]), static_cast<double>(v[i]), local);
      }
    }
    for (int64_t i = packs * kPack + thread; i < count; i += threads) {
      const double v = static_cast<double>(to_float(data[i]));
      local = fma(v, v, local);
    }
    sum += local * buffers.share[b];
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = (accumulate ? partial[blockIdx.x] : 0.0) + sum;
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const double* partial, int count, double* square) {
  await_kernel_before();
  __shared__ double scratch[kThreads / 32];
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *square = sum;
}

int blocks() { return multiprocessors() * kBlocksPerSm; }

}  // namespace

int64_t global_norm_workspace() { return blocks(); }

cudaError_t global_square(const GradientBuffer* buffers, int num_buffers, Element element, double* square,
                          double* workspace, cudaStream_t stream) {
  const int grid = blocks();
  if (grid == 0) return cudaErrorNoDevice;
  int done = 0;
  do {
    Buffers part{};
    while (done < num_buffers && part.number < kMaxBuffers) {
      part.data[part.number] = buffers[done].data;
      part.count[part.number] = buffers[done].count;
      part.share[part.number++] = buffers[done].share;
      ++done;
    }
    const bool again = done > kMaxBuffers;
    const cudaError_t error = dispatch(element, [&](auto zero) {
      return launch_behind(square_kernel<decltype(zero)>, dim3(static_cast<unsigned>(grid)), kThreads, 0, stream, part,
                           workspace, again);
    });
    if (error != cudaSuccess) return error;
  } while (done < num_buffers);
  return launch_behind(finish_kernel, 1, kThreads, 0, stream, workspace, grid, square);
}

}  // namespace trireme::kernels
