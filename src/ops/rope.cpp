#include "trireme/ops/rope.h"

#include "kernel_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numbers>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x_BSnH (may be strided) becomes its rotation; direction -1 rotates back.
void rotate_(const at::Tensor& x_BSnH, const at::Tensor& cos, const at::Tensor& sin, int direction) {
  const int64_t half = x_BSnH.size(-1) / 2;
  const at::Tensor x1 = x_BSnH.narrow(-1, 0, half), x2 = x_BSnH.narrow(-1, half, half);
  const at::Tensor c = cos.unsqueeze(2), s = sin.unsqueeze(2);
  const at::Tensor from_x2 = x2 * s, from_x1 = x1 * s;
  x1.mul_(c).sub_(from_x2, direction);
  x2.mul_(c).add_(from_x1, direction);
}

struct RopeSplit : torch::autograd::Function<RopeSplit> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& cos,
                               const at::Tensor& sin, int64_t n, int64_t k, int64_t h) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["n"] = n;
    ctx->saved_data["k"] = k;
    // Without history of their own: plain tensors on qkv's storage.
    const at::Tensor heads = qkv.detach().view({qkv.size(0), qkv.size(1), n + 2 * k, h});
    if (!bridge::has_kernels(heads) || !bridge::rope_rotate(heads, cos, sin, n + k))
      rotate_(heads.narrow(2, 0, n + k), cos, sin, 1);
    return {heads.narrow(2, 0, n).detach(), heads.narrow(2, n, k).detach(), heads.narrow(2, n + k, k).detach()};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const int64_t n = ctx->saved_data["n"].toInt(), k = ctx->saved_data["k"].toInt();
    const at::Tensor& dq = gradients[0];
    const int64_t b = dq.size(0), s = dq.size(1), h = dq.size(3);
    if (bridge::has_kernels(dq)) {
      const at::Tensor merged = bridge::rope_merge(dq, gradients[1], gradients[2], saved[0], saved[1]);
      if (merged.defined())
        return {
            merged.view({b, s, (n + 2 * k) * h}), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    }
    at::Tensor heads = at::empty({b, s, n + 2 * k, h}, dq.options());
    heads.narrow(2, 0, n).copy_(dq);
    heads.narrow(2, n, k).copy_(gradients[1]);
    heads.narrow(2, n + k, k).copy_(gradients[2]);
    rotate_(heads.narrow(2, 0, n + k), saved[0], saved[1], -1);
    return {heads.view({b, s, (n + 2 * k) * h}), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim) {
  TRIREME_CHECK(head_dim % 2 == 0, "head_dim ", head_dim, " is odd; rotary embedding needs pairs");
  at::NoGradGuard no_grad;
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::TensorOptions(at::kFloat)) / static_cast<double>(head_dim);
  const at::Tensor inverse = at::reciprocal(at::pow(rope.theta, exponent));
  if (rope.scaling == RopeFrequencies::Scaling::kNone) return inverse;
  if (rope.scaling == RopeFrequencies::Scaling::kLinear) return inverse / rope.factor;
  const double old_context = static_cast<double>(rope.original_max_position);
  const double low_wavelength = old_context / rope.low_freq_factor,
               high_wavelength = old_context / rope.high_freq_factor;
  const at::Tensor wavelength = at::reciprocal(inverse) * (2 * std::numbers::pi);
  const at::Tensor stretched = inverse / rope.factor;
  const at::Tensor smooth = (at::reciprocal(wavelength) * old_context - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - smooth) * stretched + smooth * inverse;
  const at::Tensor outer = at::where(wavelength.gt(low_wavelength), stretched, inverse);
  const at::Tensor medium = wavelength.ge(high_wavelength).logical_and(wavelength.le(low_wavelength));
  return at::where(medium, blended, outer);
}

RopeTable rope_table(const at::Tensor& inverse_frequencies, const at::Tensor& positions_BS, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  // From pinned memory the copy does not hold up the host.
  const at::Tensor inverse =
      positions_BS.is_cuda() ? inverse_frequencies.pin_memory().to(positions_BS.device(), true) : inverse_frequencies;
  const at::Tensor angles = positions_BS.to(at::kFloat).unsqueeze(-1) * inverse;
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

std::array<at::Tensor, 3> rope_split_qkv_(const at::Tensor& qkv, const RopeTable& table, int64_t num_heads,
                                          int64_t num_kv_heads, int64_t head_dim) {
  TRIREME_CHECK(qkv.dim() == 3 && qkv.size(2) == (num_heads + 2 * num_kv_heads) * head_dim, "qkv has ", qkv.size(-1),
                " columns, ", num_heads, " + 2 x ", num_kv_heads, " heads of ", head_dim, " need ",
                (num_heads + 2 * num_kv_heads) * head_dim);
  TRIREME_CHECK(qkv.is_contiguous(), "qkv must be contiguous");
  const variable_list out = RopeSplit::apply(qkv, table.cos, table.sin, num_heads, num_kv_heads, head_dim);
  return {out[0], out[1], out[2]};
}

}  // namespace trireme
