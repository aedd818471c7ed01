#pragma once
// Private to ops/: the norms over the rows of a matrix, and a norm as a member of an autograd node.

#include "matmul/operand.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

// Layer norm with the optional bias, dropout and residual of a preceding product, in one pass over the rows:
//
//   sum = residual + dropout(x + bias),   y = (sum - mean) * rstd * norm's weight + norm's bias
//
// Matrices [T, D]; mean, rstd fp32 (fp64 for fp64) [T]. Autograd is not recorded.

/// How a product enters the residual stream. All members are optional.
struct ResidualBranch {
  at::Tensor bias;  // bias of the product
  Dropout dropout;
  at::Tensor residual;
};

struct LayerNormed {
  Operand y;
  at::Tensor sum, mean, rstd;
};
/// `norm`: of kind kLayer.
LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm,
                               const OperandForms& wanted);
/// y in its plain form, recomputed to the same bits as in forward.
at::Tensor layer_norm_recompute(const at::Tensor& sum, const at::Tensor& mean, const at::Tensor& rstd,
                                const Norm& norm);

struct LayerNormGradients {
  at::Tensor d_sum;  // also the residual's gradient
  at::Tensor dx;     // without dropout the same tensor as d_sum; undefined: there are its codes
  Fp8Codes codes{};
  at::Tensor d_weight, d_bias;
  at::Tensor d_branch_bias;
};
/// `d_sum`: gradient that reaches the sum from elsewhere; undefined: none. Computes the gradients of the norm's vectors
/// if `want_norm`, and the gradient of the branch's bias if `want_branch_bias`. `codes`, if not null: scale and amax of
/// a gradient, by which the kernel makes codes of dx in place of dx where it can.
LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias, const Fp8Scale* codes = nullptr);

namespace launch {
LayerNormed layer_norm_forward(const at::Tensor& x, const ResidualBranch& branch, const Norm& norm, bool keep_sum,
                               bool want_plain, bool want_rows);
LayerNormGradients layer_norm_backward(const at::Tensor& dy, const LayerNormed& kept, const Norm& norm,
                                       const Dropout& dropout, const at::Tensor& d_sum, bool want_norm,
                                       bool want_branch_bias, const Fp8Scale* codes);
}  // namespace launch

// RMS norm, in one pass over the rows. Matrices [T, D]; autograd is not recorded.

struct RmsNormed {
  Operand y;
  at::Tensor rstd;  // 1 / sqrt(mean(x^2) + eps): fp32 (fp64 for fp64) [T, 1]
};
/// `norm`: of kind kRms or kRmsPlusOne.
RmsNormed rms_norm_forward(const at::Tensor& x, const Norm& norm, const OperandForms& wanted);
/// y in its plain form, recomputed from x and rstd to the same bits.
at::Tensor rms_norm_recompute(const at::Tensor& x, const at::Tensor& rstd, const Norm& norm);
/// Returns dx, plus `d_residual` if defined; writes *d_weight if d_weight is not null.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const Norm& norm,
                             const at::Tensor& d_residual, at::Tensor* d_weight);

namespace launch {
/// Writes the plain form and rows if wanted, and the amax that wanted current codes are made of where the kernel finds
/// it.
RmsNormed rms_norm_forward(const at::Tensor& x, const Norm& norm, const OperandForms& wanted);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const Norm& norm,
                             const at::Tensor& d_residual, at::Tensor* d_weight);
}  // namespace launch

/// A norm of either kind as a member of an autograd node, or no norm (kNone).
class NormLayer {
 public:
  NormLayer() = default;
  /// A norm with another width or dtype than x is an internal error; `what` names the sub-layer in its message.
  NormLayer(const Norm& norm, const at::Tensor& x, const char* what, InputList& inputs);

  bool present() const { return norm_.kind != NormKind::kNone; }
  const Norm& norm() const { return norm_; }
  bool trained(const Gradients& gradients) const { return gradients.wanted(weight_) || gradients.wanted(bias_); }

  /// norm(x), or x itself if there is no norm; keeps the statistics. x [T, D].
  Operand forward(const at::Tensor& x, const OperandForms& wanted);
  /// norm(x) recomputed from the statistics, to the same bits.
  Operand recompute(const at::Tensor& x, const OperandForms& wanted) const;
  /// dx (+ d_residual) from the gradient of norm(x); also computes the gradients of the norm's vectors. Requires a
  /// norm.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& d_residual, Gradients& gradients);

  void set_gradients(const at::Tensor& d_weight, const at::Tensor& d_bias, Gradients& gradients) const {
    gradients.set(weight_, d_weight);
    gradients.set(bias_, d_bias);
  }

 private:
  Norm norm_;
  Input weight_, bias_;
  at::Tensor mean_, rstd_;
};

}  // namespace trireme
