#include "trireme/nn/recompute.h"

#include "trireme/nn/autograd_node.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace trireme {

namespace {

struct RecomputedBlock {
  BlockFunction f;
  Input x;
  std::vector<Input> parameters;
  OffloadStore* offload;
  int64_t block;
  std::vector<at::Tensor> kept;
  std::shared_ptr<OffloadStore::Saved> saved;  // x and `kept`, if they wait in the store

  variable_list forward() {
    std::vector<at::Tensor> values;
    for (const Input& parameter : parameters) values.push_back(parameter.value);
    BlockRun run;
    at::Tensor y = f(x.value, values, run);
    kept = std::move(run.kept);
    if (offload != nullptr) {
      kept.insert(kept.begin(), std::exchange(x.value, {}));
      saved = offload->save(block, std::exchange(kept, {}));
    }
    return {std::move(y)};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    if (saved != nullptr) {
      kept = offload->fetch(*saved);
      x.value = kept.front();
      kept.erase(kept.begin());
    }
    std::vector<Input> inputs = {x};
    inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    variable_list aliases, wanted;
    std::vector<const Input*> wanted_inputs;
    for (const Input& input : inputs) {
      aliases.push_back(input.value.detach());
      if (!gradients.wanted(input)) continue;
      aliases.back().requires_grad_();
      wanted.push_back(aliases.back());
      wanted_inputs.push_back(&input);
    }
    if (wanted.empty()) return;
    at::Tensor y;
    {
      at::AutoGradMode grad_mode(true);
      BlockRun run{true, std::move(kept)};
      y = f(aliases[0], {aliases.begin() + 1, aliases.end()}, run);
    }
    const variable_list computed = torch::autograd::grad({y}, wanted, {d_outputs[0]}, /*retain_graph=*/false,
                                                         /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < wanted_inputs.size(); ++i) gradients.set(*wanted_inputs[i], computed[i]);
  }
};

}  // namespace

at::Tensor recomputed(const BlockFunction& f, const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                      OffloadStore* offload, int64_t block) {
  InputList inputs;
  RecomputedBlock node{f, inputs.add(x), {}, at::GradMode::is_enabled() ? offload : nullptr, block, {}, {}};
  for (const at::Tensor& parameter : parameters) node.parameters.push_back(inputs.add(parameter));
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
