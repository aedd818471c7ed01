#include "layers/lora.h"

#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

at::Tensor stack_rows(const std::vector<LoraSlot>& slots) {
  std::vector<at::Tensor> a;
  for (const LoraSlot& slot : slots) a.push_back(slot.a.value);
  return a.size() == 1 ? a[0] : at::cat(a, 0);
}

/// The kernels apply dropout to the input while they read it. Without dropout one library product for all adapters is
/// as fast.
bool kernels_take(const at::Tensor& x, const std::vector<LoraSlot>& slots) {
  if constexpr (kCudaBuild) {
    const bool dropout = slots[0].dropout.active(), fits = x.is_cuda() && dropout && launch::lora_fits(x, slots);
    return Dispatch("lora", x)
        .needs(dropout, "without dropout one library product serves all adapters")
        .needs(fits, "the rank is above 64, or x is not contiguous with 16-byte aligned rows")
        .choice(Runs::kLibrary)
        .kernel();
  }
  return false;
}

bool kernel_up(const at::Tensor& y, const at::Tensor& xa, const at::Tensor& b, double scale, bool adds) {
  if constexpr (kCudaBuild) return y.is_cuda() && launch::lora_up(y, xa, b, scale, adds);
  return false;
}

/// Adds the products to y, or overwrites y if `adds` is false.
void up_products(const at::Tensor& y, const std::vector<LoraSlot>& slots, bool adds) {
  for (const LoraSlot& slot : slots) {
    const at::Tensor& b = slot.b.value;
    const at::Tensor rows = y.narrow(1, slot.row_begin, b.size(0));
    if (!kernel_up(rows, slot.xa, b, slot.scale, adds)) rows.addmm_(slot.xa, b.t(), adds ? 1 : 0, slot.scale);
  }
}

}  // namespace

LoraPart::LoraPart(const Lora& lora, const at::Tensor& matrix, InputList& inputs) : dropout_(lora.dropout) {
  for (const LoraAdapter& adapter : lora.adapters) {
    TRIREME_CHECK(adapter.a.dim() == 2 && adapter.b.dim() == 2 && adapter.a.size(1) == matrix.size(1) &&
                      adapter.b.size(1) == adapter.a.size(0),
                  "adapter A ", adapter.a.sizes(), " and B ", adapter.b.sizes(), " do not fit weight ", matrix.sizes());
    TRIREME_CHECK(adapter.row_begin >= 0 && adapter.row_begin + adapter.b.size(0) <= matrix.size(0), "adapter rows ",
                  adapter.row_begin, " to ", adapter.row_begin + adapter.b.size(0), " exceed the weight's rows 0 to ",
                  matrix.size(0));
    for (const LoraSlot& other : slots_)
      TRIREME_CHECK(adapter.row_begin >= other.row_begin + other.b.value.size(0) ||
                        other.row_begin >= adapter.row_begin + adapter.b.size(0),
                    "two adapters write row ", std::max(adapter.row_begin, other.row_begin), " of one weight");
    TRIREME_CHECK(adapter.magnitude.defined() == lora.adapters[0].magnitude.defined() &&
                      (!adapter.magnitude.defined() || adapter.magnitude.numel() == adapter.b.size(0)),
                  "the adapters of one layer have magnitudes of their rows, or none has one");
    slots_.push_back({inputs.add(adapter.a),
                      inputs.add(adapter.b),
                      inputs.add(adapter.magnitude),
                      adapter.row_begin,
                      adapter.scale,
                      dropout_.at(adapter.stream),
                      {},
                      {}});
  }
}

void LoraPart::take_tile(const Tile& tile, int64_t tokens) {
  dropout_ = dropout_.of_rows(tile.begin, tile.count, tokens);
  for (LoraSlot& slot : slots_) slot.dropout = slot.dropout.of_rows(tile.begin, tile.count, tokens);
}

