#include "trireme/ops/layers/linear_residual.h"

#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

ResidualTail::ResidualTail(const ResidualJoin& join, const at::Tensor& residual, const char* what, InputList& inputs)
    : dropout_(join.dropout),
      multiplier_(join.multiplier),
      norm_(join.norm, residual, what, inputs),
      post_norm_(join.post_norm, residual, what, inputs),
      gradient_(join.gradient) {
  const bool plain = !norm_.present() && multiplier_ == 1;
  TRIREME_CHECK(!post_norm_.present() || (join.post_norm.kind == NormKind::kLayer && plain), what,
                ": the norm after the residual must be a layer norm, without a norm of the branch or a multiplier");
}

at::Tensor ResidualTail::forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual) {
  if (post_norm_.present()) {
    LayerNormed normed = layer_norm_forward(linear.forward(x, LinearLayer::Bias::kLeave),
                                            {linear.bias(), dropout_, residual}, post_norm_.norm(), {.plain = true});
    const at::Tensor y = std::move(normed.y.plain);
    kept_ = std::move(normed);
    return y;
  }
  if (norm_.present() || multiplier_ != 1) {
    at::Tensor branch = linear.forward(x, LinearLayer::Bias::kAdd);
    if (norm_.present()) {
      branch_ = branch;
      branch = norm_.forward(branch_, {.plain = true}).plain;
    }
    if (dropout_.active()) branch = apply_dropout(branch, dropout_);
    return at::add(residual, branch, multiplier_);
  }
  if (!dropout_.active()) return linear.forward(x, LinearLayer::Bias::kAdd, residual);
  if (gradient_ != nullptr && dropout_.samples() > 0) {
    gradient_->dropout = dropout_;
    gradient_->rows = residual.size(0);
    gradient_->column_sums = linear.bias().defined() && linear.bias().requires_grad();
  }
  return add_dropout(residual, linear.forward(x, LinearLayer::Bias::kAdd), dropout_);
}

ResidualTail::Parts ResidualTail::backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients) {
  const OperandForms forms = linear.gradient_forms(gradients);
  Parts parts;
  if (post_norm_.present()) {
    LayerNormGradients d =
        layer_norm_backward(dy, kept_, post_norm_.norm(), dropout_, {}, post_norm_.trained(gradients),
                            forms.column_sums, forms.codes_known && !forms.plain ? forms.codes : nullptr);
    kept_ = {};
    post_norm_.set_gradients(d.d_weight, d.d_bias, gradients);
    parts.d_residual = d.d_sum;
    parts.d_branch.plain = d.dx;
    parts.d_branch.codes = std::move(d.codes);
    parts.d_branch.column_sums = d.d_branch_bias;
    complete(parts.d_branch, forms);
    return parts;
  }
  parts.d_residual = dy;
  if (norm_.present() || multiplier_ != 1) {
    at::Tensor d_branch = dropout_.active() ? apply_dropout(dy, dropout_) : dy;
    if (multiplier_ != 1) d_branch = d_branch * multiplier_;
    if (norm_.present()) {
      d_branch = norm_.backward(d_branch, branch_, {}, gradients);
      branch_ = at::Tensor();
    }
    parts.d_branch = make_operand(d_branch, forms);
    return parts;
  }
  if (gradient_ == nullptr || !gradient_->computed_of(dy)) {
    parts.d_branch = make_dropped_operand(dy, dropout_, forms);
    return parts;
  }
  parts.d_branch.plain = std::move(gradient_->dropped);
  parts.d_branch.column_sums = std::move(gradient_->sums);
  gradient_->of.reset();
  complete(parts.d_branch, forms);
  return parts;
}

namespace {

/// The work for some rows, and what it keeps for their backward.
struct LinearResidualRows {
  LinearLayer linear;
  ResidualTail tail;

  void take_tile(const Tile& tile, int64_t tokens) {
    linear.take_tile(tile, tokens);
    tail.take_tile(tile, tokens);
  }
};

struct LinearResidualNode {
  Input x, residual;
  LinearResidualRows layer;
  std::vector<int64_t> x_shape;
  std::vector<Tile> tiles;
  std::vector<LinearResidualRows> parts;  // one per tile

  variable_list forward() {
    const ProfileRange range("linear_residual");
    const at::Tensor rows = flatten_tokens(x.value), residual_rows = flatten_tokens(residual.value);
    layer.linear.measure();
    const at::Tensor y = by_tiles(tiles, [&](const Tile& tile) {
      LinearResidualRows& part = parts.emplace_back(layer);
      part.take_tile(tile, rows.size(0));
      return part.tail.forward(part.linear, make_operand(tile.of(rows), part.linear.input_forms()),
                               tile.of(residual_rows));
    });
    const std::vector<int64_t> shape = residual.value.sizes().vec();
    residual.value = at::Tensor();
    if (!layer.linear.may_read_input()) x.value = at::Tensor();
    return {at::_unsafe_view(y, shape)};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("linear_residual");
    const at::Tensor rows = x.value.defined() ? flatten_tokens(x.value) : at::Tensor(),
                     dy = flatten_tokens(d_outputs[0]);
    const bool want_dx = gradients.wanted(x);
    at::Tensor d_residual;  // without a post-norm that of the result
    TileGradients sums(gradients, tiles.size());
    auto part = parts.begin();
    const at::Tensor dx = by_tiles(tiles, [&](const Tile& tile) {
      LinearResidualRows one = std::move(*part++);
      sums.attach(one.linear);
      return sums.add([&](Gradients& of_tile) {
        const ResidualTail::Parts branches = one.tail.backward(one.linear, tile.of(dy), of_tile);
        if (tiles.size() == 1) {
          d_residual = branches.d_residual;
        } else if (one.tail.passes_gradient()) {
          d_residual = dy;
        } else {
          if (!d_residual.defined()) d_residual = at::empty(dy.sizes(), dy.options());
          tile.of(d_residual).copy_(branches.d_residual);
        }
        return one.linear.backward(branches.d_branch, [&] { return tile.of(rows); }, want_dx, {}, of_tile);
      });
    });
    sums.finish();
    if (gradients.wanted(residual)) gradients.set(residual, d_residual.view(d_outputs[0].sizes()));
    if (dx.defined()) gradients.set(x, dx.view(x_shape));
  }
};

}  // namespace

at::Tensor linear_residual(const at::Tensor& x, const at::Tensor& residual, const Linear& linear,
                           const ResidualJoin& join, int64_t tile_tokens) {
  TRIREME_CHECK(residual.size(-1) == linear.weight.matrix.size(0) &&
                    residual.numel() / residual.size(-1) == x.numel() / x.size(-1),
                "linear_residual: x ", x.sizes(), ", weight ", linear.weight.matrix.sizes(), ", residual ",
                residual.sizes());
  InputList inputs;
  const Input input = inputs.add(x.contiguous()), added = inputs.add(residual);
  LinearResidualNode node{
      input,           added, {{linear, x, "linear_residual", inputs}, {join, residual, "linear_residual", inputs}},
      x.sizes().vec(), {},    {}};
  node.tiles = cut_tiles(x.numel() / x.size(-1), tile_tokens, {node.layer.linear.samples(), node.layer.tail.samples()});
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
