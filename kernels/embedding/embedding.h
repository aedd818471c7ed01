#pragma once
// Embedding lookup and its gradient.
//
//   forward   y[t] = table[ids[t]]
//   backward  d_table[v] = (accumulate ? d_table[v] : 0) + sum over t with ids[t] == v of dy[t], t
//             ascending in fixed groups
//
// table, d_table: [vocab, columns]; y, dy: [tokens, columns]; ids: int64 [tokens]; device pointers. An id outside the
// table gives a row of NaN in y and adds nothing to d_table. Without accumulate only rows whose id occurs are written;
// the caller zeroes the others. The gradient sorts the tokens by id (stable; with embedding.cuh for up to 524,288
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

/// BERT's input embedding in one pass: three lookups, layer norm, dropout.
///
///   s = to(T, word[ids] + position[positions] + type[types])      one rounding of the fp32 sum
///   mean, var over the row (biased),  rstd = 1 / sqrt(var + eps)
///   y = dropout(to(T, (s - mean) * rstd * gamma + beta))           dropout as in kernels/dropout/dropout.h
///
/// Tables word [vocab, columns], position [max_positions, columns], type [types, columns] and gamma, beta [columns]:
/// device, one element type T. ids, positions, types: int64 [rows]; an index outside its table gives a row of NaN. s
/// (an input of backward) and y: [rows, columns]; mean, rstd: fp32 [rows]; s, mean and rstd may be null. Backward is
/// composed of dropout of dy, layer_norm_backward() on s, and embedding_backward() once per table. columns <= 2,048, or
/// <= 512 if columns is not a multiple of 16 / sizeof(T) or a pointer is not 16-byte aligned. Deterministic, no
/// allocation, no synchronisation.
struct BertEmbedding {
  const void* word = nullptr;
  const void* position = nullptr;
  const void* type = nullptr;
  const int64_t* ids = nullptr;
  const int64_t* positions = nullptr;
  const int64_t* types = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  void* sum = nullptr;
  void* y = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;
  // Row r is row r % rows_per_sample of sample sample_ids[r / rows_per_sample]; null: no dropout.
  const int64_t* sample_ids = nullptr;
  int64_t rows_per_sample = 1;
  uint32_t t0 = 0, t1 = 0, threshold = 0;
  float scale = 1;
  int64_t rows = 0, columns = 0, vocab = 0, max_positions = 0, num_types = 0;
  float eps = 0;
  Element element = Element::kBF16;
};
cudaError_t bert_embedding_forward(const BertEmbedding& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
