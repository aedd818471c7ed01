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

#include "trireme/base/error.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trireme {

using torch::autograd::variable_list;

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
  Gradients(torch::autograd::AutogradContext* context, size_t inputs) : context_(context), values_(inputs) {}
  bool wanted(const Input& input) const {
    return input.given() && context_->needs_input_grad(static_cast<size_t>(input.index));
  }
  void set(const Input& input, at::Tensor value) {
    if (input.given()) values_[static_cast<size_t>(input.index)] = std::move(value);
  }
  variable_list take() { return std::move(values_); }

 private:
  torch::autograd::AutogradContext* context_;
  variable_list values_;
};

namespace detail {

template <class Node>
struct NodeHolder : torch::CustomClassHolder {
  NodeHolder(std::shared_ptr<Node> held, size_t inputs) : node(std::move(held)), num_inputs(inputs) {}
  std::shared_ptr<Node> node;
  size_t num_inputs;
};

template <class Node>
struct NodeFunction : torch::autograd::Function<NodeFunction<Node>> {
  static variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                               const std::shared_ptr<Node>& node) {
    variable_list outputs = node->forward();
    context->saved_data["node"] = at::IValue::make_capsule(c10::make_intrusive<NodeHolder<Node>>(node, inputs.size()));
    return outputs;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, variable_list d_outputs) {
    auto* holder = static_cast<NodeHolder<Node>*>(context->saved_data["node"].toCapsule().get());
    const std::shared_ptr<Node> node = std::move(holder->node);
    TRIREME_CHECK(node != nullptr, "backward of a node ran a second time; its saved values are freed");
    Gradients gradients(context, holder->num_inputs);
    node->backward(d_outputs, gradients);
    variable_list result = gradients.take();
    result.emplace_back();  // for the node argument, which is no tensor
    return result;
  }
};

}  // namespace detail

/// Runs the node's forward and returns its outputs; autograd records the node if an input requires a gradient.
template <class Node>
variable_list run_node(Node node, const InputList& inputs) {
  return detail::NodeFunction<Node>::apply(at::TensorList(inputs.tensors()), std::make_shared<Node>(std::move(node)));
}

}  // namespace trireme
