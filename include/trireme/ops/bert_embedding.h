#pragma once
// The input of BERT: word, position and type embeddings, layer norm, dropout.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

struct BertTables {
  at::Tensor word, position, type;  // [.., D]
  at::Tensor gamma, beta;           // [D]
};

/// dropout(layer_norm(word[ids] + position[positions] + type[types]) * gamma + beta) [B, S, D];
/// ids, positions, types int64 [B, S]. Keeps the sum, its mean and reciprocal deviation for
/// backward; dropout is formed again. On sm_90 one kernel forward, the sum rounded once, and
/// gradients of the tables in a fixed order; elsewhere a LibTorch composition. `stream` names the
/// place, as in apply_dropout().
at::Tensor bert_embedding(const BertTables& tables, const at::Tensor& ids_BS, const at::Tensor& positions_BS,
                          const at::Tensor& types_BS, double eps, const Dropout& dropout, uint64_t stream);

}  // namespace trireme
