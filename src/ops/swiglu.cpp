#include "trireme/ops/swiglu.h"

#include "kernel_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Swiglu : torch::autograd::Function<Swiglu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    ctx->save_for_backward({gate_up});
    if (bridge::has_kernels(gate_up) && gate_up.is_contiguous()) return bridge::swiglu(gate_up);
    const int64_t f = gate_up.size(-1) / 2;
    return at::silu(gate_up.narrow(-1, 0, f)).mul_(gate_up.narrow(-1, f, f));
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor& dy = gradients[0];
    if (bridge::has_kernels(gate_up) && gate_up.is_contiguous())
      return {bridge::swiglu_backward(dy, gate_up)};
    const int64_t f = gate_up.size(-1) / 2;
    const at::Tensor gate = gate_up.narrow(-1, 0, f), up = gate_up.narrow(-1, f, f);
    at::Tensor d_gate_up = at::empty_like(gate_up);
    d_gate_up.narrow(-1, 0, f).copy_(at::silu_backward(dy * up, gate));
    d_gate_up.narrow(-1, f, f).copy_(at::silu(gate).mul_(dy));
    return {d_gate_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  TRIREME_CHECK(gate_up.size(-1) % 2 == 0, "swiglu: ", gate_up.size(-1),
                " columns cannot be cut into gate and up");
  return Swiglu::apply(gate_up);
}

}  // namespace trireme
