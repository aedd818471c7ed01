#include "layers/norm_layer.h"

#include "norm_rows.h"
#include "rows.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

NormLayer::NormLayer(const Norm& norm, const at::Tensor& x, const char* what, InputList& inputs) : norm_(norm) {
  if (!present()) return;
  TRIREME_CHECK(norm.weight.dim() == 1 && x.size(-1) == norm.weight.size(0), what, ": rows of ", x.size(-1),
                ", norm of ", norm.weight.numel());
  TRIREME_CHECK(x.scalar_type() == norm.weight.scalar_type(), what, ": x is ", x.scalar_type(), ", norm ",
                norm.weight.scalar_type());
  TRIREME_CHECK(norm.bias.defined() == (norm.kind == NormKind::kLayer), what,
                ": a layer norm has a bias, an RMS norm none");
  weight_ = inputs.add(norm.weight);
  bias_ = inputs.add(norm.bias);
}

Operand NormLayer::forward(const at::Tensor& x, const OperandForms& wanted) {
  if (norm_.kind == NormKind::kRms) {
    RmsNormed normed = rms_norm_forward(x, norm_.weight, norm_.eps, wanted);
    rstd_ = normed.rstd;
    return std::move(normed.y);
  }
  if (norm_.kind == NormKind::kLayer) {
    LayerNormed normed = layer_norm_forward(x, {}, norm_, wanted);
    mean_ = normed.mean;
    rstd_ = normed.rstd;
    return std::move(normed.y);
  }
  return make_operand(x, wanted);
}

Operand NormLayer::recompute(const at::Tensor& x, const OperandForms& wanted) const {
  // The forward kernel writes forms other than the plain one in the same pass.
  if (norm_.kind == NormKind::kRms && !wanted.rows)
    return make_operand(rms_norm_recompute(x, rstd_, norm_.weight, norm_.eps), wanted);
  if (norm_.kind == NormKind::kLayer && !wanted.rows)
    return make_operand(layer_norm_recompute(x, mean_, rstd_, norm_), wanted);
  return NormLayer(*this).forward(x, wanted);
}

at::Tensor NormLayer::backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& d_residual,
                               Gradients& gradients) {
  if (norm_.kind == NormKind::kRms) {
    at::Tensor d_weight;
    const at::Tensor dx =
        rms_norm_backward(dy, x, rstd_, norm_.weight, d_residual, gradients.wanted(weight_) ? &d_weight : nullptr);
    gradients.set(weight_, d_weight);
    return dx;
  }
  const LayerNormGradients d = layer_norm_backward(dy, {{}, x, mean_, rstd_}, norm_, {}, d_residual, trained(gradients),
                                                   /*want_branch_bias=*/false);
  set_gradients(d.d_weight, d.d_bias, gradients);
  return d.d_sum;
}

namespace {

struct NormNode {
  Input x;
  NormLayer norm;

  variable_list forward() {
    return {norm.forward(flatten_tokens(x.value), {.plain = true}).plain.view(x.value.sizes())};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const at::Tensor dx = norm.backward(flatten_tokens(d_outputs[0]), flatten_tokens(x.value), {}, gradients);
    gradients.set(x, dx.view(x.value.sizes()));
  }
};

}  // namespace

at::Tensor apply_norm(const at::Tensor& x, const Norm& norm) {
  TRIREME_CHECK(norm.kind != NormKind::kNone, "apply_norm: the norm's kind is kNone");
  InputList inputs;
  const Input input = inputs.add(x.contiguous());
  NormNode node{input, {norm, x, "apply_norm", inputs}};
  return run_node(std::move(node), inputs)[0];
}

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps);
  return weight * normed.to(x.scalar_type());
}

}  // namespace trireme
