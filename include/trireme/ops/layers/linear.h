#pragma once
// A linear layer as models describe it: weight, optional bias, optional LoRA adapters. The weight's recipe determines
// the format of its products' operands.

#include "trireme/nn/weight.h"
#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// LoRA (Hu et al. 2021): scale * dropout(x) A^T B^T is added to columns [row_begin, row_begin + b.size(0)) of y, which
/// are those rows of the (fused) weight. Rows outside the weight, or shared by two adapters, are an internal error.
///
/// DoRA (Liu et al. 2024) with a `magnitude` m: with V = W + scale B A, of which row j has the length |v_j|, and the
/// factors g_j = m_j / |v_j|, column j of y is, as in peft,
///
///   without dropout   g_j x v_j^T + bias_j
///   with dropout      x w_j^T + (g_j - 1) dropout(x) w_j^T + g_j scale dropout(x) A^T b_j^T + bias_j
///
/// The gradient takes |v_j| for a constant. All adapters of a layer have a magnitude, or none has.
struct LoraAdapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [rows, r]
  int64_t row_begin = 0;
  uint64_t stream = 0;  // dropout stream: every adapter has its own mask of the shared input
  double scale = 1;
  at::Tensor magnitude{};  // fp32 (fp64 for fp64) [rows]; undefined: no DoRA
};

struct Lora {
  std::vector<LoraAdapter> adapters;
  Dropout dropout;
};

/// Squared lengths of the rows of a weight, fp32 (fp64 for fp64) [out]: of the values that its codes stand for.
at::Tensor row_squares(const Weight& weight);

/// y = x W^T + bias + the adapters' part; x, W and bias of one dtype unless the weight is stored in FP8.
struct Linear {
  Weight weight;
  at::Tensor bias;  // [out]; undefined: none
  Lora lora;
};

}  // namespace trireme
