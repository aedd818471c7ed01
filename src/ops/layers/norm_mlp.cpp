#include "trireme/ops/layers/norm_mlp.h"

#include "activations.h"
#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

struct NormMlpNode {
  Input h;
  NormLayer norm;
  LinearLayer up;
  Activation activation;
  LinearLayer down;
  ResidualTail tail;
  bool recompute_up, keep_inputs;
  std::vector<int64_t> shape;  // of h
  at::ScalarType h_dtype;
  // The up projection's output, without bias; for SwiGLU it may be kept in FP8; for GELU the activation is kept as
  // well.
  at::Tensor projected, activated, kept_normed;
  Fp8Rows projected_fp8;

  bool gated() const { return activation == Activation::kSwiglu; }

  at::Tensor project_up(const Operand& normed, bool recompute) {
    return up.forward(normed, gated() ? LinearLayer::Bias::kAdd : LinearLayer::Bias::kLeave, {}, recompute);
  }

  Operand activate(const at::Tensor& z, const OperandForms& wanted) const {
    return gated() ? swiglu_forward(z, wanted, false).y : gelu_forward_operand(z, up.bias(), activation, wanted);
  }

  variable_list forward() {
    const ProfileRange range("mlp");
    const at::Tensor rows = flatten_tokens(h.value);
    const Operand normed = norm.forward(rows, up.input_forms());
    const at::Tensor z = project_up(normed, /*recompute=*/false);
    if (keep_inputs && norm.present() && up.wgrad_reads_plain_input()) kept_normed = normed.plain;
    Operand active;
    if (gated() && down.traits().keeps_activations_in_fp8 && !recompute_up) {
      SwigluForward both = swiglu_forward(z, down.input_forms(), /*keep_fp8=*/true);
      active = std::move(both.y);
      projected_fp8 = both.kept_fp8;
    } else {
      active = activate(z, down.input_forms());
      if (!recompute_up) projected = z;
      const bool keep = gated() ? keep_inputs && down.wgrad_reads_plain_input() : down.may_read_input();
      if (keep && !recompute_up) activated = active.plain;
    }
    const at::Tensor y = tail.forward(down, active, rows);
    if (recompute_up) up.drop_kept_output();
    if (!norm.present() && !recompute_up && !up.may_read_input()) h.value = at::Tensor();
    return {at::_unsafe_view(y, shape)};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("mlp");
    const at::Tensor rows = h.value.defined() ? flatten_tokens(h.value) : at::Tensor();
    const ResidualTail::Parts parts = tail.backward(down, flatten_tokens(d_outputs[0]), gradients);
    at::Tensor normed = kept_normed;  // plain form, if it was kept or is recomputed below
    if (recompute_up) {
      OperandForms forms = up.input_forms(/*recompute=*/true);
      forms.plain = forms.plain || up.backward_reads_input(gradients);
      const Operand operand = norm.recompute(rows, forms);
      projected = project_up(operand, /*recompute=*/true);
      if (up.backward_reads_input(gradients)) normed = operand.plain;
    }
    at::Tensor d_active =
        down.backward(parts.d_branch, [&] { return plain_activation(h_dtype); }, /*want_dx=*/true, {}, gradients);
    activated = at::Tensor();
    const OperandForms forms = up.gradient_forms(gradients);
    const Operand d_projected = gated() ? swiglu_backward(d_active, projected, projected_fp8, forms)
                                        : gelu_backward_operand(d_active, projected, up.bias(), activation, forms);
    d_active = projected = at::Tensor();
    projected_fp8 = {};

    const bool want_dh = gradients.wanted(h);
    const auto input = [&] { return normed.defined() ? normed : norm.recompute(rows, {.plain = true}).plain; };
    at::Tensor dh;
    if (norm.present()) {
      const at::Tensor dn = up.backward(d_projected, input, want_dh || norm.trained(gradients), {}, gradients);
      if (dn.defined()) dh = norm.backward(dn, rows, parts.d_residual, gradients);
    } else {
      dh = up.backward(d_projected, input, want_dh, parts.d_residual, gradients);
    }
    if (want_dh) gradients.set(h, dh.view(shape));
  }

  at::Tensor plain_activation(at::ScalarType dtype) const {
    if (activated.defined()) return activated;
    return activate(projected_fp8.defined() ? dequantize_rows(projected_fp8, dtype) : projected, {.plain = true}).plain;
  }
};

}  // namespace

at::Tensor norm_mlp(const at::Tensor& h, const Mlp& mlp) {
  TRIREME_CHECK(mlp.activation != Activation::kNone, "norm_mlp: the activation is kNone");
  TRIREME_CHECK(mlp.activation == Activation::kSwiglu || mlp.up.bias.defined(),
                "norm_mlp: with GELU the up projection must have a bias");
  const int64_t width =
      mlp.activation == Activation::kSwiglu ? mlp.up.weight.matrix.size(0) / 2 : mlp.up.weight.matrix.size(0);
  TRIREME_CHECK(mlp.down.weight.matrix.size(1) == width && mlp.down.weight.matrix.size(0) == h.size(-1), "norm_mlp: h ",
                h.sizes(), ", up ", mlp.up.weight.matrix.sizes(), ", down ", mlp.down.weight.matrix.sizes());
  InputList inputs;
  const Input input = inputs.add(h.contiguous());
  // Only the dtype and the width of the down projection's input are used.
  const at::Tensor active = h.new_empty({0, width});
  NormMlpNode node{input,
                   {mlp.norm, h, "norm_mlp", inputs},
                   {mlp.up, h, "norm_mlp", inputs},
                   mlp.activation,
                   {mlp.down, active, "norm_mlp", inputs},
                   {mlp.dropout, mlp.post_norm, h, "norm_mlp", inputs},
                   mlp.recompute_up,
                   mlp.keep_inputs && !mlp.recompute_up,
                   h.sizes().vec(),
                   h.scalar_type(),
                   {},
                   {},
                   {},
                   {}};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
