#pragma once
// Private to ops/: launches of kernels/embedding.

#include "trireme/ops/embedding.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// Results of the BERT embedding's forward, which its backward reads; mean and rstd fp32 [T, 1].
struct BertEmbeddingRows {
  at::Tensor sum, y, mean, rstd;
};

namespace launch {

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids);
/// The gradient of a table from dy [.., D] and ids; the target has dy's dtype or fp32.
void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, const GradientTarget& target);
BertEmbeddingRows bert_embedding(const BertTables& tables, const BertTokens& tokens, double eps,
                                 const Dropout& dropout);

}  // namespace launch
}  // namespace trireme
