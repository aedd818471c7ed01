#include "trireme/ops/checkpoint.h"

#include "capsule.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList parameters,
                            const CheckpointedFunction& f) {
    variable_list saved = {x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["f"] = to_capsule(f);
    return f(x, parameters.vec());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const CheckpointedFunction& f = from_capsule<CheckpointedFunction>(ctx->saved_data["f"]);
    variable_list aliases, wanted;
    std::vector<size_t> wanted_index;
    for (size_t i = 0; i < saved.size(); ++i) {
      aliases.push_back(saved[i].detach());
      if (!ctx->needs_input_grad(i)) continue;
      aliases.back().requires_grad_();
      wanted.push_back(aliases.back());
      wanted_index.push_back(i);
    }
    variable_list result(saved.size() + 1);  // x, parameters, f
    if (wanted.empty()) return result;
    at::Tensor y;
    {
      at::AutoGradMode grad_mode(true);
      y = f(aliases[0], {aliases.begin() + 1, aliases.end()});
    }
    const variable_list computed = torch::autograd::grad({y}, wanted, {gradients[0]}, /*retain_graph=*/false,
                                                         /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < wanted_index.size(); ++i) result[wanted_index[i]] = computed[i];
    return result;
  }
};

}  // namespace

at::Tensor checkpoint(const CheckpointedFunction& f, const at::Tensor& x, const std::vector<at::Tensor>& parameters) {
  return Checkpoint::apply(x, at::TensorList(parameters), f);
}

}  // namespace trireme
