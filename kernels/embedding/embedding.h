#pragma once
// Embedding lookup and its gradient.
//
//   forward   y[t] = table[ids[t]]
//   backward  d_table[v] = (accumulate ? d_table[v] : 0) + sum over t with ids[t] == v of dy[t], t
//             ascending in fixed groups
//
// table, d_table: [vocab, columns]; y, dy: [tokens, columns]; ids: int64 [tokens]; device pointers. An id outside the
// table gives a row of NaN in y and adds nothing to d_table. Without accumulate only rows whose id occurs are written;
// the caller zeroes the others. The gradient sorts the tokens by id (stable; with embedding_sort.h for up to 524,288
// tokens if token number and id fit into 32 bits together, otherwise with CUB), sums runs of equal ids in fp32 and
// rounds once: deterministic, no atomics on floats. A table of at most two rows, such as BERT's token types, needs no
// sort. workspace: embedding_backward_workspace() bytes, 256-byte aligned. No allocation, no synchronisation. Any width
// and alignment; tokens and table rows are each below 2^31 - 1.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace trireme::kernels {

struct EmbeddingForward {
  const void* table = nullptr;
  const int64_t* ids = nullptr;
  void* y = nullptr;
  int64_t tokens = 0, vocab = 0, columns = 0;
  Element element = Element::kBF16;
};
cudaError_t embedding_forward(const EmbeddingForward& arguments, cudaStream_t stream);

struct EmbeddingBackward {
  const void* dy = nullptr;
  const int64_t* ids = nullptr;
  void* d_table = nullptr;
  void* workspace = nullptr;
  int64_t tokens = 0, vocab = 0, columns = 0;
  bool accumulate = false;
  Element element = Element::kBF16;        // type of dy
  Element table_element = Element::kBF16;  // type of d_table: that of dy, or fp32
};
size_t embedding_backward_workspace(int64_t tokens, int64_t columns);
cudaError_t embedding_backward(const EmbeddingBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
