#include "layers/residual_tail.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

ResidualTail::ResidualTail(const Dropout& dropout, const Norm& post_norm, const at::Tensor& residual, const char* what,
                           InputList& inputs)
    : dropout_(dropout), post_norm_(post_norm, residual, what, inputs) {
  TRIREME_CHECK(post_norm.kind != NormKind::kRms, what, ": the norm after the residual must be a layer norm");
}

at::Tensor ResidualTail::forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual) {
  if (post_norm_.present()) {
    LayerNormed normed = layer_norm_forward(linear.forward(x, LinearLayer::Bias::kLeave),
                                            {linear.bias(), dropout_, residual}, post_norm_.norm(), {.plain = true});
    const at::Tensor y = std::move(normed.y.plain);
    kept_ = std::move(normed);
    return y;
  }
  if (!dropout_.active()) return linear.forward(x, LinearLayer::Bias::kAdd, residual);
  return add_dropout(residual, linear.forward(x, LinearLayer::Bias::kAdd), dropout_);
}

ResidualTail::Parts ResidualTail::backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients) {
  const OperandForms forms = linear.gradient_forms(gradients);
  Parts parts;
  if (post_norm_.present()) {
    const LayerNormGradients d = layer_norm_backward(dy, kept_, post_norm_.norm(), dropout_, {},
                                                     post_norm_.trained(gradients), forms.column_sums);
    kept_ = {};
    post_norm_.set_gradients(d.d_weight, d.d_bias, gradients);
    parts.d_residual = d.d_sum;
    parts.d_branch.plain = d.dx;
    parts.d_branch.column_sums = d.d_branch_bias;
    complete(parts.d_branch, forms);
    return parts;
  }
  parts.d_residual = dy;
  parts.d_branch = make_dropped_operand(dy, dropout_, forms);
  return parts;
}

}  // namespace trireme
