#include "kernels/layer_norm/layer_norm_backward_sums.h"

#include "kernels/launch.h"
#include "kernels/layer_norm/layer_norm_backward_pipelined.cuh"
#include "kernels/layer_norm/layer_norm_backward_sums.cuh"

namespace trireme::kernels {

namespace {

using namespace layer_norm_sums;

/// partials: receives the number of partial rows that the kernel writes, at most a.rows and at most
/// kLayerNormBlocksPerSm per multiprocessor. A row has at most kThreads packs.
template <class T, int kSums, bool kDropout, int kThreads, int kRows>
cudaError_t launch_sums(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const auto kernel = sums_kernel<T, kSums, kDropout, kThreads, kRows>;
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  const int threads = static_cast<int>(ceil_div(packs, 32) * 32), fit = kThreads / threads,
            groups = fit > kMaxGroups ? kMaxGroups : fit;
  const size_t inputs = size_t{2} * kRows * kThreads * 16, sums = block_sums_bytes(groups, a.columns, kSums),
               bytes = inputs > sums ? inputs : sums;
  if (const cudaError_t error = allow_shared_memory(kernel, bytes); error != cudaSuccess) return error;
  *partials = resident_blocks(kernel, threads * groups, bytes, kLayerNormBlocksPerSm, ceil_div(a.rows, groups));
  kernel<<<static_cast<unsigned>(*partials), dim3(static_cast<unsigned>(threads), static_cast<unsigned>(groups)), bytes,
           stream>>>(a);
  return cudaGetLastError();
}

/// The same for pipelined_kernel; a row has at most kThreads * kPacks * kParts packs.
template <class T, int kSums, bool kDropout, int kThreads, int kPacks, int kRows, int kBlocks, int kParts, bool kMore>
cudaError_t launch_pipelined(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const auto kernel = pipelined_kernel<T, kSums, kDropout, kThreads, kPacks, kRows, kBlocks, kParts, kMore>;
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  const int threads = static_cast<int>(ceil_div(ceil_div(packs, kParts * kPacks), 32) * 32), fit = kThreads / threads,
            groups = kParts > 1         ? 1
                     : fit > kMaxGroups ? kMaxGroups
                                        : fit;
  if (fit < 1) return cudaErrorInvalidValue;
  const size_t inputs = static_cast<size_t>(kMore ? 3 : 2) * kStages * kRows * kPacks * kThreads * 16,
               sums = block_sums_bytes(groups, a.columns, kSums), bytes = inputs > sums ? inputs : sums;
  if constexpr (kParts > 1) return launch_clusters(kernel, a, a.rows, kParts, threads, bytes, partials, stream);
  if (const cudaError_t error = allow_shared_memory(kernel, bytes); error != cudaSuccess) return error;
  *partials = resident_blocks(kernel, threads * groups, bytes, kLayerNormBlocksPerSm, ceil_div(a.rows, groups));
  kernel<<<static_cast<unsigned>(*partials), dim3(static_cast<unsigned>(threads), static_cast<unsigned>(groups)), bytes,
           stream>>>(a);
  return cudaGetLastError();
}

/// With a third input, shared memory holds half as many rows at once.
template <class T, int kSums, bool kDropout, int kParts>
cudaError_t launch_pipelined(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  if (a.d_sum != nullptr) return launch_pipelined<T, kSums, kDropout, 512, 2, 1, 1, kParts, true>(a, partials, stream);
  return launch_pipelined<T, kSums, kDropout, 512, 2, 2, 1, kParts, false>(a, partials, stream);
}

/// The fastest choice measured on an H200. A row of one pack per thread stays in registers between the two passes, four
/// rows at once, or two if a row is as wide as a block. Wider rows stay in shared memory, and the widest are shared by
/// a cluster.
template <class T, int kSums, bool kDropout>
cudaError_t launch(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  if constexpr (sizeof(T) == 2)
    if (a.d_sum == nullptr) {
      if (packs <= 256) return launch_sums<T, kSums, kDropout, 512, 4>(a, partials, stream);
      if (packs <= 512) return launch_sums<T, kSums, kDropout, 512, 2>(a, partials, stream);
      if (packs <= 640) return launch_sums<T, kSums, kDropout, 640, 2>(a, partials, stream);
      if (packs <= 1024) return launch_pipelined<T, kSums, kDropout, 512, 1, 4, 1, 2, false>(a, partials, stream);
      if constexpr (kSums == 2) return launch_pipelined<T, 2, kDropout, 256, 1, 4, 2, 8, false>(a, partials, stream);
    }
  if (packs <= 1024) return launch_pipelined<T, kSums, kDropout, 1>(a, partials, stream);
  // An fp32 row of kMaxColumns has 4,096 packs, a 16-bit row half as many.
  constexpr int kParts = sizeof(T) == 2 ? 2 : 4;
  return launch_pipelined<T, kSums, kDropout, kParts>(a, partials, stream);
}

}  // namespace

cudaError_t layer_norm_backward_sums(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  // The kernel counts rows, including those that it prefetches, in 32 bits.
  if (a.rows > INT32_MAX - (1 << 20)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    const bool dropout = a.dropout.ids != nullptr;
    if (a.d_bias != nullptr)
      return dropout ? launch<T, 3, true>(a, partials, stream) : launch<T, 3, false>(a, partials, stream);
    return dropout ? launch<T, 2, true>(a, partials, stream) : launch<T, 2, false>(a, partials, stream);
  });
}

}  // namespace trireme::kernels
