#include "trireme/ops/rope.h"

#include "attention_node.h"
#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

namespace trireme {

namespace {

/// Rotates x_TnH (any strides) in place; direction -1 rotates back.
void rotate_(const at::Tensor& x_TnH, const at::Tensor& cos, const at::Tensor& sin, int direction) {
  const int64_t half = cos.size(-1);
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
      .needs(x_TnH.size(2) == 2 * table.cos.size(-1), "a part of each head's elements rotates")
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

using Scaling = RopeFrequencies::Scaling;

at::Tensor llama3_frequencies(const RopeFrequencies& rope, const at::Tensor& inverse) {
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

/// Peng et al. 2023: frequencies that turn often within the original context stay, slow ones are stretched.
at::Tensor yarn_frequencies(const RopeFrequencies& rope, const at::Tensor& powers, int64_t rotated) {
  const double size = static_cast<double>(rotated), context = static_cast<double>(rope.original_max_position);
  // The index of the frequency that turns so often.
  const auto index_of = [&](double turns) {
    return size * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = index_of(rope.beta_fast), high = index_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, size - 1);
  if (low == high) high += 0.001;
  const at::Tensor ramp = ((at::arange(rotated / 2, at::TensorOptions(at::kFloat)) - low) / (high - low)).clamp(0, 1);
  const at::Tensor kept = 1 - ramp;
  return at::reciprocal(powers * rope.factor) * (1 - kept) + at::reciprocal(powers) * kept;
}

/// The base of kDynamic. transformers computes that of a longer sequence in fp32.
at::Tensor dynamic_powers(const RopeFrequencies& rope, const at::Tensor& exponent, int64_t rotated, int64_t length) {
  const double size = static_cast<double>(rotated), longest = static_cast<double>(rope.original_max_position);
  if (length <= rope.original_max_position)
    return at::pow(rope.theta * std::pow(rope.factor * longest / longest - (rope.factor - 1), size / (size - 2)),
                   exponent);
  const at::Tensor grown =
      at::scalar_tensor(length, at::TensorOptions(at::kFloat)) * rope.factor / longest - (rope.factor - 1);
  return at::pow(grown.pow(size / (size - 2)) * rope.theta, exponent);
}

/// Frequencies of `count` tokens from `first` on, [count, R / 2] if sequences have different ones, otherwise [R / 2].
at::Tensor token_frequencies(const RopeFrequencies& rope, int64_t head_dim, const std::vector<int32_t>& boundaries,
                             int64_t first, int64_t count) {
  if (!rope.by_length()) return rope_inverse_frequencies(rope, head_dim);
  std::map<int64_t, int64_t> rows;  // of a length
  std::vector<at::Tensor> frequencies;
  std::vector<int64_t> index;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    const int64_t length = boundaries[i + 1] - boundaries[i];
    // Lengths whose frequencies are the same count as one.
    const bool is_long = length > rope.original_max_position;
    const int64_t key = is_long && rope.scaling == Scaling::kDynamic ? length : is_long;
    const auto [row, inserted] = rows.try_emplace(key, static_cast<int64_t>(frequencies.size()));
    if (inserted) frequencies.push_back(rope_inverse_frequencies(rope, head_dim, length));
    index.insert(index.end(), static_cast<size_t>(length), row->second);
  }
  TRIREME_CHECK(first >= 0 && first + count <= std::ssize(index), "rope: sequences of ", index.size(), " tokens, ",
                count, " positions from ", first);
  if (frequencies.size() == 1) return frequencies[0];
  return at::stack(frequencies).index_select(0, at::tensor(index, at::kLong).narrow(0, first, count));
}

}  // namespace

at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim, int64_t length) {
  const int64_t rotated = rope.rotated(head_dim);
  TRIREME_CHECK(rotated % 2 == 0, "head_dim ", head_dim, ", of which ", rotated,
                " elements rotate; rotary embedding rotates pairs of elements");
  at::NoGradGuard no_grad;
  const at::Tensor exponent = at::arange(0, rotated, 2, at::TensorOptions(at::kFloat)) / static_cast<double>(rotated);
  if (rope.scaling == Scaling::kDynamic) return at::reciprocal(dynamic_powers(rope, exponent, rotated, length));
  const at::Tensor powers = at::pow(rope.theta, exponent);
  switch (rope.scaling) {
    case Scaling::kLinear: return at::reciprocal(powers) / rope.factor;
    case Scaling::kLlama3: return llama3_frequencies(rope, at::reciprocal(powers));
    case Scaling::kYarn: return yarn_frequencies(rope, powers, rotated);
    case Scaling::kLongrope: {
      const std::vector<double>& factors = length > rope.original_max_position ? rope.long_factor : rope.short_factor;
      TRIREME_CHECK(static_cast<int64_t>(factors.size()) == rotated / 2, "longrope has ", factors.size(),
                    " factors for ", rotated / 2, " frequencies");
      return at::reciprocal(at::tensor(factors, at::kDouble).to(at::kFloat) * powers);
    }
    default: return at::reciprocal(powers);
  }
}

RopeTable rope_table(const RopeFrequencies& rope, int64_t head_dim, const at::Tensor& positions_T,
                     const std::vector<int32_t>& boundaries, at::ScalarType dtype, int64_t first) {
  at::NoGradGuard no_grad;
  at::Tensor inverse = token_frequencies(rope, head_dim, boundaries, first, positions_T.size(0));
  // Copied from pinned memory, so that the host does not wait.
  if (positions_T.is_cuda()) inverse = inverse.pin_memory().to(positions_T.device(), true);
  const at::Tensor angles = positions_T.to(at::kFloat).unsqueeze(-1) * inverse;
  const double factor = rope_attention_factor(rope);
  if (factor == 1) return {angles.cos().to(dtype), angles.sin().to(dtype)};
  return {angles.cos().mul_(factor).to(dtype), angles.sin().mul_(factor).to(dtype)};
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
