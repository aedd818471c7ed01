#pragma once
// Private to ops/: the low-rank products of LoRA beside a layer's own product.

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

// A layer calls these around its own product, which sweeps what its inputs left in L2: lora_products() and lora_product_gradients(), which
// read x and dy, before it; lora_add() and lora_backward(), which add to its result, right behind it.

/// dropout_i(x) A_i^T [T, r] (rows may lie apart), which backward needs too. x [B, S, in] (any leading shape when dropout is off).
std::vector<at::Tensor> lora_products(const at::Tensor& x, at::TensorList pairs,
                                      const LoraPlan& plan);
/// y[:, rows of i] += scale * product_i B_i^T; y [T, out].
void lora_add(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs,
              const LoraPlan& plan);

struct LoraGradients {
  std::vector<at::Tensor> d;   // of the products: scale * dy B [T, r], or for kernels more columns of zeros
  std::vector<at::Tensor> db;  // undefined where not wanted
  bool for_kernels = false;
};
/// `x`: of the type and shape that lora_backward() will get, it is not read.
LoraGradients lora_product_gradients(const at::Tensor& dy_TO, const at::Tensor& x,
                                     at::TensorList pairs, at::TensorList products,
                                     const LoraPlan& plan, const std::vector<bool>& wanted);
/// Gradients of the pairs (undefined where not `wanted`) and, when dx_TI is defined, dx += the
/// adapters' part. x as in forward.
std::vector<at::Tensor> lora_backward(const LoraGradients& gradients, const at::Tensor& x,
                                      at::TensorList pairs, const LoraPlan& plan,
                                      const std::vector<bool>& wanted, at::Tensor dx_TI);

}  // namespace trireme
