#include "trireme/nn/autograd_node.h"

#include "trireme/base/error.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme::detail {

namespace {

struct NodeHolder : torch::CustomClassHolder {
  NodeHolder(std::shared_ptr<AnyNode> held, size_t inputs) : node(std::move(held)), num_inputs(inputs) {}
  std::shared_ptr<AnyNode> node;
  size_t num_inputs;
};

struct NodeFunction : torch::autograd::Function<NodeFunction> {
  static variable_list forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                               const std::shared_ptr<AnyNode>& node) {
    variable_list outputs = node->forward();
    context->saved_data["node"] = at::IValue::make_capsule(c10::make_intrusive<NodeHolder>(node, inputs.size()));
    return outputs;
  }

  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& d_outputs) {
    auto* holder = static_cast<NodeHolder*>(context->saved_data["node"].toCapsule().get());
    const std::shared_ptr<AnyNode> node = std::move(holder->node);
    TRIREME_CHECK(node != nullptr, "backward of a node ran a second time; its saved values are freed");
    // Autograd's own record has the same name for every node.
    at::RecordFunction record(at::RecordScope::FUNCTION);
    if (record.isActive()) record.before("backward of " + c10::demangle(node->type().name()));
    std::vector<bool> wanted;
    for (size_t i = 0; i < holder->num_inputs; ++i) wanted.push_back(context->needs_input_grad(i));
    Gradients gradients(std::move(wanted));
    node->backward(d_outputs, gradients);
    variable_list result = gradients.take();
    result.emplace_back();  // for the node argument, which is no tensor
    return result;
  }
};

}  // namespace

variable_list run_any_node(std::shared_ptr<AnyNode> node, const InputList& inputs) {
  return NodeFunction::apply(at::TensorList(inputs.tensors()), node);
}

}  // namespace trireme::detail