void LoraPart::multiply_input(const at::Tensor& x) {
  kernels_ = kernels_take(x, slots_);
  if constexpr (kCudaBuild)
    if (kernels_) return launch::lora_down(x, slots_);
  if (dropout_.active()) {
    for (LoraSlot& slot : slots_) slot.xa = at::mm(apply_dropout(x, slot.dropout), slot.a.value.t());
    return;
  }
  const at::Tensor all = at::mm(x, stack_rows(slots_).t());
  int64_t column = 0;
  for (LoraSlot& slot : slots_) {
    slot.xa = all.narrow(1, column, slot.a.value.size(0));
    column += slot.a.value.size(0);
  }
}

at::Tensor LoraPart::output_part(int64_t columns) const {
  int64_t taken = 0;
  for (const LoraSlot& slot : slots_) taken += slot.b.value.size(0);
  const std::vector<int64_t> shape = {slots_[0].xa.size(0), columns};
  const at::Tensor part =
      taken == columns ? at::empty(shape, slots_[0].xa.options()) : at::zeros(shape, slots_[0].xa.options());
  up_products(part, slots_, /*adds=*/false);
  return part;
}

void LoraPart::add_to(const at::Tensor& y) const { up_products(y, slots_, /*adds=*/true); }

void LoraPart::from_output_gradient(const at::Tensor& dy, Gradients& gradients) {
  for (LoraSlot& slot : slots_) {
    const at::Tensor& b = slot.b.value;
    const at::Tensor dy_rows = dy.narrow(1, slot.row_begin, b.size(0));
    const bool want_db = gradients.wanted(slot.b);
    if constexpr (kCudaBuild) {
      if (kernels_) {
        launch::LoraUpGradients both;
        if (want_db) both = launch::lora_up_gradients(dy_rows, slot.xa, b, slot.scale);
        if (both.d_xa.defined()) {
          slot.d_xa = both.d_xa;
          gradients.set(slot.b, both.db);
          continue;
        }
        slot.d_xa = launch::lora_gradient_product(dy_rows, b, slot.scale);
      }
    }
    if (!slot.d_xa.defined()) slot.d_xa = at::mm(dy_rows, b).mul_(slot.scale);
    if (want_db) gradients.set(slot.b, at::mm(dy_rows.t(), slot.xa).mul_(slot.scale));
  }
}

namespace {

constexpr int64_t kMeasuredRows = 4096;  // of codes whose values are in memory at a time

/// Calls f(first row, values) for all rows of the weight, in the compute dtype: a view, or the values of codes.
template <class F>
void for_values(const Weight& weight, at::ScalarType dtype, const F& f) {
  const at::Tensor& matrix = weight.matrix;
  if (!weight.quantized()) return f(0, matrix);
  for (int64_t row = 0; row < matrix.size(0); row += kMeasuredRows)
    f(row, matrix.narrow(0, row, std::min(kMeasuredRows, matrix.size(0) - row)).to(dtype));
}

/// a b^T summed and returned in `type`.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  if (a.scalar_type() == type) return at::mm(a, b.t());
  // LibTorch on a CPU has no product of 16-bit matrices with an fp32 result.
  return a.is_cuda() ? at::mm(a, b.t(), type) : at::mm(a.to(type), b.t().to(type));
}

}  // namespace

at::Tensor row_squares(const Weight& weight) {
  const at::ScalarType type = weight.matrix.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor squares = at::empty({weight.matrix.size(0)}, weight.matrix.options().dtype(type).requires_grad(false));
  for_values(weight, at::kFloat, [&](int64_t row, const at::Tensor& values) {
    squares.narrow(0, row, values.size(0))
        .copy_(at::linalg_vector_norm(values.detach(), 2, {1}, false, type).square_());
  });
  return weight.quantized() ? squares.mul_(weight.state.inverse_scale.square()) : squares;
}

