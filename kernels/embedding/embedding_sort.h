#pragma once
// Sorts tokens by id: a radix sort with 8-bit digits that launches one kernel per digit and one before them. For the
// number of tokens in a step, launches and their latency dominate the time of a general sort (H200, 131,072 tokens with
// 15-bit ids: 33 us with CUB).

#include "kernels/embedding/embedding.h"

namespace trireme::kernels {

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
/// The next kernel may be launched with launch_behind() (kernels/launch_behind.cuh).
cudaError_t embedding_sort(const KeySort& sort, cudaStream_t stream);

}  // namespace trireme::kernels
