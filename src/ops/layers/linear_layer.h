#pragma once
// Private to ops/: a linear layer as a member of an autograd node. It registers the layer's tensors as inputs of the
// node, computes the three products with the weight's recipe, and keeps the saved values.

#include "layers/lora.h"
#include "matmul/recipe.h"
#include "norm_rows.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/layers/linear.h"

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

  /// DoRA: backward will call forward(recompute) first, so what it keeps of the output can go.
  void drop_kept_output() { kept_output_.clear(); }

  enum class Bias { kAdd, kLeave };  // kLeave: the kernel after the product adds it
  /// x W^T (+ bias) + the adapters' part (+ addend). `recompute`: called in backward, with the xA kept by forward.
  at::Tensor forward(const Operand& x, Bias bias, const at::Tensor& addend = {}, bool recompute = false);

  /// Computes the gradients of weight, bias and adapters; returns dx (+ `d_other`) [T, in] if `want_dx`. `input`
  /// returns x in its plain form; it is called at most once, and only if backward_reads_input().
  at::Tensor backward(const Operand& dy, const std::function<at::Tensor()>& input, bool want_dx,
                      const at::Tensor& d_other, Gradients& gradients);

 private:
  void compute_weight_gradient(const Operand& dy, const at::Tensor& x, Gradients& gradients);
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
///   y = post_norm(residual + dropout(x W^T + b))        post_norm: none, or a layer norm
///
/// A member of the nodes of linear_residual() and norm_mlp(). Defined in linear_residual.cpp.
class ResidualTail {
 public:
  ResidualTail() = default;
  /// Another kind of post-norm, or one that does not fit `residual` [.., out], is an internal error.
  ResidualTail(const Dropout& dropout, const Norm& post_norm, const at::Tensor& residual, const char* what,
               InputList& inputs);

  /// y [T, out] of x [T, in] and the residual [T, out].
  at::Tensor forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual);

  struct Parts {
    Operand d_branch;       // gradient of the linear layer's output [T, out], in the forms that its backward reads
    at::Tensor d_residual;  // [T, out]
  };
  /// From dy [T, out]; also computes the gradients of the post-norm's vectors.
  Parts backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients);

 private:
  Dropout dropout_;
  NormLayer post_norm_;
  LayerNormed kept_;
};

}  // namespace trireme
