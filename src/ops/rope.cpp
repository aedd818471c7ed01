#include "trireme/ops/rope.h"

#include "attention_node.h"
#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numbers>

namespace trireme {

namespace {

/// Rotates x_TnH (any strides) in place; direction -1 rotates back.
void rotate_(const at::Tensor& x_TnH, const at::Tensor& cos, const at::Tensor& sin, int direction) {
  const int64_t half = x_TnH.size(-1) / 2;
  const at::Tensor x1 = x_TnH.narrow(-1, 0, half), x2 = x_TnH.narrow(-1, half, half);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const at::Tensor from_x2 = x2 * s, from_x1 = x1 * s;
  x1.mul_(c).sub_(from_x2, direction);
  x2.mul_(c).add_(from_x1, direction);
}

/// Whether 16-byte accesses are possible: every head starts at a 16-byte boundary and its elements are contiguous.
bool on_boundaries(const at::Tensor& x_TnH) {
  const int64_t pack = 16 / x_TnH.element_size();
  return x_TnH.stride(2) == 1 && x_TnH.stride(0) % pack == 0 && x_TnH.stride(1) % pack == 0 &&
         reinterpret_cast<uintptr_t>(x_TnH.const_data_ptr()) % 16 == 0;
}

Dispatch dispatch(const at::Tensor& x_TnH, const RopeTable& table) {
  return Dispatch("rope", x_TnH)
      .needs(x_TnH.size(2) % 16 == 0, "the head size is not a multiple of 16")
      .needs(table.cos.scalar_type() == x_TnH.scalar_type(), "the table's dtype differs from the heads'");
}

void rotate_heads_(const at::Tensor& heads_TnH, const RopeTable& table, int64_t rotated) {
  const Choice choice =
      dispatch(heads_TnH, table).needs(on_boundaries(heads_TnH), "heads are not 16-byte aligned").choice();
  TRIREME_RETURN_LAUNCH(choice, rope_rotate(heads_TnH, table, rotated));
  rotate_(heads_TnH.narrow(1, 0, rotated), table.cos, table.sin, 1);
}

/// d_qkv [T, N + 2K, H] from dq, dk and dv.
at::Tensor merge(const Heads& d, const RopeTable& table) {
  const Choice choice =
      dispatch(d.q, table)
          .needs(on_boundaries(d.q) && on_boundaries(d.k) && on_boundaries(d.v), "heads are not 16-byte aligned")
          .choice();
  TRIREME_RETURN_LAUNCH(choice, rope_merge(d, table));
  const int64_t n = d.q.size(1), k = d.k.size(1);
  at::Tensor heads = at::empty({d.q.size(0), n + 2 * k, d.q.size(2)}, d.q.options());
  heads.narrow(1, 0, n).copy_(d.q);
  heads.narrow(1, n, k).copy_(d.k);
  heads.narrow(1, n + k, k).copy_(d.v);
  rotate_(heads.narrow(1, 0, n + k), table.cos, table.sin, -1);
  return heads;
}

struct RopeSplit {
  Input qkv;
  RopeTable table;
  int64_t num_heads, num_kv_heads, head_dim;

  variable_list forward() {
    // Detached: plain tensors without autograd history on qkv's storage.
    const at::Tensor heads = std::exchange(qkv.value, {}).detach().view({-1, num_heads + 2 * num_kv_heads, head_dim});
    rotate_heads_(heads, table, num_heads + num_kv_heads);
    const Heads parts = split_heads(heads, num_kv_heads);
    return {parts.q.detach(), parts.k.detach(), parts.v.detach()};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const at::Tensor merged = merge({d_outputs[0], d_outputs[1], d_outputs[2]}, table);
    gradients.set(qkv, merged.view({merged.size(0), -1}));
  }
};

}  // namespace

at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim) {
  TRIREME_CHECK(head_dim % 2 == 0, "head_dim ", head_dim, " is odd; rotary embedding rotates pairs of elements");
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

RopeTable rope_table(const at::Tensor& inverse_frequencies, const at::Tensor& positions_T, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  // Copied from pinned memory, so that the host does not wait.
  const at::Tensor inverse =
      positions_T.is_cuda() ? inverse_frequencies.pin_memory().to(positions_T.device(), true) : inverse_frequencies;
  const at::Tensor angles = positions_T.to(at::kFloat).unsqueeze(-1) * inverse;
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

std::array<at::Tensor, 3> rope_split_qkv_(const at::Tensor& qkv, const RopeTable& table, int64_t num_heads,
                                          int64_t num_kv_heads, int64_t head_dim) {
  TRIREME_CHECK(qkv.dim() == 2 && qkv.size(1) == (num_heads + 2 * num_kv_heads) * head_dim, "qkv has ", qkv.size(-1),
                " columns, ", num_heads, " + 2 x ", num_kv_heads, " heads of ", head_dim, " need ",
                (num_heads + 2 * num_kv_heads) * head_dim);
  TRIREME_CHECK(qkv.is_contiguous(), "qkv must be contiguous");
  InputList inputs;
  RopeSplit node{inputs.add(qkv), table, num_heads, num_kv_heads, head_dim};
  const variable_list out = run_node(std::move(node), inputs);
  return {out[0], out[1], out[2]};
}

}  // namespace trireme
