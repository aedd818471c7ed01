#pragma once
// The sub-layers of a decoder block with hand-written backward. Each keeps only what its backward
// reads, forms the rest again (normalised rows, the activation of the MLP), fuses the residual's
// gradient into the norm's, and runs its products in the weight's storage: compute dtype or FP8.
//
// Equal to plain compositions, which are the tests' oracle; linear(x) = x W^T + what adapters add.
// With an FP8 weight inputs and output gradients are quantised row by row; adapters, norms and
// residuals stay in the compute dtype. x and h are [B, S, D].

#include "trireme/ops/dropout.h"
#include "trireme/ops/fp8.h"
#include "trireme/ops/lora_adapter.h"

#include <array>
#include <vector>

namespace trireme {

/// The low-rank side of a block's layers.
struct LoraSettings {
  double scale = 0;
  Dropout dropout;
};

/// {linear(rms_norm(x)), x}. Users of x downstream (the residual) take the second result, so
/// that its gradient meets the norm's in one kernel.
std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const at::Tensor& norm_weight, double eps,
                                      const Weight& weight, const std::vector<LoraAdapter>& adapters,
                                      const LoraSettings& lora);

/// residual + linear(x). Keeps x only when a trained weight or an adapter needs it.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& residual, const Weight& weight,
                      const std::vector<LoraAdapter>& adapters, const LoraSettings& lora);

/// h + down(swiglu(gate_up(rms_norm(h)))). Kept: h, and gate_up (in FP8 when the weights are) unless
/// `recompute_gate_up`, which forms it again in backward.
struct MlpWeights {
  at::Tensor norm;
  Weight gate_up, down;
  std::vector<LoraAdapter> gate_up_adapters, down_adapters;
};
at::Tensor mlp_add(const at::Tensor& h, const MlpWeights& weights, double eps, const LoraSettings& lora,
                   bool recompute_gate_up);

}  // namespace trireme
