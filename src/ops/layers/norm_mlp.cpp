#include "trireme/ops/layers/norm_mlp.h"

#include "activations.h"
#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace trireme {

namespace {

/// The work for some rows, and what it keeps for their backward.
struct MlpRows {
  NormLayer norm;
  LinearLayer up;
  Activation activation;
  LinearLayer down;
  ResidualTail tail;
  bool recompute_up;
  bool keep_inputs;       // of products whose weight gradients read them in their plain form
  bool keep_all = false;  // also of products whose adapters read them
  // The up projection's output, without bias; for SwiGLU it may be kept in FP8; for GELU the activation is kept as
  // well.
  at::Tensor projected{}, activated{}, kept_normed{};
  Fp8Rows projected_fp8{};

  bool gated() const { return is_gated(activation); }
  bool keeps_input_of(const LinearLayer& linear) const {
    return keep_all ? linear.may_read_input() : keep_inputs && linear.wgrad_reads_plain_input();
  }

  void take_tile(const Tile& tile, int64_t tokens) {
    up.take_tile(tile, tokens);
    down.take_tile(tile, tokens);
    tail.take_tile(tile, tokens);
  }

  at::Tensor project_up(const Operand& normed, bool recompute) {
    return up.forward(normed, gated() ? LinearLayer::Bias::kAdd : LinearLayer::Bias::kLeave, {}, recompute);
  }

  Operand activate(const at::Tensor& z, const OperandForms& wanted) const {
    return gated() ? gated_forward(z, activation, wanted, false).y
                   : gelu_forward_operand(z, up.bias(), activation, wanted);
  }

  /// Where what backward reads of the up projection is.
  std::array<at::Tensor*, 4> kept_projection() {
    return {&projected, &activated, &projected_fp8.data, &projected_fp8.inverse_scale};
  }

  /// `result_unused`: the result may be undefined.
  at::Tensor forward(const at::Tensor& rows, bool result_unused) {
    const Operand normed = norm.forward(rows, up.input_forms());
    const at::Tensor z = project_up(normed, /*recompute=*/false);
    if (norm.present() && keeps_input_of(up)) kept_normed = normed.plain;
    Operand active;
    if (gated() && down.traits().keeps_activations_in_fp8 && !recompute_up) {
      GatedForward both = gated_forward(z, activation, down.input_forms(), /*keep_fp8=*/true);
      active = std::move(both.y);
      projected_fp8 = both.kept_fp8;
    } else {
      active = activate(z, down.input_forms());
      if (!recompute_up) projected = z;
      const bool keep = gated() ? keeps_input_of(down) : down.may_read_input();
      if (keep && !recompute_up) activated = active.plain;
    }
    if (recompute_up) up.drop_kept_output();
    if (!result_unused || tail.keeps_values()) return tail.forward(down, active, rows);
    down.keep(active);
    return {};
  }

  /// The gradient of `rows`.
  at::Tensor backward(const at::Tensor& rows, const at::Tensor& dy, bool want_dh, Gradients& gradients) {
    const ResidualTail::Parts parts = tail.backward(down, dy, gradients);
    at::Tensor normed = kept_normed;  // plain form, if it was kept or is recomputed below
    if (recompute_up) {
      OperandForms forms = up.input_forms(/*recompute=*/true);
      forms.plain = forms.plain || up.backward_reads_input(gradients);
      const Operand operand = norm.recompute(rows, forms);
      projected = project_up(operand, /*recompute=*/true);
      if (up.backward_reads_input(gradients)) normed = operand.plain;
    }
    at::Tensor d_active = down.backward(
        parts.d_branch, [&] { return plain_activation(dy.scalar_type()); }, /*want_dx=*/true, {}, gradients);
    activated = at::Tensor();
    const OperandForms forms = up.gradient_forms(gradients);
    const Operand d_projected = gated() ? gated_backward(d_active, projected, projected_fp8, activation, forms)
                                        : gelu_backward_operand(d_active, projected, up.bias(), activation, forms);
    d_active = projected = at::Tensor();
    projected_fp8 = {};

    const auto input = [&] { return normed.defined() ? normed : norm.recompute(rows, {.plain = true}).plain; };
    if (!norm.present()) return up.backward(d_projected, input, want_dh, parts.d_residual, gradients);
    const at::Tensor dn = up.backward(d_projected, input, want_dh || norm.trained(gradients), {}, gradients);
    return dn.defined() ? norm.backward(dn, rows, parts.d_residual, gradients) : at::Tensor();
  }

