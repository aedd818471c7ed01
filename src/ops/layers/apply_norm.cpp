#include "trireme/ops/norm.h"

#include "flatten_tokens.h"
#include "layers/norm_layer.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

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
