#include "trireme/ops/layers/norm_linear.h"

#include "activations.h"
#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

/// The work for some rows, and what it keeps for their backward.
struct NormLinearRows {
  NormLayer norm;
  LinearLayer linear;
  Activation activation = Activation::kNone;
  bool keep_input;
  at::Tensor z{};     // input of the activation, without bias
  at::Tensor kept{};  // the layer's input, if backward does not recompute it

  at::Tensor forward(const at::Tensor& rows) {
    const Operand normed = norm.forward(rows, linear.input_forms());
    if (keep_input && norm.present() && linear.wgrad_reads_plain_input()) kept = normed.plain;
    if (activation == Activation::kNone) return linear.forward(normed, LinearLayer::Bias::kAdd);
    z = linear.forward(normed, LinearLayer::Bias::kLeave);
    return gelu_forward(z, linear.bias(), activation);
  }

  at::Tensor backward(const at::Tensor& rows, const at::Tensor& dy_rows, const at::Tensor& d_residual, bool want_dx,
                      Gradients& gradients) {
    const OperandForms forms = linear.gradient_forms(gradients);
    const Operand dy = activation == Activation::kNone
                           ? make_operand(dy_rows.contiguous(), forms)
                           : gelu_backward_operand(dy_rows, z, linear.bias(), activation, forms);
    if (!norm.present()) return linear.backward(dy, [&] { return rows; }, want_dx, d_residual, gradients);
    const at::Tensor dn = linear.backward(
        dy, [&] { return kept.defined() ? kept : norm.recompute(rows, {.plain = true}).plain; },
        want_dx || norm.trained(gradients), {}, gradients);
    return dn.defined() ? norm.backward(dn, rows, d_residual, gradients) : at::Tensor();
  }
};

struct NormLinearNode {
  Input x;
  NormLinearRows layer;
  std::vector<int64_t> shape;  // of x
  std::vector<Tile> tiles;
  std::vector<NormLinearRows> parts;  // one per tile

  variable_list forward() {
    const ProfileRange range("norm_linear");
    const at::Tensor rows = flatten_tokens(x.value);
    layer.linear.measure();
    const at::Tensor y = by_tiles(tiles, [&](const Tile& tile) {
      parts.push_back(layer);
      parts.back().linear.take_tile(tile, rows.size(0));
      return parts.back().forward(tile.of(rows));
    });
    std::vector<int64_t> y_shape = shape;
    y_shape.back() = layer.linear.out_features();
    variable_list outputs = {at::_unsafe_view(y, y_shape), x.value};
    if (!layer.norm.present() && !layer.linear.may_read_input()) x.value = at::Tensor();
    return outputs;
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("norm_linear");
    const at::Tensor rows = x.value.defined() ? flatten_tokens(x.value) : at::Tensor(),
                     dy_rows = flatten_tokens(d_outputs[0]);
    const at::Tensor d_residual = d_outputs[1].defined() ? flatten_tokens(d_outputs[1]) : at::Tensor();
    const bool want_dx = gradients.wanted(x);
    TileGradients sums(gradients, tiles.size());
    auto part = parts.begin();
    const at::Tensor dx = by_tiles(tiles, [&](const Tile& tile) {
      NormLinearRows one = std::move(*part++);
      sums.attach(one.linear);
      return sums.add([&](Gradients& of_tile) {
        return one.backward(tile.of(rows), tile.of(dy_rows), tile.of(d_residual), want_dx, of_tile);
      });
    });
    sums.finish();
    if (want_dx) gradients.set(x, dx.view(shape));
  }
};

}  // namespace

std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const Norm& norm, const Linear& linear,
                                      Activation activation, bool keep_input, int64_t tile_tokens) {
  TRIREME_CHECK(activation == Activation::kNone || (!is_gated(activation) && linear.bias.defined()),
                "norm_linear: the activation must be a GELU and the linear layer must have a bias");
  InputList inputs;
  const Input input = inputs.add(x.contiguous());
  NormLinearNode node{input,
                      {{norm, x, "norm_linear", inputs}, {linear, x, "norm_linear", inputs}, activation, keep_input},
                      x.sizes().vec(),
                      {},
                      {}};
  node.tiles = cut_tiles(x.numel() / x.size(-1), tile_tokens, {node.layer.linear.samples()});
  const variable_list out = run_node(std::move(node), inputs);
  return {out[0], out[1]};
}

}  // namespace trireme