  at::Tensor plain_activation(at::ScalarType dtype) const {
    if (activated.defined()) return activated;
    return activate(projected_fp8.defined() ? dequantize_rows(projected_fp8, dtype) : projected, {.plain = true}).plain;
  }
};

struct NormMlpNode {
  Input h;
  MlpRows layer;  // with one tile it keeps what backward reads; several are computed again, one at a time
  bool result_unused;
  OffloadStore* offload;
  int64_t block;
  std::vector<int64_t> shape;  // of h
  std::vector<Tile> tiles;
  std::shared_ptr<OffloadStore::Saved> saved{};  // of `layer`, if it waits in the store

  MlpRows of(const Tile& tile) {
    layer.up.measure();
    layer.down.measure();
    MlpRows part = layer;
    part.take_tile(tile, tiles.back().begin + tiles.back().count);
    part.recompute_up = false;
    part.keep_all = true;
    return part;
  }

  variable_list forward() {
    const ProfileRange range("mlp");
    const at::Tensor rows = flatten_tokens(h.value);
    at::Tensor y;
    if (tiles.size() == 1) {
      y = layer.forward(rows, result_unused);
      if (!layer.norm.present() && !layer.recompute_up && !layer.up.may_read_input()) h.value = at::Tensor();
      if (offload != nullptr) {
        std::vector<at::Tensor> values;
        for (at::Tensor* kept : layer.kept_projection()) values.push_back(std::exchange(*kept, {}));
        saved = offload->save(block, std::move(values));
      }
    } else if (!result_unused) {
      y = by_tiles(tiles, [&](const Tile& tile) { return of(tile).forward(tile.of(rows), /*result_unused=*/false); });
    }
    if (!y.defined()) y = at::zeros({1}, rows.options()).expand(rows.sizes());
    return {at::_unsafe_view(y, shape)};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("mlp");
    const at::Tensor rows = h.value.defined() ? flatten_tokens(h.value) : at::Tensor(),
                     dy = flatten_tokens(d_outputs[0]);
    const bool want_dh = gradients.wanted(h);
    if (saved != nullptr) {
      std::vector<at::Tensor> values = offload->fetch(*saved);
      auto value = values.begin();
      for (at::Tensor* kept : layer.kept_projection()) *kept = std::move(*value++);
    }
    TileGradients sums(gradients, tiles.size());
    const at::Tensor dh = by_tiles(tiles, [&](const Tile& tile) {
      MlpRows part = tiles.size() == 1 ? std::move(layer) : of(tile);
      if (tiles.size() > 1) (void)part.forward(tile.of(rows), /*result_unused=*/true);
      sums.attach(part.up);
      sums.attach(part.down);
      return sums.add([&](Gradients& of_tile) { return part.backward(tile.of(rows), tile.of(dy), want_dh, of_tile); });
    });
    sums.finish();
    if (want_dh) gradients.set(h, dh.view(shape));
  }
};

}  // namespace

at::Tensor norm_mlp(const at::Tensor& h, const Mlp& mlp) {
  TRIREME_CHECK(mlp.activation != Activation::kNone, "norm_mlp: the activation is kNone");
  const bool gated = is_gated(mlp.activation);
  TRIREME_CHECK(gated || mlp.up.bias.defined(), "norm_mlp: with GELU the up projection must have a bias");
  const int64_t width = gated ? mlp.up.weight.matrix.size(0) / 2 : mlp.up.weight.matrix.size(0);
  TRIREME_CHECK(mlp.down.weight.matrix.size(1) == width && mlp.down.weight.matrix.size(0) == h.size(-1), "norm_mlp: h ",
                h.sizes(), ", up ", mlp.up.weight.matrix.sizes(), ", down ", mlp.down.weight.matrix.sizes());
  InputList inputs;
  const Input input = inputs.add(h.contiguous());
  // Only the dtype and the width of the down projection's input are used.
  const at::Tensor active = h.new_empty({0, width});
  NormMlpNode node{input,
                   {{mlp.norm, h, "norm_mlp", inputs},
                    {mlp.up, h, "norm_mlp", inputs},
                    mlp.activation,
                    {mlp.down, active, "norm_mlp", inputs},
                    {mlp.join, h, "norm_mlp", inputs},
                    mlp.recompute_up,
                    mlp.keep_inputs && !mlp.recompute_up},
                   mlp.result_unused,
                   at::GradMode::is_enabled() ? mlp.offload : nullptr,
                   mlp.block,
                   h.sizes().vec(),
                   {}};
  const MlpRows& layer = node.layer;
  TRIREME_CHECK(mlp.offload == nullptr || (!mlp.recompute_up && mlp.tile_tokens == 0),
                "norm_mlp: the up projection is computed again, so it does not wait in a store");
  node.tiles = cut_tiles(h.numel() / h.size(-1), mlp.tile_tokens,
                         {layer.up.samples(), layer.down.samples(), layer.tail.samples()});
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
