#pragma once
// Private to ops/: a norm as a member of an autograd node.

#include "matmul/operand.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

class NormLayer {
 public:
  NormLayer() = default;
  /// A norm whose width or dtype is not that of x is an internal error; `what` names the sub-layer in its message.
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
