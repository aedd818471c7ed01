#include "trireme/ops/unit.h"

#include "capsule.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

struct StoreUnit {
  UnitStore* store;
  int unit;
};

struct EnterUnit : torch::autograd::Function<EnterUnit> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, StoreUnit target) {
    ctx->saved_data["target"] = to_capsule(target);
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StoreUnit target = from_capsule<StoreUnit>(ctx->saved_data["target"]);
    target.store->post_backward(target.unit);
    return {gradients[0], at::Tensor()};
  }
};

struct LeaveUnit : torch::autograd::Function<LeaveUnit> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, StoreUnit target) {
    ctx->saved_data["target"] = to_capsule(target);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const StoreUnit target = from_capsule<StoreUnit>(ctx->saved_data["target"]);
    target.store->pre_backward(target.unit);
    return {gradients[0], at::Tensor()};
  }
};

bool records_gradient(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

}  // namespace

int64_t ParameterSpec::numel() const { return product(shape); }

int64_t UnitSpec::numel() const {
  int64_t n = 0;
  for (const ParameterSpec& parameter : parameters) n += parameter.numel();
  return n;
}

at::Tensor enter_unit(const at::Tensor& x, UnitStore& store, int unit) {
  store.pre_forward(unit);
  return records_gradient(x) ? EnterUnit::apply(x, StoreUnit{&store, unit}) : x;
}

at::Tensor leave_unit(const at::Tensor& y, UnitStore& store, int unit) {
  store.post_forward(unit);
  return records_gradient(y) ? LeaveUnit::apply(y, StoreUnit{&store, unit}) : y;
}

}  // namespace trireme
