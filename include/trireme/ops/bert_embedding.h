#pragma once
// BERT's input embedding: word, position and type embeddings, layer norm, dropout.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct BertTables {
  at::Tensor word, position, type;  // [rows of the table, D]
  at::Tensor gamma, beta;           // [D]
};

struct BertTokens {
  at::Tensor ids, positions, types;  // int64 [T]
};

/// dropout(layer_norm(word[ids] + position[positions] + type[types]) * gamma + beta) [T, D]. The tables and vectors
/// have one floating dtype, which is that of the result. Keeps the sum, its mean and its reciprocal standard deviation
/// for backward; dropout is recomputed. On sm_90 forward is one kernel that rounds the sum once, gradients of the
/// tables are summed in a fixed order, and an index outside its table gives a row of NaN; elsewhere a LibTorch
/// composition, which throws for such an index. ids, positions and types of different sizes are an internal error.
at::Tensor bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps, const Dropout& dropout);

}  // namespace trireme
