#pragma once
// The sub-layers of a post-norm transformer block (BERT) with hand-written backward. Products run in
// the library; everything between them (bias, GELU, dropout, residual, layer norm) is one pass of a
// kernel on sm_90 and a LibTorch composition elsewhere, forward and backward. dropout is formed again
// in backward instead of stored.
//
// Rows are tokens: x [T, in], weights [out, in], vectors [out], one dtype. Dropout's sample ids are
// one per row (ops/dropout.h with S = 1).

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace trireme {

/// Which GELU (Hendrycks & Gimpel 2016): the exact one, or its tanh approximation.
enum class GeluForm { kErf, kTanh };

/// {x W^T + b, x}. Users of x downstream (the residual) take the second result, so that its gradient is
/// added inside the product that forms this layer's gradient to x.
std::array<at::Tensor, 2> linear_bias(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& bias_O);

/// {gelu(x W^T + b), x}, as linear_bias(). Kept for backward: x and x W^T.
std::array<at::Tensor, 2> linear_gelu(const at::Tensor& x_TI, const at::Tensor& weight_OI, const at::Tensor& bias_O,
                                      GeluForm form);

struct LayerNormWeights {
  at::Tensor gamma, beta;  // [D]
  double eps = 1e-12;      // in the root
};

/// layer_norm(residual + dropout(x W^T + b)) * gamma + beta, variance over the row, biased. `stream` names
/// the place in the model for dropout.
at::Tensor linear_add_norm(const at::Tensor& x_TI, const at::Tensor& weight_DI, const at::Tensor& bias_D,
                           const at::Tensor& residual_TD, const LayerNormWeights& norm, const Dropout& dropout,
                           uint64_t stream);

/// layer_norm(x) * gamma + beta.
at::Tensor layer_norm(const at::Tensor& x_TD, const LayerNormWeights& norm);

}  // namespace trireme
