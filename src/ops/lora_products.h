#pragma once
// Private to ops/: the low-rank products of LoRA beside a layer's own product.

#include "trireme/ops/dropout.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/lora_adapter.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// Adapters of one linear layer without their tensors.
struct LoraPlan {
  struct Place {
    int64_t row_begin;
    uint64_t stream;
  };
  std::vector<Place> places;
  double scale = 0;
  Dropout dropout;
};

/// Appends a0, b0, a1, b1, … to `pairs`; adapters that do not fit `weight` [out, in] are an internal error.
LoraPlan make_lora_plan(const std::vector<LoraAdapter>& adapters, const at::Tensor& weight,
                        double scale, const Dropout& dropout, std::vector<at::Tensor>& pairs);

/// y[:, rows of i] += scale * dropout_i(x) A_i^T B_i^T. Returns the products dropout_i(x) A_i^T
/// [T, r] (rows may lie apart), which backward needs. x [B, S, in] (any leading shape when dropout is off), y [T, out].
std::vector<at::Tensor> lora_forward(const at::Tensor& x, const at::Tensor& y_TO,
                                     at::TensorList pairs, const LoraPlan& plan);
/// The second half alone, from products that forward returned.
void lora_add(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs,
              const LoraPlan& plan);

/// Gradients of the pairs (undefined where not `wanted`) and, when dx_TI is defined, dx += the
/// adapters' part. x as in forward.
std::vector<at::Tensor> lora_backward(const at::Tensor& dy_TO, const at::Tensor& x,
                                      at::TensorList pairs, at::TensorList products,
                                      const LoraPlan& plan, const std::vector<bool>& wanted,
                                      at::Tensor dx_TI);

}  // namespace trireme
