#pragma once
// Rows of a matrix by index, with a deterministic gradient.

#include "trireme/nn/weight.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/trained_rows.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// y[.., :] = table[ids[..], :]. table [V, D] of any floating dtype, ids int64 of any shape, values in [0, V). In our
/// kernel an id outside gives a row of NaN, which the non-finite check finds; elsewhere LibTorch throws. The gradient
/// of a row is the sum over its occurrences, of 16 bits in fp32 and rounded once, with our kernel in a fixed order.
/// `sink`: takes the gradient of a table that does not require grad; null: none. The row `padding` gets no gradient
/// (-1: all do).
at::Tensor embed(const at::Tensor& table_VD, const at::Tensor& ids, GradientSink* sink = nullptr, int64_t padding = -1);

/// x [T, D], the embedding of ids [T] by a frozen table that has the values of `rows`: their gradient goes to them.
at::Tensor train_rows(const at::Tensor& x_TD, const at::Tensor& ids, const TrainedRows& rows);

/// x[rows[p], :], e.g. the positions whose words an MLM head predicts; gradient as for embed(). x [T, D], rows int64
/// [P].
at::Tensor gather_rows(const at::Tensor& x_TD, const at::Tensor& rows_P);

// BERT's input embedding: word, position and type embeddings, layer norm, dropout.

struct BertTables {
  at::Tensor word, position, type;    // [rows of the table, D]
  at::Tensor gamma, beta;             // [D]
  GradientSink* word_sink = nullptr;  // as embed() takes it
  int64_t padding = -1;               // of the word table
};

struct BertTokens {
  at::Tensor ids, positions, types;  // int64 [T]
};

/// dropout(layer_norm(word[ids] + position[positions] + type[types]) * gamma + beta) [T, D]. The tables, the vectors
/// and the result have one floating dtype. Keeps the sum, its mean and its reciprocal standard deviation for backward;
/// dropout is recomputed. Our forward is one kernel that rounds the sum once, gradients of the tables are summed
/// in a fixed order, and an index outside its table gives a row of NaN; elsewhere a LibTorch composition, which throws
/// for such an index. ids, positions and types of different sizes are an internal error.
at::Tensor bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps, const Dropout& dropout);

}  // namespace trireme
