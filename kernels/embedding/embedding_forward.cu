#include "kernels/device.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4, kMostTokens = 16, kTogether = 2;

/// A warp copies the same range of kUnroll * 32 packs of `tokens` rows, up to kMostTokens. One load reads all their
/// ids, and kTogether rows are in flight at a time, which hides the latency of the two dependent loads.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(const EmbeddingForward a, unsigned stretches, int tokens) {
  await_kernel_before();
  const unsigned unit = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first_token = static_cast<int64_t>(unit / stretches) * tokens;
  if (first_token >= a.tokens) return;
  const int count = static_cast<int>(a.tokens - first_token < tokens ? a.tokens - first_token : tokens);
  const int64_t first = static_cast<int64_t>(unit % stretches) * (kUnroll * 32 * kWidth) + lane * kWidth;
  const int64_t own = static_cast<int>(lane) < count ? a.ids[first_token + lane] : -1;
  const int mine = own >= 0 && own < a.vocab ? static_cast<int>(own) : -1;
  const T* table = static_cast<const T*>(a.table) + first;
  T* out = static_cast<T*>(a.y) + first_token * a.columns + first;
  for (int begin = 0; begin < count; begin += kTogether) {
    Vec<T, kWidth> vec[kTogether][kUnroll];
    int id[kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      id[r] = __shfl_sync(0xffffffffu, mine, begin + r);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (id[r] >= 0 && first + k * 32 * kWidth < a.columns)
          vec[r][k] = load_stream<T, kWidth>(table + static_cast<int64_t>(id[r]) * a.columns + k * 32 * kWidth);
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      if (begin + r >= count) continue;
      if (id[r] < 0) {
        float nan[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) nan[i] = __int_as_float(0x7fffffff);
#pragma unroll
        for (int k = 0; k < kUnroll; ++k) vec[r][k] = from_floats<T>(nan);
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (first + k * 32 * kWidth < a.columns) store(out + (begin + r) * a.columns + k * 32 * kWidth, vec[r][k]);
    }
  }
}

template <class T, int kWidth>
cudaError_t launch(const EmbeddingForward& a, cudaStream_t stream) {
  const int64_t stretches = ceil_div(a.columns, kUnroll * 32 * kWidth);
  // Few rows are spread over all multiprocessors.
  const int tokens = a.tokens * stretches >= int64_t{4} * kMostTokens * multiprocessors() ? kMostTokens : kTogether;
  const int64_t blocks = ceil_div(ceil_div(a.tokens, tokens) * stretches, kThreads / 32);
  if (blocks > INT32_MAX / (kThreads / 32)) return cudaErrorInvalidValue;
  return launch_behind(forward_kernel<T, kWidth>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, a,
                       static_cast<unsigned>(stretches), tokens);
}

}  // namespace

cudaError_t embedding_forward(const EmbeddingForward& a, cudaStream_t stream) {
  if (a.tokens == 0 || a.columns == 0) return cudaSuccess;
  if (a.tokens > INT32_MAX || a.vocab <= 0 || a.vocab > INT32_MAX) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    return a.columns % kPack == 0 && aligned16(a.table, a.y) ? launch<T, kPack>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace trireme::kernels
