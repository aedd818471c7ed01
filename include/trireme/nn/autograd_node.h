#pragma once
// Hand-written autograd nodes whose saved values have names.
//
// A node is a struct. Its members are its arguments and the values that forward keeps for backward.
//
//   struct Scale {
//     Input x; double factor;
//     variable_list forward() { return {x.value * factor}; }
//     void backward(const variable_list& d_outputs, Gradients& gradients) { gradients.set(x, d_outputs[0] * factor); }
//   };
//   InputList inputs;
//   Scale node{inputs.add(x), 2.0};
//   at::Tensor y = run_node(std::move(node), inputs)[0];
//
// forward() and backward() run without recording gradients. A tensor that forward() returns must not be kept as it is:
// keep `y.detach()`, otherwise node and output own each other and are never freed. The node, with all it keeps, is
// freed when backward() returns; backward may free a value earlier. Backward can run once only; a second run is an
// internal error.
//
// The templates here are small: LibTorch's autograd headers, which are slow to compile, are in autograd_node.cpp only.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <typeinfo>
#include <utility>
#include <vector>

namespace trireme {

using variable_list = std::vector<at::Tensor>;

/// A tensor argument of a node, known to autograd.
struct Input {
  at::Tensor value;
  int64_t index = -1;  // position among the node's inputs; -1: not given
  bool given() const { return index >= 0; }
};

class InputList {
 public:
  /// An undefined tensor gives an input that is not given.
  Input add(const at::Tensor& value) {
    if (!value.defined()) return {};
    tensors_.push_back(value);
    return {value, static_cast<int64_t>(tensors_.size()) - 1};
  }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

/// The results of a node's backward: one gradient for each input that needs one.
class Gradients {
 public:
  /// wanted: one per input.
  explicit Gradients(std::vector<bool> wanted) : wanted_(std::move(wanted)), values_(wanted_.size()) {}
  bool wanted(const Input& input) const { return input.given() && wanted_[static_cast<size_t>(input.index)]; }
  void set(const Input& input, at::Tensor value) {
    if (input.given()) values_[static_cast<size_t>(input.index)] = std::move(value);
  }
  variable_list take() { return std::move(values_); }
  /// The same inputs, without values.
  Gradients empty_copy() const { return Gradients(wanted_); }

 private:
  std::vector<bool> wanted_;
  variable_list values_;
};

namespace detail {

/// A node of any type.
class AnyNode {
 public:
  virtual ~AnyNode() = default;
  virtual variable_list forward() = 0;
  virtual void backward(const variable_list& d_outputs, Gradients& gradients) = 0;
  /// The node's type, by which traces name its backward.
  virtual const std::type_info& type() const = 0;
};

template <class Node>
class HeldNode final : public AnyNode {
 public:
  explicit HeldNode(Node node) : node_(std::move(node)) {}
  variable_list forward() override { return node_.forward(); }
  void backward(const variable_list& d_outputs, Gradients& gradients) override { node_.backward(d_outputs, gradients); }
  const std::type_info& type() const override { return typeid(Node); }

 private:
  Node node_;
};

variable_list run_any_node(std::shared_ptr<AnyNode> node, const InputList& inputs);

}  // namespace detail

/// Runs the node's forward and returns its outputs; autograd records the node if an input requires a gradient.
template <class Node>
variable_list run_node(Node node, const InputList& inputs) {
  return detail::run_any_node(std::make_shared<detail::HeldNode<Node>>(std::move(node)), inputs);
}

}  // namespace trireme
