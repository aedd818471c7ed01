#pragma once
// Private to ops/: layer norm with what can stand before it (bias, dropout and residual of a product), one pass over
// the rows:
//
//   sum = residual + dropout(x + bias),   y = (sum - mean) * rstd * weight + bias of the norm
//
// Matrices [T, D]; mean, rstd fp32 (fp64 for fp64) [T]. Nothing records autograd.

#include "matmul/operand.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// Of a product that goes into a residual stream. Everything may be undefined or inactive.
struct ResidualBranch {
  at::Tensor bias;  // of the product
  Dropout dropout;
  at::Tensor residual;
};

struct LayerNormed {
  Operand y;
  at::Tensor sum, mean, rstd;
};
/// `norm`: kLayer.
LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm,
                               const OperandForms& wanted);
/// y in its plain form, recomputed to the same bits.
at::Tensor layer_norm_recompute(const at::Tensor& sum, const at::Tensor& mean, const at::Tensor& rstd,
                                const Norm& norm);

struct LayerNormGradients {
  at::Tensor d_sum;  // the residual's gradient
  at::Tensor dx;     // d_sum itself without dropout
  at::Tensor d_weight, d_bias;
  at::Tensor d_branch_bias;
};
/// `d_sum`: a gradient that reaches the sum on another way; undefined: none. The norm's vectors have gradients where
/// `want_norm`, the branch's bias where `want_branch_bias`.
LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias);

namespace launch {
LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm, bool keep_sum,
                               bool want_plain, bool want_rows);
LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias);
}  // namespace launch

}  // namespace trireme
