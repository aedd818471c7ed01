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

/// Appends a0, b0, a1, b1, … to `pairs`; adapters that do not fit `weight` [out, in], or meet in a row of it, are an
/// internal error.
LoraPlan make_lora_plan(const std::vector<LoraAdapter>& adapters, const at::Tensor& weight, double scale,
                        const Dropout& dropout, std::vector<at::Tensor>& pairs);

/// dropout_i(x) A_i^T [T, r] of every adapter (rows may lie apart), which backward needs. x [B, S, in] (any leading
/// shape when dropout is off).
std::vector<at::Tensor> lora_products(const at::Tensor& x, at::TensorList pairs, const LoraPlan& plan);
/// y[:, rows of i] += scale * product_i B_i^T; y [T, out].
void lora_add(const at::Tensor& y_TO, at::TensorList products, at::TensorList pairs, const LoraPlan& plan);
/// The adapters' part of y [T, columns] alone, for the layer's own product to be added to: nothing is read that another
/// has written.
at::Tensor lora_part(at::TensorList products, at::TensorList pairs, const LoraPlan& plan, int64_t columns);

/// What backward knows from dy alone: asked for first, while dy is still in L2.
struct LoraProductGradients {
  std::vector<at::Tensor>
      d;  // of the products, scale * dy B [T, r]; for kernels with columns of zeros up to a rank they know
  std::vector<at::Tensor> db;  // undefined where not wanted
  bool for_kernels = false;
};
/// `x`: of the type and shape that lora_backward() will get, it is not read.
LoraProductGradients lora_product_gradients(const at::Tensor& dy_TO, const at::Tensor& x, at::TensorList pairs,
                                            at::TensorList products, const LoraPlan& plan,
                                            const std::vector<bool>& wanted);

struct LoraGradients {
  std::vector<at::Tensor> pairs;  // undefined where not wanted
  at::Tensor
      dx_part;  // of x's shape as rows [T, in], for the layer's own product to be added to; undefined where not wanted
};
/// x as in forward.
LoraGradients lora_backward(const LoraProductGradients& of_products, const at::Tensor& x, at::TensorList pairs,
                            const LoraPlan& plan, const std::vector<bool>& wanted, bool want_dx);

}  // namespace trireme
