#include "trireme/ops/linear.h"

#include "capsule.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AdapterPlace {
  int64_t row_begin;
  uint64_t stream;
};

struct LoraPlan {
  std::vector<AdapterPlace> places;
  double scale;
  Dropout dropout;
};

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The one place where another GEMM (FP8) takes over.
at::Tensor weight_gemm(const at::Tensor& x_TI, const at::Tensor& weight) {
  return at::mm(x_TI, weight.t());
}
at::Tensor input_gradient_gemm(const at::Tensor& dy_TO, const at::Tensor& weight) {
  return at::mm(dy_TO, weight);
}

/// Adapter inputs and their product with A: t_i = dropout_i(x) A_i^T. Without dropout all adapters
/// share one product.
std::vector<at::Tensor> down_products(const at::Tensor& x, const std::vector<at::Tensor>& a,
                                      const LoraPlan& plan) {
  std::vector<at::Tensor> products;
  if (plan.dropout.active()) {
    for (size_t i = 0; i < a.size(); ++i)
      products.push_back(
          at::mm(as_rows(apply_dropout(x, plan.dropout, plan.places[i].stream)), a[i].t()));
    return products;
  }
  const at::Tensor all = at::mm(as_rows(x), at::cat(a, 0).t());
  int64_t column = 0;
  for (const at::Tensor& a_i : a) {
    products.push_back(all.narrow(1, column, a_i.size(0)));
    column += a_i.size(0);
  }
  return products;
}

struct LoraLinear : torch::autograd::Function<LoraLinear> {
  // `pairs` is a0, b0, a1, b1, …
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            at::TensorList pairs, const LoraPlan& plan) {
    const size_t n = pairs.size() / 2;
    at::Tensor y = weight_gemm(as_rows(x), weight);
    std::vector<at::Tensor> a, products;
    for (size_t i = 0; i < n; ++i) a.push_back(pairs[2 * i]);
    if (n > 0) products = down_products(x, a, plan);
    for (size_t i = 0; i < n; ++i) {
      const at::Tensor& b = pairs[2 * i + 1];
      y.narrow(1, plan.places[i].row_begin, b.size(0)).addmm_(products[i], b.t(), 1, plan.scale);
    }
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
    const bool need_x = ctx->needs_input_grad(0);
    std::vector<int64_t> x_shape = gradients[0].sizes().vec();
    x_shape.back() = weight.size(1);

    variable_list result(3 + 2 * n);  // x, weight, pairs, plan
    if (ctx->needs_input_grad(1)) result[1] = at::mm(dy.t(), as_rows(x));
    at::Tensor dx;
    if (need_x) dx = input_gradient_gemm(dy, weight);

    const bool dropping = plan.dropout.active();
    std::vector<at::Tensor> a, d_products;
    for (size_t i = 0; i < n; ++i) {
      const at::Tensor& b = saved[3 + 2 * i];
      const at::Tensor dy_rows = dy.narrow(1, plan.places[i].row_begin, b.size(0));
      a.push_back(saved[2 + 2 * i]);
      d_products.push_back(at::mm(dy_rows, b).mul_(plan.scale));
      if (ctx->needs_input_grad(3 + 2 * i))
        result[3 + 2 * i] = at::mm(dy_rows.t(), saved[2 + 2 * n + i]).mul_(plan.scale);
    }
    if (n > 0 && !dropping) {
      const at::Tensor all = n == 1 ? d_products[0] : at::cat(d_products, 1);
      const at::Tensor da = at::mm(all.t(), as_rows(x));
      int64_t row = 0;
      for (size_t i = 0; i < n; ++i) {
        if (ctx->needs_input_grad(2 + 2 * i)) result[2 + 2 * i] = da.narrow(0, row, a[i].size(0));
        row += a[i].size(0);
      }
      if (need_x) dx.addmm_(all, n == 1 ? a[0] : at::cat(a, 0));
    }
    if (n > 0 && dropping) {
      for (size_t i = 0; i < n; ++i) {
        const uint64_t stream = plan.places[i].stream;
        if (ctx->needs_input_grad(2 + 2 * i))
          result[2 + 2 * i] =
              at::mm(d_products[i].t(), as_rows(apply_dropout(x, plan.dropout, stream)));
        if (need_x) {
          at::Tensor dx_BSI = dx.view(x_shape);
          add_dropout_(dx_BSI, at::mm(d_products[i], a[i]).view(x_shape), plan.dropout, stream);
        }
      }
    }
    if (need_x) result[0] = dx.view(x_shape);
    return result;
  }
};

void check_shapes(const at::Tensor& x, const at::Tensor& weight,
                  const std::vector<LoraAdapter>& adapters) {
  TRIREME_CHECK(weight.dim() == 2 && x.size(-1) == weight.size(1), "linear: input of ", x.size(-1),
                " columns, weight [", weight.size(0), ", ", weight.size(-1), "]");
  TRIREME_CHECK(x.scalar_type() == weight.scalar_type(), "linear: x is ", x.scalar_type(),
                ", weight ", weight.scalar_type());
  for (const LoraAdapter& adapter : adapters) {
    TRIREME_CHECK(adapter.a.dim() == 2 && adapter.b.dim() == 2 &&
                      adapter.a.size(1) == weight.size(1) && adapter.b.size(1) == adapter.a.size(0),
                  "adapter A ", adapter.a.sizes(), " and B ", adapter.b.sizes(),
                  " do not fit weight ", weight.sizes());
    TRIREME_CHECK(adapter.row_begin >= 0 && adapter.row_begin + adapter.b.size(0) <= weight.size(0),
                  "adapter rows ", adapter.row_begin, " to ", adapter.row_begin + adapter.b.size(0),
                  " leave the weight's ", weight.size(0));
  }
}

}  // namespace

at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight,
                       const std::vector<LoraAdapter>& adapters, double scale,
                       const Dropout& dropout) {
  check_shapes(x, weight, adapters);
  std::vector<at::Tensor> pairs;
  LoraPlan plan{{}, scale, dropout};
  for (const LoraAdapter& adapter : adapters) {
    pairs.push_back(adapter.a);
    pairs.push_back(adapter.b);
    plan.places.push_back({adapter.row_begin, adapter.stream});
  }
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
