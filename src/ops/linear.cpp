#include "trireme/ops/linear.h"

#include "as_rows.h"
#include "capsule.h"
#include "lora_products.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LoraLinear : torch::autograd::Function<LoraLinear> {
  // `pairs` is a0, b0, a1, b1, …
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::TensorList pairs, const LoraPlan& plan) {
    at::Tensor y = at::mm(as_rows(x), weight.t());
    const std::vector<at::Tensor> products = lora_forward(x, y, pairs, plan);
    bool adapters_trained = false;
    for (const at::Tensor& t : pairs) adapters_trained |= t.requires_grad();
    variable_list saved = {weight, weight.requires_grad() || adapters_trained ? x : at::Tensor()};
    saved.insert(saved.end(), pairs.begin(), pairs.end());
    saved.insert(saved.end(), products.begin(), products.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = to_capsule(plan);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.size(0);
    // Not a view for autograd, so that callers may add the residual in place.
    return at::_unsafe_view(y, shape);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const LoraPlan& plan = from_capsule<LoraPlan>(ctx->saved_data["plan"]);
    const at::Tensor &weight = saved[0], &x = saved[1];
    const size_t n = plan.places.size();
    const at::Tensor dy = as_rows(gradients[0]);
    std::vector<int64_t> x_shape = gradients[0].sizes().vec();
    x_shape.back() = weight.size(1);

    variable_list result(3 + 2 * n);  // x, weight, pairs, plan
    if (ctx->needs_input_grad(1)) result[1] = at::mm(dy.t(), as_rows(x));
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = at::mm(dy, weight);
    if (n > 0) {
      const at::TensorList tensors(saved);
      std::vector<bool> wanted;
      for (size_t i = 0; i < 2 * n; ++i) wanted.push_back(ctx->needs_input_grad(2 + i));
      const std::vector<at::Tensor> pairs = lora_backward(
          dy, x, tensors.slice(2, 2 * n), tensors.slice(2 + 2 * n, n), plan, wanted, dx);
      std::copy(pairs.begin(), pairs.end(), result.begin() + 2);
    }
    if (dx.defined()) result[0] = dx.view(x_shape);
    return result;
  }
};

void check_shapes(const at::Tensor& x, const at::Tensor& weight) {
  TRIREME_CHECK(weight.dim() == 2 && x.size(-1) == weight.size(1), "linear: input of ", x.size(-1),
                " columns, weight [", weight.size(0), ", ", weight.size(-1), "]");
  TRIREME_CHECK(x.scalar_type() == weight.scalar_type(), "linear: x is ", x.scalar_type(),
                ", weight ", weight.scalar_type());
}

}  // namespace

at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight,
                       const std::vector<LoraAdapter>& adapters, double scale,
                       const Dropout& dropout) {
  check_shapes(x, weight);
  std::vector<at::Tensor> pairs;
  const LoraPlan plan = make_lora_plan(adapters, weight, scale, dropout, pairs);
  return LoraLinear::apply(x, weight, at::TensorList(pairs), plan);
}

at::Tensor lora_linear_reference(const at::Tensor& x, const at::Tensor& weight,
                                 const std::vector<LoraAdapter>& adapters, double scale,
                                 const Dropout& dropout) {
  at::Tensor y = at::linear(x, weight);
  for (const LoraAdapter& adapter : adapters) {
    at::Tensor input = x;
    if (dropout.active()) input = x * apply_dropout(at::ones_like(x), dropout, adapter.stream);
    const at::Tensor update = at::linear(at::linear(input, adapter.a), adapter.b) * scale;
    const int64_t after = weight.size(0) - adapter.row_begin - adapter.b.size(0);
    y = y + at::constant_pad_nd(update, {adapter.row_begin, after});
  }
  return y;
}

}  // namespace trireme
