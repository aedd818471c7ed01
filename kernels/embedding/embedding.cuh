#pragma once
// Shared by the implementations of the embedding's gradient.

#include "kernels/device.cuh"
#include "kernels/embedding/embedding.h"
#include "kernels/launch.h"

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

/// Sorts tokens by id: a radix sort with 8-bit digits that launches one kernel per digit and one before them. For the
/// number of tokens in a step, launches and their latency dominate the time of a general sort (H200, 131,072 tokens
/// with 15-bit ids: 33 us with CUB).
struct KeySort {
  const int64_t* ids = nullptr;  // [tokens]; an id outside the vocabulary counts as vocab
  int64_t tokens = 0, vocab = 0;
  int id_bits = 0, token_bits = 0;  // together at most 32
  uint32_t* keys = nullptr;         // [tokens], the result: id << token_bits | token, ascending
  uint32_t* spare = nullptr;        // [tokens]
  uint32_t* counts = nullptr;       // embedding_sort_counts()
  int* zeroed = nullptr;            // set to zero as well, for the next kernel
};

bool embedding_sort_fits(int64_t tokens, int id_bits, int token_bits);
int64_t embedding_sort_counts(int64_t tokens);
/// The next kernel may be launched with launch_behind() (kernels/launch.h).
cudaError_t embedding_sort(const KeySort& sort, cudaStream_t stream);

}  // namespace trireme::kernels
