#pragma once
// Tokens in the order of their ids: a radix sort by digits of eight bits that launches one kernel
// for each digit and one to begin with. For as many tokens as a step has, launches and what they wait
// for are most of a general sort's time (H200, 131,072 tokens of 15 bits: 33 us by CUB).

#include "kernels/embedding/embedding.h"

namespace trireme::kernels {

struct KeySort {
  const int64_t* ids = nullptr;  // [tokens]; a stray id counts as vocab
  int64_t tokens = 0, vocab = 0;
  int id_bits = 0, token_bits = 0;  // together at most 32
  uint32_t* keys = nullptr;         // [tokens], the result: id << token_bits | token, ascending
  uint32_t* spare = nullptr;        // [tokens]
  uint32_t* counts = nullptr;       // embedding_sort_counts()
  int* zeroed = nullptr;            // set to zero besides, for the kernel that comes next
};

bool embedding_sort_fits(int64_t tokens, int id_bits, int token_bits);
int64_t embedding_sort_counts(int64_t tokens);
/// The next kernel may be launched behind it (kernels/launch_behind.cuh).
cudaError_t embedding_sort(const KeySort& sort, cudaStream_t stream);

}  // namespace trireme::kernels
