#include "lora_products.h"

#include "as_rows.h"
#include "lora_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

at::Tensor stacked(const std::vector<at::Tensor>& a) {
  return a.size() == 1 ? a[0] : at::cat(a, 0);
}

}  // namespace

LoraPlan make_lora_plan(const std::vector<LoraAdapter>& adapters, const at::Tensor& weight,
                        double scale, const Dropout& dropout, std::vector<at::Tensor>& pairs) {
  for (const LoraAdapter& adapter : adapters) {
    TRIREME_CHECK(adapter.a.dim() == 2 && adapter.b.dim() == 2 &&
                      adapter.a.size(1) == weight.size(1) && adapter.b.size(1) == adapter.a.size(0),
                  "adapter A ", adapter.a.sizes(), " and B ", adapter.b.sizes(),
                  " do not fit weight ", weight.sizes());
    TRIREME_CHECK(adapter.row_begin >= 0 && adapter.row_begin + adapter.b.size(0) <= weight.size(0),
                  "adapter rows ", adapter.row_begin, " to ", adapter.row_begin + adapter.b.size(0),
                  " leave the weight's ", weight.size(0));
  }
  LoraPlan plan{{}, scale, dropout};
  for (const LoraAdapter& adapter : adapters) {
    pairs.push_back(adapter.a);
    pairs.push_back(adapter.b);
    plan.places.push_back({adapter.row_begin, adapter.stream});
  }
  return plan;
}

std::vector<at::Tensor> lora_products(const at::Tensor& x, at::TensorList pairs,
                                      const LoraPlan& plan) {
  const size_t n = plan.places.size();
  if (n == 0) return {};
  if (bridge::has_lora_kernels(x, pairs, plan)) return bridge::lora_down(x, pairs, plan);
  std::vector<at::Tensor> products;
  if (plan.dropout.active()) {
    for (size_t i = 0; i < n; ++i)
      products.push_back(
          at::mm(as_rows(apply_dropout(x, plan.dropout, plan.places[i].stream)), pairs[2 * i].t()));
    return products;
  }
  // Without dropout all adapters share one product.
  std::vector<at::Tensor> a;
  for (size_t i = 0; i < n; ++i) a.push_back(pairs[2 * i]);
  const at::Tensor all = at::mm(as_rows(x), stacked(a).t());
  int64_t column = 0;
  for (const at::Tensor& a_i : a) {
    products.push_back(all.narrow(1, column, a_i.size(0)));
    column += a_i.size(0);
  }
  return products;
}

void lora_add(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs,
              const LoraPlan& plan) {
  for (size_t i = 0; i < plan.places.size(); ++i) {
    const at::Tensor& b = pairs[2 * i + 1];
    const at::Tensor rows = y_TO.narrow(1, plan.places[i].row_begin, b.size(0));
    if (!bridge::lora_up(rows, products[i], b, plan.scale))
      rows.addmm_(products[i], b.t(), 1, plan.scale);
  }
}

LoraGradients lora_product_gradients(const at::Tensor& dy_TO, const at::Tensor& x,
                                     at::TensorList pairs, at::TensorList products,
                                     const LoraPlan& plan, const std::vector<bool>& wanted) {
  const size_t n = plan.places.size();
  LoraGradients result;
  result.for_kernels = n > 0 && x.defined() && bridge::has_lora_kernels(x, pairs, plan);
  for (size_t i = 0; i < n; ++i) {
    const at::Tensor& b = pairs[2 * i + 1];
    const at::Tensor dy_rows = dy_TO.narrow(1, plan.places[i].row_begin, b.size(0));
    bridge::LoraUpGradients both;
    if (result.for_kernels && wanted[2 * i + 1])
      both = bridge::lora_up_gradients(dy_rows, products[i], b, plan.scale);
    if (!both.d.defined()) {
      both.d = result.for_kernels ? bridge::lora_gradient_product(dy_rows, b, plan.scale)
                                  : at::mm(dy_rows, b).mul_(plan.scale);
      if (wanted[2 * i + 1]) both.db = at::mm(dy_rows.t(), products[i]).mul_(plan.scale);
    }
    result.d.push_back(std::move(both.d));
    result.db.push_back(std::move(both.db));
  }
  return result;
}

std::vector<at::Tensor> lora_backward(const LoraGradients& gradients, const at::Tensor& x,
                                      at::TensorList pairs, const LoraPlan& plan,
                                      const std::vector<bool>& wanted, at::Tensor dx_TI) {
  const size_t n = plan.places.size();
  std::vector<at::Tensor> result(2 * n), a, d_products = gradients.d;
  for (size_t i = 0; i < n; ++i) {
    a.push_back(pairs[2 * i]);
    result[2 * i + 1] = gradients.db[i];
  }
  if (n == 0) return result;
  const bool fused = gradients.for_kernels && bridge::has_lora_kernels(x, pairs, plan) &&
                     (!dx_TI.defined() || dx_TI.is_contiguous());
  if (fused) {
    bool any = false;
    for (size_t i = 0; i < n; ++i) any = any || wanted[2 * i];
    if (any) {
      const std::vector<at::Tensor> da =
          dx_TI.defined() ? bridge::lora_down_gradients(x, dx_TI, d_products, pairs, plan)
                          : bridge::lora_down_dw(x, d_products, pairs, plan);
      for (size_t i = 0; i < n; ++i)
        if (wanted[2 * i]) result[2 * i] = da[i];
    }
    if (dx_TI.defined() && !any) bridge::lora_down_dx(dx_TI, d_products, pairs, plan);
    return result;
  }
  for (size_t i = 0; i < n; ++i) d_products[i] = d_products[i].narrow(1, 0, a[i].size(0));
  if (!plan.dropout.active()) {
    const at::Tensor all = n == 1 ? d_products[0] : at::cat(d_products, 1);
    const at::Tensor da = at::mm(all.t(), as_rows(x));
    int64_t row = 0;
    for (size_t i = 0; i < n; ++i) {
      if (wanted[2 * i]) result[2 * i] = da.narrow(0, row, a[i].size(0));
      row += a[i].size(0);
    }
    if (dx_TI.defined()) dx_TI.addmm_(all, stacked(a));
    return result;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t stream = plan.places[i].stream;
    if (wanted[2 * i])
      result[2 * i] = at::mm(d_products[i].t(), as_rows(apply_dropout(x, plan.dropout, stream)));
    if (dx_TI.defined()) {
      at::Tensor dx = dx_TI.view(x.sizes());
      add_dropout_(dx, at::mm(d_products[i], a[i]).view(x.sizes()), plan.dropout, stream);
    }
  }
  return result;
}

}  // namespace trireme
