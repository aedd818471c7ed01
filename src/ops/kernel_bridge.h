#pragma once
// Private to ops/: tensors to our CUDA kernels. In a build without CUDA, and on GPUs other than
// sm_90, has_kernels() is false and the LibTorch composition serves.

#include "trireme/ops/bert_embedding.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/kernels.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

namespace trireme::bridge {

/// What the BERT embedding's forward gives and its backward reads; mean and rstd fp32 [B, S, 1].
struct BertRows {
  at::Tensor sum, y, mean, rstd;
};

#ifdef TRIREME_WITH_CUDA
/// A GPU of the kind that our kernels were built for.
bool on_hopper(at::Device device);
/// out = (accumulate ? out : 0) + dropout(x); x and out contiguous [B, S, D].
void dropout(const at::Tensor& x, at::Tensor& out, const at::Tensor& sample_ids, const DropoutKey& key,
             bool accumulate);
/// In place on heads [B, S, heads, H] contiguous; false when the shape does not suit the kernel.
bool rope_rotate(at::Tensor heads, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated);
/// d_qkv [B, S, q + 2 kv, H] from gradients of any strides; undefined when the shape does not suit the kernel.
at::Tensor rope_merge(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const at::Tensor& cos,
                      const at::Tensor& sin);
/// Cross-entropy of logits [T, V] (rows may lie apart), which become gradient_weights * (softmax - one-hot) when
/// wanted. weights and gradient_weights fp32 [T], zero in the same places; losses fp32 [T] are weighted.
void cross_entropy_(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                    const at::Tensor& gradient_weights, at::Tensor& losses, bool want_gradient);
/// fp32 scalar; fp64 inside, one fixed order.
at::Tensor sum(const at::Tensor& values);
/// x * factor (fp32 scalar), the product in fp32.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor, at::ScalarType dtype);
/// x [T, D] contiguous, row t times factors[t] (fp32), the product in fp32.
at::Tensor scaled_rows(const at::Tensor& x, const at::Tensor& factors);
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids);
/// d_table [rows, D] of dy [.., D].
at::Tensor embedding_backward(const at::Tensor& dy, const at::Tensor& ids, int64_t rows);
/// Rows that the kernel takes, of one dtype, contiguous.
bool suits_bert_embedding(const BertTables& tables);
/// indices: ids, positions and types, int64 [B, S] contiguous.
BertRows bert_embedding(const BertTables& tables, const std::vector<at::Tensor>& indices, double eps,
                        const Dropout& dropout, uint64_t stream);
#else
inline bool suits_bert_embedding(const BertTables&) { return false; }
inline BertRows bert_embedding(const BertTables&, const std::vector<at::Tensor>&, double, const Dropout&, uint64_t) {
  return {};
}
inline void dropout(const at::Tensor&, at::Tensor&, const at::Tensor&, const DropoutKey&, bool) {}
inline bool rope_rotate(at::Tensor, const at::Tensor&, const at::Tensor&, int64_t) { return false; }
inline at::Tensor rope_merge(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&) {
  return {};
}
inline void cross_entropy_(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&, bool) {}
inline at::Tensor sum(const at::Tensor&) { return {}; }
inline at::Tensor scaled(const at::Tensor&, const at::Tensor&, at::ScalarType) { return {}; }
inline at::Tensor scaled_rows(const at::Tensor&, const at::Tensor&) { return {}; }
inline at::Tensor embedding(const at::Tensor&, const at::Tensor&) { return {}; }
inline at::Tensor embedding_backward(const at::Tensor&, const at::Tensor&, int64_t) { return {}; }
#endif

}  // namespace trireme::bridge
