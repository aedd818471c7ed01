#include "trireme/nn/unit.h"

#include "trireme/base/dtype.h"
#include "trireme/nn/autograd_node.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace trireme {

namespace {

/// An identity function whose backward tells the store how far backward has progressed. It keeps no tensors.
template <void (UnitStore::*kTell)(int)>
struct UnitEdge {
  Input x;
  UnitStore* store;
  int unit;
  variable_list forward() { return {std::move(x.value)}; }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    (store->*kTell)(unit);
    gradients.set(x, d_outputs[0]);
  }
};

template <void (UnitStore::*kTell)(int)>
at::Tensor unit_edge(const at::Tensor& x, UnitStore& store, int unit) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return x;
  InputList inputs;
  UnitEdge<kTell> node{inputs.add(x), &store, unit};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace

int64_t ParameterSpec::numel() const { return element_count(shape); }

int64_t UnitSpec::numel() const {
  int64_t n = 0;
  for (const ParameterSpec& parameter : parameters) n += parameter.numel();
  return n;
}

bool UnitSpec::has_linear() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const ParameterSpec& p) { return p.linear; });
}

int64_t UnitSpec::matrix_numel() const {
  int64_t n = 0;
  for (const ParameterSpec& parameter : parameters) n += parameter.matrix_rows.empty() ? 0 : parameter.numel();
  return n;
}

UnitSpec UnitSpec::matrices() const {
  UnitSpec part = *this;
  std::erase_if(part.parameters, [](const ParameterSpec& p) { return !p.linear; });
  return part;
}

UnitSpec UnitSpec::vectors() const {
  UnitSpec part = *this;
  std::erase_if(part.parameters, [](const ParameterSpec& p) { return p.linear; });
  return part;
}

at::Tensor enter_unit(const at::Tensor& x, UnitStore& store, int unit) {
  store.pre_forward(unit);
  return unit_edge<&UnitStore::post_backward>(x, store, unit);
}

at::Tensor leave_unit(const at::Tensor& y, UnitStore& store, int unit) {
  store.post_forward(unit);
  return unit_edge<&UnitStore::pre_backward>(y, store, unit);
}

WholeUnitStore::WholeUnitStore(std::vector<std::vector<at::Tensor>> units) : units_(std::move(units)) {
  for (const auto& unit : units_) states_.emplace_back(unit.size());
}

void WholeUnitStore::set_state(int unit, int parameter, WeightState state) {
  states_.at(static_cast<size_t>(unit)).at(static_cast<size_t>(parameter)) = std::move(state);
}

}  // namespace trireme
