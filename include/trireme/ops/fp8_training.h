#pragma once
// FP8 products of layers that are trained, with one scale a tensor that follows the steps before
// (delayed scaling as the MLPerf BERT submissions run it: the newest amax counts).
//
// A linear layer multiplies three pairs: x W^T, dy W and dy^T x. x and W are E4M3 (largest value
// 448), dy is E5M2 (57344); sums are fp32, results come in the compute dtype. Scales aim at half of
// the largest value, so that a tensor may double from one step to the next before it saturates.
// Before any step has ended the amax of the tensor itself is taken. Scales stay on the device.
//
// On sm_90 codes come from kernels/fp8_operands and products from cuBLASLt; elsewhere the same
// rounding is done by LibTorch and the products in fp32.

#include "trireme/ops/bert_layers.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// One tensor's scaling: fp32 scalars on the device. codes = saturate(x * scale), x = codes * inverse.
struct Fp8Tensor {
  at::Tensor scale, inverse;
  at::Tensor amax;        // raised to the greatest |x| seen since the last update
  bool gradient = false;  // E5M2
};
/// Those of a linear layer y = x W^T + b.
struct Fp8Linear {
  Fp8Tensor x, weight, dy;
  const bool* known = nullptr;  // whether scales have followed from a step yet
};

class Fp8Scales {
 public:
  Fp8Scales(int64_t linears, at::Device device);
  Fp8Scales(const Fp8Scales&) = delete;
  Fp8Scales& operator=(const Fp8Scales&) = delete;

  const Fp8Linear& linear(int64_t index) const { return linears_[static_cast<size_t>(index)]; }
  int64_t tensors() const { return amax_.numel(); }
  /// fp32 [tensors]: what a run on several ranks brings to the maximum over them before update().
  const at::Tensor& amax() const { return amax_; }
  /// Forgets what was seen, where no step has ended yet (a pass over made-up rows counts nothing).
  void begin_step();
  /// After a step: scales of the next from the amax of this; kept where that is 0, infinite or NaN. Returns how
  /// many tensors had values beyond what their scale could hold (infinities and NaN among them), fp64 scalar.
  at::Tensor update();
  /// What a checkpoint keeps; exact.
  std::vector<double> state() const;
  /// False: not the state of this many tensors.
  bool restore(const std::vector<double>& state);

 private:
  at::Tensor scale_, inverse_, amax_, largest_;
  std::vector<Fp8Linear> linears_;
  bool known_ = false;
};

/// Codes of a matrix [R, C] as it stands and transposed [C, R]; where asked for, the sums of its columns.
struct Fp8Operand {
  at::Tensor data, transposed, inverse, sums;
};
Fp8Operand fp8_operand(const at::Tensor& x, const Fp8Tensor& scaling, bool known, bool want_sums = false);
/// Of gelu(z + bias).
Fp8Operand fp8_gelu_operand(const at::Tensor& z, const at::Tensor& bias, GeluForm form, const Fp8Tensor& scaling,
                            bool known);
/// Of dy * gelu'(z + bias), with the sums of columns.
Fp8Operand fp8_gelu_gradient_operand(const at::Tensor& dy, const at::Tensor& z, const at::Tensor& bias, GeluForm form,
                                     const Fp8Tensor& scaling, bool known);

/// The sub-layers of a post-norm block as in bert_layers.h, with their products in FP8. On a GPU tokens and widths are
/// multiples of 16.
std::array<at::Tensor, 2> fp8_linear_bias(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                                          const Fp8Linear& scaling);
at::Tensor fp8_linear_add_norm(const at::Tensor& x_TI, const at::Tensor& weight_DI, const at::Tensor& bias_D,
                               const at::Tensor& residual_TD, const LayerNormWeights& norm, const Dropout& dropout,
                               uint64_t stream, const Fp8Linear& scaling);
struct PostNormMlp {
  at::Tensor up, up_bias, down, down_bias;  // [F, D], [F], [D, F], [D]
};
/// linear_add_norm(linear_gelu(x)) with x as the residual. Kept for backward: codes of x and of the activation, x up^T.
at::Tensor fp8_mlp_add_norm(const at::Tensor& x_TD, const PostNormMlp& weights, GeluForm form,
                            const LayerNormWeights& norm, const Dropout& dropout, uint64_t stream, const Fp8Linear& up,
                            const Fp8Linear& down);

}  // namespace trireme
