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
struct LoraAdapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [rows, r]
  int64_t row_begin = 0;
  uint64_t stream = 0;  // dropout stream: every adapter has its own mask of the shared input
};

struct Lora {
  std::vector<LoraAdapter> adapters;
  double scale = 0;
  Dropout dropout;
};

/// y = x W^T + bias + the adapters' part; x, W and bias of one dtype unless the weight is stored in FP8.
struct Linear {
  Weight weight;
  at::Tensor bias;  // [out]; undefined: none
  Lora lora;
};

}  // namespace trireme
