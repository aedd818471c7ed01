#pragma once
// Private to ops/: LoRA's low-rank products through our kernels, dropout of the input included.

#include "lora_products.h"

namespace trireme::bridge {

struct LoraUpGradients {
  at::Tensor d, db;  // as lora_gradient_product() gives it; of B's shape. Undefined: the kernel does not take these
};

#ifdef TRIREME_WITH_CUDA
/// Dropout is on and the kernels take x [B, S, in] and every adapter's rank.
bool has_lora_kernels(const at::Tensor& x, at::TensorList pairs, const LoraPlan& plan);
/// dropout_i(x) A_i^T [T, r] of every adapter.
std::vector<at::Tensor> lora_down(const at::Tensor& x, at::TensorList pairs, const LoraPlan& plan);
/// scale * dy_rows B [T, r] as the next two read it: with columns of zeros up to a rank they know.
at::Tensor lora_gradient_product(const at::Tensor& dy_rows, const at::Tensor& b, double scale);
/// d_i^T dropout_i(x) [r, in] of every adapter, d from lora_gradient_product(); with dx_TI (contiguous; undefined: not
/// wanted) lora_down_dx() in the same pass where the kernels can.
std::vector<at::Tensor> lora_down_gradients(const at::Tensor& x, const at::Tensor& dx_TI, at::TensorList d,
                                            at::TensorList pairs, const LoraPlan& plan);
/// dx = sum of dropout_i(d_i A_i); dx_TI contiguous, x for its shape.
void lora_down_dx(const at::Tensor& dx_TI, const at::Tensor& x, at::TensorList d, at::TensorList pairs,
                  const LoraPlan& plan);
/// y_TO = scale * t B^T, or += where it adds; t a product of lora_down(); y's rows may lie apart. False: nothing was
/// done, the kernel does not take these.
bool lora_up(const at::Tensor& y_TO, const at::Tensor& t_TR, const at::Tensor& b_OR, double scale, bool adds);
/// scale * dy B and scale * dy^T t in one read of dy.
LoraUpGradients lora_up_gradients(const at::Tensor& dy_TO, const at::Tensor& t_TR, const at::Tensor& b_OR,
                                  double scale);
#else
inline bool has_lora_kernels(const at::Tensor&, at::TensorList, const LoraPlan&) { return false; }
inline std::vector<at::Tensor> lora_down(const at::Tensor&, at::TensorList, const LoraPlan&) { return {}; }
inline at::Tensor lora_gradient_product(const at::Tensor&, const at::Tensor&, double) { return {}; }
inline std::vector<at::Tensor> lora_down_gradients(const at::Tensor&, const at::Tensor&, at::TensorList, at::TensorList,
                                                   const LoraPlan&) {
  return {};
}
inline void lora_down_dx(const at::Tensor&, const at::Tensor&, at::TensorList, at::TensorList, const LoraPlan&) {}
inline bool lora_up(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, bool) { return false; }
inline LoraUpGradients lora_up_gradients(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) { return {}; }
#endif

}  // namespace trireme::bridge
