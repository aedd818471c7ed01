#pragma once
// Shared by the two implementations of the embedding's gradient.

#include "kernels/device.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/launch_behind.cuh"

namespace trireme::kernels {

/// Tokens of a group; each group has two fp32 rows in the workspace.
constexpr int kEmbeddingGroup = 32;

/// With at most this many ids the sums stay in registers and nothing is sorted.
constexpr int kFewIds = 2;

/// partial: two fp32 rows for each group of tokens; seen: kFewIds integers.
cudaError_t embedding_backward_few(const EmbeddingBackward& arguments, float* partial, int* seen, cudaStream_t stream);

/// 16 bytes at a time if kWidth > 1.
template <class G, int kWidth>
__device__ inline void write_row(G* to, const float (&sum)[kWidth], bool accumulate) {
  constexpr int kPart = kWidth == 1 ? 1 : 16 / sizeof(G);
#pragma unroll
  for (int first = 0; first < kWidth; first += kPart) {
    float old[kPart] = {};
    if (accumulate) to_floats(*reinterpret_cast<const Vec<G, kPart>*>(to + first), old);
#pragma unroll
    for (int i = 0; i < kPart; ++i) old[i] += sum[first + i];
    store(to + first, from_floats<G>(old));
  }
}

}  // namespace trireme::kernels
