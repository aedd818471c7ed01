#pragma once
// The input of BERT: word, position and type embeddings, layer norm, dropout.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct BertTables {
  at::Tensor word, position, type;  // [.., D]
  at::Tensor gamma, beta;           // [D]
};

struct BertTokens {
  at::Tensor ids, positions, types;  // int64 [T]
};

/// dropout(layer_norm(word[ids] + position[positions] + type[types]) * gamma + beta) [T, D]. Keeps the sum, its mean
/// and reciprocal deviation for backward; dropout is recomputed. On sm_90 one kernel forward, the sum rounded once, and
/// gradients of the tables in a fixed order; elsewhere a LibTorch composition.
at::Tensor bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps, const Dropout& dropout);

}  // namespace trireme
