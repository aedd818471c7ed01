#pragma once
// Private to ops/: a linear layer as a member of an autograd node. It registers the layer's tensors as inputs of the
// node, computes the three products with the weight's recipe, and keeps the saved values.

#include "layers/lora.h"
#include "layers/tiles.h"
#include "matmul/recipe.h"
#include "norm_rows.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/layers/linear_residual.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme {

class LinearLayer {
 public:
  LinearLayer() = default;
  /// Shapes or dtypes that do not fit x [.., in] are an internal error; `what` names the sub-layer in its message.
  LinearLayer(const Linear& linear, const at::Tensor& x, const char* what, InputList& inputs);

  const at::Tensor& bias() const { return bias_.value; }
  int64_t out_features() const { return weight_.matrix.size(0); }
  /// Where the weight's gradient goes, if not to autograd.
  GradientSink* sink() const { return weight_.state.sink; }
  void set_sink(GradientSink* sink) { weight_.state.sink = sink; }
  /// Number of samples of the adapters' dropout; 0: none.
  int64_t samples() const { return lora_.samples(); }
  /// From now on x is the rows of a tile of `tokens` rows. Before forward().
  void take_tile(const Tile& tile, int64_t tokens) { lora_.take_tile(tile, tokens); }
  const RecipeTraits& traits() const { return recipe_->traits(); }

  /// Whether backward computes the weight's gradient.
  bool trained(const Gradients& gradients) const { return weight_.state.sink != nullptr || gradients.wanted(matrix_); }

  /// Whether the weight's gradient reads x in its plain form; known in forward.
  bool wgrad_reads_plain_input() const { return weight_.trained() && recipe_->traits().wgrad_reads_plain_input; }

  /// The forms of x that forward reads. `recompute`: called in backward; what wgrad reads is kept already.
  OperandForms input_forms(bool recompute = false) const;
  /// The forms of dy that backward reads; with `column_sums` if the bias has a gradient.
  OperandForms gradient_forms(const Gradients& gradients) const;
  /// Whether backward reads x in its plain form.
  bool backward_reads_input(const Gradients& gradients) const;
  /// Whether backward may read x in its plain form; known before backward, so that forward decides what to keep.
  bool may_read_input() const;

  /// DoRA: computes the factors, which layers copied from this one share. Otherwise the first forward does.
  void measure() {
    if (lora_.dora()) lora_.measure(weight_);
  }
  /// DoRA: backward will call forward(recompute) first, so what it keeps of the output can go.
  void drop_kept_output() { kept_output_.clear(); }

  enum class Bias { kAdd, kLeave };  // kLeave: the kernel after the product adds it
  /// x W^T (+ bias) + the adapters' part (+ addend). `recompute`: called in backward, with the xA kept by forward.
  at::Tensor forward(const Operand& x, Bias bias, const at::Tensor& addend = {}, bool recompute = false);
  /// What forward() keeps for backward, without its result.
  void keep(const Operand& x);

  /// Computes the gradients of weight, bias and adapters; returns dx (+ `d_other`) [T, in] if `want_dx`. `input`
  /// returns x in its plain form; it is called at most once, and only if backward_reads_input().
  at::Tensor backward(const Operand& dy, const std::function<at::Tensor()>& input, bool want_dx,
                      const at::Tensor& d_other, Gradients& gradients);

 private:
  void compute_weight_gradient(const Operand& dy, const at::Tensor& x, Gradients& gradients);
  /// Without what the store keeps of the whole matrix for dgrad.
  Weight rows_of_weight(int64_t begin, int64_t rows) const;
  at::Tensor forward_dora(const Operand& x, const at::Tensor& bias, const at::Tensor& addend);
  /// DoRA: computes the gradients of the magnitudes and returns dy times the factors.
  at::Tensor scale_gradient(const at::Tensor& dy, Gradients& gradients);
  /// DoRA with dropout: adds to dx what reaches x through the products of dropout(x) and the weight.
  void add_dropped_products(const at::Tensor& dx, const at::Tensor& dy);

  Weight weight_;
  Input matrix_, bias_;
  at::ScalarType dtype_ = at::kFloat;
  bool records_ = false;  // whether backward follows
  const LinearRecipe* recipe_ = nullptr;
  LoraPart lora_;
  LinearRecipe::Kept kept_;
  /// DoRA: what the factors multiply. Without dropout one matrix of all columns, with dropout one for each adapter.
  std::vector<at::Tensor> kept_output_;
};

/// The end of a sub-layer, where a linear layer's output is added to the residual stream inside a node:
///
///   y = post_norm(residual + multiplier * dropout(norm(x W^T + b)))
///
/// A member of the nodes of linear_residual() and norm_mlp(). Defined in linear_residual.cpp.
class ResidualTail {
 public:
  ResidualTail() = default;
  /// Norms that ResidualJoin rules out, or that do not fit `residual` [.., out], are an internal error.
  ResidualTail(const ResidualJoin& join, const at::Tensor& residual, const char* what, InputList& inputs);

  int64_t samples() const { return dropout_.samples(); }
  void take_tile(const Tile& tile, int64_t tokens) { dropout_ = dropout_.of_rows(tile.begin, tile.count, tokens); }
  /// Whether backward reads what forward() keeps.
  bool keeps_values() const { return post_norm_.present() || norm_.present(); }
  /// Whether the residual's gradient is that of the result.
  bool passes_gradient() const { return !post_norm_.present(); }
  /// y [T, out] of x [T, in] and the residual [T, out].
  at::Tensor forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual);

  struct Parts {
    Operand d_branch;       // gradient of the linear layer's output [T, out], in the forms that its backward reads
    at::Tensor d_residual;  // [T, out]
  };
  /// From dy [T, out]; also computes the gradients of the norms' vectors.
  Parts backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients);

 private:
  Dropout dropout_;
  double multiplier_ = 1;
  NormLayer norm_, post_norm_;
  at::Tensor branch_;                         // input of norm_
  LayerNormed kept_;                          // of post_norm_
  std::shared_ptr<BranchGradient> gradient_;  // null: none
};

}  // namespace trireme
