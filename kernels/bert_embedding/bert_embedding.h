#pragma once
// BERT's input embedding in one pass: three lookups, layer norm, dropout.
//
//   s = to(T, word[ids] + position[positions] + type[types])      one rounding of the fp32 sum
//   mean, var over the row (biased),  rstd = 1 / sqrt(var + eps)
//   y = dropout(to(T, (s - mean) * rstd * gamma + beta))           dropout as in kernels/dropout/dropout.h
//
// Tables word [vocab, columns], position [max_positions, columns], type [types, columns] and gamma, beta [columns]:
// device, one element type T. ids, positions, types: int64 [rows]; an index outside its table gives a row of NaN. s (an
// input of backward) and y: [rows, columns]; mean, rstd: fp32 [rows]; s, mean and rstd may be null. Backward is
// composed of dropout of dy, layer_norm_backward() on s, and embedding_backward() once per table. columns <= 2,048, or
// <= 512 if columns is not a multiple of 16 / sizeof(T) or a pointer is not 16-byte aligned. Deterministic, no
// allocation, no synchronisation.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

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