void LoraPart::measure(const Weight& weight) {
  if (factors_.defined()) return;
  at::Tensor squares;
  if (const auto& kept = weight.state.row_squares) {
    if (!kept->defined()) *kept = row_squares(weight);
    squares = *kept;
  } else {
    squares = row_squares(weight);
  }
  // |v_j|^2 = |w_j|^2 + 2 s (W A^T)_j . b_j + s^2 b_j A A^T b_j: no matrix of the weight's size is made.
  const at::ScalarType type = squares.scalar_type(), dtype = slots_[0].a.value.scalar_type();
  const at::Tensor rows_of_a = stack_rows(slots_);
  at::Tensor products = at::empty({weight.matrix.size(0), rows_of_a.size(0)}, squares.options());
  for_values(weight, dtype, [&](int64_t row, const at::Tensor& values) {
    products.narrow(0, row, values.size(0)).copy_(wide_product(values, rows_of_a, type));
  });
  if (weight.quantized()) products.mul_(weight.state.inverse_scale);
  factors_ = at::ones_like(squares);
  lengths_ = at::ones_like(squares);
  int64_t column = 0;
  for (const LoraSlot& slot : slots_) {
    const at::Tensor a = slot.a.value.to(type), b = slot.b.value.to(type);
    const int64_t rows = b.size(0), rank = b.size(1);
    const at::Tensor cross = products.narrow(0, slot.row_begin, rows).narrow(1, column, rank);
    const at::Tensor own = at::mm(b, at::mm(a, a.t()));
    const at::Tensor more = (cross.mul(2 * slot.scale) + own.mul_(slot.scale * slot.scale)).mul_(b).sum(1);
    const at::Tensor length = (squares.narrow(0, slot.row_begin, rows) + more).clamp_min_(0).sqrt_();
    lengths_.narrow(0, slot.row_begin, rows).copy_(length);
    factors_.narrow(0, slot.row_begin, rows).copy_(slot.magnitude.value / length);
    column += rank;
  }
}

void LoraPart::from_factor_gradients(const at::Tensor& d_factors, Gradients& gradients) const {
  for (const LoraSlot& slot : slots_) {
    if (!gradients.wanted(slot.magnitude)) continue;
    const int64_t rows = slot.magnitude.value.size(0);
    gradients.set(slot.magnitude, d_factors.narrow(0, slot.row_begin, rows) / lengths_.narrow(0, slot.row_begin, rows));
  }
}

std::pair<int64_t, int64_t> LoraPart::rows_of(size_t slot) const {
  return {slots_[slot].row_begin, slots_[slot].b.value.size(0)};
}

at::Tensor LoraPart::product_of(size_t slot) const {
  return at::mm(slots_[slot].xa, slots_[slot].b.value.t()).mul_(slots_[slot].scale);
}

at::Tensor LoraPart::from_input(const at::Tensor& x, bool want_dx, Gradients& gradients) {
  if (slots_.empty()) return {};
  const bool any = std::any_of(slots_.begin(), slots_.end(), [&](const LoraSlot& s) { return gradients.wanted(s.a); });
  at::Tensor dx;
  if constexpr (kCudaBuild) {
    if (kernels_) {
      if (want_dx) dx = at::empty_like(x);
      if (any) {
        const std::vector<at::Tensor> da = launch::lora_down_gradients(x, dx, slots_);
        for (size_t i = 0; i < slots_.size(); ++i)
          if (gradients.wanted(slots_[i].a)) gradients.set(slots_[i].a, da[i]);
      } else if (want_dx) {
        launch::lora_down_dx(dx, x, slots_);
      }
      return dx;
    }
  }
  if (!dropout_.active()) {
    std::vector<at::Tensor> d_xa;
    for (const LoraSlot& slot : slots_) d_xa.push_back(slot.d_xa);
    const at::Tensor all = d_xa.size() == 1 ? d_xa[0] : at::cat(d_xa, 1);
    if (want_dx) dx = at::mm(all, stack_rows(slots_));
    if (!any) return dx;
    const at::Tensor da = at::mm(all.t(), x);
    int64_t row = 0;
    for (const LoraSlot& slot : slots_) {
      if (gradients.wanted(slot.a)) gradients.set(slot.a, da.narrow(0, row, slot.a.value.size(0)));
      row += slot.a.value.size(0);
    }
    return dx;
  }
  for (const LoraSlot& slot : slots_) {
    if (gradients.wanted(slot.a)) gradients.set(slot.a, at::mm(slot.d_xa.t(), apply_dropout(x, slot.dropout)));
    if (!want_dx) continue;
    const at::Tensor part = at::mm(slot.d_xa, slot.a.value);
    if (dx.defined())
      add_dropout_(dx, part, slot.dropout);
    else
      dx = apply_dropout(part, slot.dropout);
  }
  return dx;
}

}  // namespace trireme
