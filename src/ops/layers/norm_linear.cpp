#include "trireme/ops/layers/norm_linear.h"

#include "activations.h"
#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

struct NormLinearNode {
  Input x;
  NormLayer norm;
  LinearLayer linear;
  Activation activation = Activation::kNone;
  std::vector<int64_t> shape;  // of x
  bool keep_input;
  at::Tensor z;     // input of the activation, without bias
  at::Tensor kept;  // the layer's input, if backward does not recompute it

  variable_list forward() {
    const ProfileRange range("norm_linear");
    const at::Tensor rows = flatten_tokens(x.value);
    const Operand normed = norm.forward(rows, linear.input_forms());
    if (keep_input && norm.present() && linear.wgrad_reads_plain_input()) kept = normed.plain;
    const bool activated = activation != Activation::kNone;
    at::Tensor y = linear.forward(normed, activated ? LinearLayer::Bias::kLeave : LinearLayer::Bias::kAdd);
    if (activated) {
      z = y;
      y = gelu_forward(z, linear.bias(), activation);
    }
    std::vector<int64_t> y_shape = shape;
    y_shape.back() = linear.out_features();
    variable_list outputs = {at::_unsafe_view(y, y_shape), x.value};
    if (!norm.present() && !linear.may_read_input()) x.value = at::Tensor();
    return outputs;
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("norm_linear");
    const at::Tensor rows = x.value.defined() ? flatten_tokens(x.value) : at::Tensor(),
                     dy_rows = flatten_tokens(d_outputs[0]);
    const at::Tensor d_residual = d_outputs[1].defined() ? flatten_tokens(d_outputs[1]) : at::Tensor();
    const OperandForms forms = linear.gradient_forms(gradients);
    const Operand dy = activation == Activation::kNone
                           ? make_operand(dy_rows.contiguous(), forms)
                           : gelu_backward_operand(dy_rows, z, linear.bias(), activation, forms);
    const bool want_dx = gradients.wanted(x);
    at::Tensor dx;
    if (norm.present()) {
      const at::Tensor dn = linear.backward(
          dy, [&] { return kept.defined() ? kept : norm.recompute(rows, {.plain = true}).plain; },
          want_dx || norm.trained(gradients), {}, gradients);
      if (dn.defined()) dx = norm.backward(dn, rows, d_residual, gradients);
    } else {
      dx = linear.backward(dy, [&] { return rows; }, want_dx, d_residual, gradients);
    }
    if (want_dx) gradients.set(x, dx.view(shape));
  }
};

}  // namespace

std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const Norm& norm, const Linear& linear,
                                      Activation activation, bool keep_input) {
  TRIREME_CHECK(activation == Activation::kNone || (!is_gated(activation) && linear.bias.defined()),
                "norm_linear: the activation must be a GELU and the linear layer must have a bias");
  InputList inputs;
  const Input input = inputs.add(x.contiguous());
  NormLinearNode node{input,
                      {norm, x, "norm_linear", inputs},
                      {linear, x, "norm_linear", inputs},
                      activation,
                      x.sizes().vec(),
                      keep_input,
                      {},
                      {}};
  const variable_list out = run_node(std::move(node), inputs);
  return {out[0], out[1]};
}

}  // namespace trireme
