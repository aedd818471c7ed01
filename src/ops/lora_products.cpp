#include "lora_products.h"

#include "as_rows.h"
#include "lora_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

at::Tensor stacked(const std::vector<at::Tensor>& a) { return a.size() == 1 ? a[0] : at::cat(a, 0); }

/// Into y, or over what is there.
void up_products(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs, const LoraPlan& plan,
                 bool adds) {
  for (size_t i = 0; i < plan.places.size(); ++i) {
    const at::Tensor& b = pairs[2 * i + 1];
    const at::Tensor rows = y_TO.narrow(1, plan.places[i].row_begin, b.size(0));
    if (!bridge::lora_up(rows, products[i], b, plan.scale, adds))
      rows.addmm_(products[i], b.t(), adds ? 1 : 0, plan.scale);
  }
}

}  // namespace

LoraPlan make_lora_plan(const std::vector<LoraAdapter>& adapters, const at::Tensor& weight, double scale,
                        const Dropout& dropout, std::vector<at::Tensor>& pairs) {
  for (const LoraAdapter& adapter : adapters) {
    TRIREME_CHECK(adapter.a.dim() == 2 && adapter.b.dim() == 2 && adapter.a.size(1) == weight.size(1) &&
                      adapter.b.size(1) == adapter.a.size(0),
                  "adapter A ", adapter.a.sizes(), " and B ", adapter.b.sizes(), " do not fit weight ", weight.sizes());
    TRIREME_CHECK(adapter.row_begin >= 0 && adapter.row_begin + adapter.b.size(0) <= weight.size(0), "adapter rows ",
                  adapter.row_begin, " to ", adapter.row_begin + adapter.b.size(0), " leave the weight's ",
                  weight.size(0));
    for (const LoraAdapter* other = adapters.data(); other != &adapter; ++other)
      TRIREME_CHECK(adapter.row_begin >= other->row_begin + other->b.size(0) ||
                        other->row_begin >= adapter.row_begin + adapter.b.size(0),
                    "two adapters take row ", std::max(adapter.row_begin, other->row_begin), " of one weight");
  }
  LoraPlan plan{{}, scale, dropout};
  for (const LoraAdapter& adapter : adapters) {
    pairs.push_back(adapter.a);
    pairs.push_back(adapter.b);
    plan.places.push_back({adapter.row_begin, adapter.stream});
  }
  return plan;
}

std::vector<at::Tensor> lora_products(const at::Tensor& x, at::TensorList pairs, const LoraPlan& plan) {
  const size_t n = plan.places.size();
  std::vector<at::Tensor> products;
  if (n == 0) return products;
  if (bridge::has_lora_kernels(x, pairs, plan)) return bridge::lora_down(x, pairs, plan);
  if (plan.dropout.active()) {
    for (size_t i = 0; i < n; ++i)
      products.push_back(at::mm(as_rows(apply_dropout(x, plan.dropout, plan.places[i].stream)), pairs[2 * i].t()));
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

void lora_add(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs, const LoraPlan& plan) {
  up_products(y_TO, products, pairs, plan, /*adds=*/true);
}

at::Tensor lora_part(at::TensorList products, at::TensorList pairs, const LoraPlan& plan, int64_t columns) {
  int64_t taken = 0;
  for (size_t i = 0; i < plan.places.size(); ++i) taken += pairs[2 * i + 1].size(0);
  const std::vector<int64_t> shape = {products[0].size(0), columns};
  const at::Tensor part =
      taken == columns ? at::empty(shape, products[0].options()) : at::zeros(shape, products[0].options());
  up_products(part, products, pairs, plan, /*adds=*/false);
  return part;
}

LoraProductGradients lora_product_gradients(const at::Tensor& dy_TO, const at::Tensor& x, at::TensorList pairs,
                                            at::TensorList products, const LoraPlan& plan,
                                            const std::vector<bool>& wanted) {
  const size_t n = plan.places.size();
  LoraProductGradients result;
  result.for_kernels = n > 0 && x.defined() && bridge::has_lora_kernels(x, pairs, plan);
  for (size_t i = 0; i < n; ++i) {
    const at::Tensor& b = pairs[2 * i + 1];
    const at::Tensor dy_rows = dy_TO.narrow(1, plan.places[i].row_begin, b.size(0));
    bridge::LoraUpGradients both;
    if (result.for_kernels && wanted[2 * i + 1]) both = bridge::lora_up_gradients(dy_rows, products[i], b, plan.scale);
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

LoraGradients lora_backward(const LoraProductGradients& of_products, const at::Tensor& x, at::TensorList pairs,
                            const LoraPlan& plan, const std::vector<bool>& wanted, bool want_dx) {
  const size_t n = plan.places.size();
  LoraGradients result;
  result.pairs.resize(2 * n);
  if (n == 0) return result;
  const std::vector<at::Tensor>& d_products = of_products.d;
  std::vector<at::Tensor> a;
  bool any = false;
  for (size_t i = 0; i < n; ++i) {
    any = any || wanted[2 * i];
    a.push_back(pairs[2 * i]);
    result.pairs[2 * i + 1] = of_products.db[i];
  }
  if (of_products.for_kernels) {
    if (want_dx) result.dx_part = at::empty_like(as_rows(x));
    if (any) {
      const std::vector<at::Tensor> da = bridge::lora_down_gradients(x, result.dx_part, d_products, pairs, plan);
      for (size_t i = 0; i < n; ++i)
        if (wanted[2 * i]) result.pairs[2 * i] = da[i];
    } else if (want_dx) {
      bridge::lora_down_dx(result.dx_part, x, d_products, pairs, plan);
    }
    return result;
  }
  if (!plan.dropout.active()) {
    const at::Tensor all = n == 1 ? d_products[0] : at::cat(d_products, 1);
    if (want_dx) result.dx_part = at::mm(all, stacked(a));
    if (!any) return result;
    const at::Tensor da = at::mm(all.t(), as_rows(x));
    int64_t row = 0;
    for (size_t i = 0; i < n; ++i) {
      if (wanted[2 * i]) result.pairs[2 * i] = da.narrow(0, row, a[i].size(0));
      row += a[i].size(0);
    }
    return result;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t stream = plan.places[i].stream;
    if (wanted[2 * i]) result.pairs[2 * i] = at::mm(d_products[i].t(), as_rows(apply_dropout(x, plan.dropout, stream)));
    if (!want_dx) continue;
    const at::Tensor part = at::mm(d_products[i], a[i]);
    if (i == 0)
      result.dx_part = as_rows(apply_dropout(part.view(x.sizes()), plan.dropout, stream));
    else {
      at::Tensor sum = result.dx_part.view(x.sizes());
      add_dropout_(sum, part.view(x.sizes()), plan.dropout, stream);
    }
  }
  return result;
}

}  // namespace trireme
