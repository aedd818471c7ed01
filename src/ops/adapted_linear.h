#pragma once
// Private to ops/: a linear layer with adapters, as the layers of a block use it: its products in either precision, the
// adapters' part taken along, and what autograd is not told.

#include "lora_products.h"
#include "trireme/ops/block_layers.h"
#include "trireme/ops/fp8.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <vector>

namespace trireme {

/// An input of a product: plain, FP8, or both (adapters read the plain one).
struct LinearInput {
  at::Tensor plain;
  Fp8Rows fp8;
};

/// Everything about a linear layer but the tensors that autograd must know.
struct LinearPlan {
  at::Tensor inverse_scale;  // of an FP8 weight; constant
  LoraPlan lora;
  size_t num_pairs() const { return 2 * lora.places.size(); }
  Weight weight(const at::Tensor& matrix) const { return {matrix, inverse_scale}; }
};
/// Appends the weight's matrix and the adapters' pairs to `inputs`.
LinearPlan make_plan(const Weight& weight, const std::vector<LoraAdapter>& adapters, const LoraSettings& lora,
                     std::vector<at::Tensor>& inputs);
/// `what` is called with x [.., in] and a weight [out, in] that fit each other, else an internal error.
void check_linear(const at::Tensor& x, const Weight& weight, const char* what);

/// x W^T + the adapters' part (+ residual), `products` from lora_products(). The layer's own product comes last where
/// it can: it reads what it adds to while the matrix engine is at work, and a pass over y of its own is saved.
at::Tensor forward_product(const LinearInput& x, const Weight& weight, at::ScalarType dtype, const LoraPlan& lora,
                           at::TensorList pairs, at::TensorList products, const at::Tensor& residual_TD = {});
/// dy W, over the adapters' part where there is one.
at::Tensor input_gradient(const at::Tensor& dy, const Fp8Rows& dy_fp8, const Weight& weight, at::ScalarType dtype,
                          const at::Tensor& part);
/// dy of a layer whose gradient no kernel has quantised yet.
at::Tensor input_gradient(const at::Tensor& dy, const Weight& weight, const at::Tensor& part);

/// Which of `count` inputs from `first` on want their gradient.
std::vector<bool> wanted(torch::autograd::AutogradContext* ctx, size_t first, size_t count);
void put(torch::autograd::variable_list& result, size_t first, const std::vector<at::Tensor>& values);

}  // namespace trireme
