#pragma once
// Private to ops/: LoRA (Hu et al. 2021) as an optional part of a linear layer in an autograd node.
//
//   forward   xA_i = dropout_i(x) A_i^T;  y[:, rows of i] += scale_i xA_i B_i^T
//   backward  d_xA_i = scale_i dy[:, rows of i] B_i,  dB_i = scale_i dy[:, rows of i]^T xA_i
//             dA_i = d_xA_i^T dropout_i(x),  dx += dropout_i(d_xA_i A_i)
//
// DoRA multiplies columns by factors (LoraAdapter): the linear layer computes what is multiplied, and its gradient, and
// this part the factors. dy is then the gradient of what is multiplied.

#include "layers/tiles.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/layers/linear.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

/// One adapter of a layer.
struct LoraSlot {
  Input a, b;       // [r, in], [rows, r]
  Input magnitude;  // [rows]; not given: no DoRA
  int64_t row_begin = 0;
  double scale = 1;
  Dropout dropout;
  at::Tensor xa;    // [T, r], kept by forward; the row stride may exceed r
  at::Tensor d_xa;  // [T, r]; for kernels padded with zero columns up to a supported rank
};

class LoraPart {
 public:
  LoraPart() = default;
  /// Adapters that do not fit `matrix` [out, in], or write the same row of it, are an internal error.
  LoraPart(const Lora& lora, const at::Tensor& matrix, InputList& inputs);
  bool active() const { return !slots_.empty(); }
  int64_t samples() const { return dropout_.samples(); }
  /// From now on x is the rows of a tile of `tokens` rows. Before multiply_input().
  void take_tile(const Tile& tile, int64_t tokens);
  bool dora() const { return active() && slots_[0].magnitude.given(); }
  bool drops() const { return dropout_.active(); }

  /// Computes xA of every adapter from x [T, in].
  void multiply_input(const at::Tensor& x);
  /// The adapters' part of y [T, columns] as a tensor to which the layer's own product is added.
  at::Tensor output_part(int64_t columns) const;
  /// y += the adapters' part.
  void add_to(const at::Tensor& y) const;

  /// Computes d_xA and dB from dy alone; called first, while dy is in L2.
  void from_output_gradient(const at::Tensor& dy, Gradients& gradients);
  /// Computes dA, and if `want_dx` returns the adapters' part of dx [T, in], to which the layer's own product is added.
  at::Tensor from_input(const at::Tensor& x, bool want_dx, Gradients& gradients);

  /// DoRA: computes the factors of all columns [columns], 1 where there is no adapter. Once: A, B and the weight are
  /// those of a step.
  void measure(const Weight& weight);
  const at::Tensor& factors() const { return factors_; }
  /// DoRA: sets the gradients of the magnitudes from those of the factors [columns].
  void from_factor_gradients(const at::Tensor& d_factors, Gradients& gradients) const;
  /// DoRA with dropout, adapter by adapter: its rows of the weight, and dropout_i(x).
  size_t count() const { return slots_.size(); }
  std::pair<int64_t, int64_t> rows_of(size_t slot) const;
  const Dropout& dropout_of(size_t slot) const { return slots_[slot].dropout; }
  /// scale xA B^T of one adapter.
  at::Tensor product_of(size_t slot) const;

 private:
  std::vector<LoraSlot> slots_;
  at::Tensor factors_, lengths_;  // DoRA, of all columns: g_j and |v_j|, accumulate_type
  Dropout dropout_;
  bool kernels_ = false;  // whether our kernels process x
};

namespace launch {

/// Whether the kernels support x [T, in] and every adapter's rank, with dropout.
bool lora_fits(const at::Tensor& x, const std::vector<LoraSlot>& slots);
/// Computes xA of every slot.
void lora_down(const at::Tensor& x, std::vector<LoraSlot>& slots);
/// scale * dy B [T, r], padded with zero columns up to a rank that lora_down_gradients() and lora_down_dx() support.
at::Tensor lora_gradient_product(const at::Tensor& dy_rows, const at::Tensor& b, double scale);
/// Returns dA of every slot. If dx [T, in] (contiguous) is defined, it also does the work of lora_down_dx(), in the
/// same pass if possible.
std::vector<at::Tensor> lora_down_gradients(const at::Tensor& x, const at::Tensor& dx,
                                            const std::vector<LoraSlot>& slots);
/// dx = sum of dropout_i(d_xA_i A_i); dx contiguous; of x only the shape is used.
void lora_down_dx(const at::Tensor& dx, const at::Tensor& x, const std::vector<LoraSlot>& slots);
/// y = scale * xA B^T, or y += if `adds`; y's row stride may exceed its width. False: the kernel does not support
/// these.
bool lora_up(const at::Tensor& y, const at::Tensor& xa, const at::Tensor& b, double scale, bool adds);
struct LoraUpGradients {
  at::Tensor d_xa, db;  // undefined: the kernel does not support these
};
/// scale * dy B and scale * dy^T xA with one read of dy.
LoraUpGradients lora_up_gradients(const at::Tensor& dy, const at::Tensor& xa, const at::Tensor& b, double scale);

}  // namespace launch

}  // namespace trireme
