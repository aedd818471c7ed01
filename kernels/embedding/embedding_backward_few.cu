// The gradient of a table with very few rows, such as BERT's token types: every block sums a range of tokens for each
// id, and a second kernel adds the blocks' sums in order.

#include "kernels/embedding/embedding.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 128, kAhead = 8, kBlocksPerSm = 8, kSumThreads = 512, kLanes = 32,
              kSumColumns = kSumThreads / kLanes;

/// partial: [ranges, vocab, columns].
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    stretch_kernel(const EmbeddingBackward a, int64_t stretch, float* partial, int* seen) {
  allow_next_kernel();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth,
                first = blockIdx.y * stretch, last = first + stretch < a.tokens ? first + stretch : a.tokens;
  if (column >= a.columns) return;
  const T* const dy = static_cast<const T*>(a.dy) + column;
  float sums[kFewIds][kWidth] = {};
  bool occurs[kFewIds] = {};
  for (int64_t t = first; t < last; t += kAhead) {
    Vec<T, kWidth> rows[kAhead];
    int64_t ids[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      ids[k] = -1;
      if (t + k >= last) continue;
      ids[k] = a.ids[t + k];
      rows[k] = load_stream<T, kWidth>(dy + (t + k) * a.columns);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
#pragma unroll
      for (int id = 0; id < kFewIds; ++id) {
        if (ids[k] != id) continue;
        occurs[id] = true;
        add_to(sums[id], rows[k]);
      }
    }
  }
#pragma unroll
  for (int id = 0; id < kFewIds; ++id) {
    if (id >= a.vocab) break;
    write_row(partial + (blockIdx.y * a.vocab + id) * a.columns + column, sums[id], false);
    if (occurs[id]) seen[id] = 1;
  }
}

/// A block owns kSumColumns columns of a row; its lanes take the ranges in turn.
template <class G>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const EmbeddingBackward a, int stretches, const float* partial, const int* seen) {
  __shared__ float sums[kLanes][kSumColumns];
  await_kernel_before();
  const int lane = static_cast<int>(threadIdx.x) / kSumColumns, own = static_cast<int>(threadIdx.x) % kSumColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + own, id = blockIdx.y;
  if (seen[id] == 0) return;
  float sum = 0.0f;
  if (column < a.columns) {
#pragma unroll 8
    for (int s = lane; s < stretches; s += kLanes) sum += partial[(s * a.vocab + id) * a.columns + column];
  }
  sums[lane][own] = sum;
  __syncthreads();
  if (lane > 0 || column >= a.columns) return;
  float total[1] = {};
  for (int l = 0; l < kLanes; ++l) total[0] += sums[l][own];
  write_row(static_cast<G*>(a.d_table) + id * a.columns + column, total, a.accumulate);
}

template <class T>
cudaError_t launch(const EmbeddingBackward& a, float* partial, int* seen, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  const bool packed = a.columns % kPack == 0 && aligned16(a.dy);
  const int64_t tiles = ceil_div(a.columns, kThreads * (packed ? kPack : 1)),
                room = 2 * ceil_div(a.tokens, kEmbeddingGroup) / a.vocab,
                wanted = ceil_div(static_cast<int64_t>(multiprocessors()) * kBlocksPerSm, tiles),
                stretch = ceil_div(a.tokens, wanted < room ? wanted : room), stretches = ceil_div(a.tokens, stretch);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(stretches));
  if (packed)
    stretch_kernel<T, kPack><<<grid, kThreads, 0, stream>>>(a, stretch, partial, seen);
  else
    stretch_kernel<T, 1><<<grid, kThreads, 0, stream>>>(a, stretch, partial, seen);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const dim3 sums(static_cast<unsigned>(ceil_div(a.columns, kSumColumns)), static_cast<unsigned>(a.vocab));
  const auto kernel = a.table_element == a.element ? sum_kernel<T> : sum_kernel<float>;
  return launch_behind(kernel, sums, kSumThreads, 0, stream, a, static_cast<int>(stretches), partial, seen);
}

}  // namespace

cudaError_t embedding_backward_few(const EmbeddingBackward& a, float* partial, int* seen, cudaStream_t stream) {
  if (const cudaError_t error = cudaMemsetAsync(seen, 0, kFewIds * sizeof(int), stream); error != cudaSuccess)
    return error;
  return dispatch(a.element, [&](auto zero) { return launch<decltype(zero)>(a, partial, seen, stream); });
}

}  // namespace trireme::kernels
