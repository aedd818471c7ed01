#pragma once
// A linear layer as models describe it: weight, optional bias, optional LoRA adapters. How its products take their
// operands is the weight's recipe.

#include "trireme/nn/weight.h"
#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// scale * dropout(x) A^T B^T is added to rows [row_begin, row_begin + b.size(0)) of a (fused) layer's output.
struct LoraAdapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [rows, r]
  int64_t row_begin = 0;
  uint64_t stream = 0;  // of dropout: every adapter drops its own elements of the shared input
};

struct Lora {
  std::vector<LoraAdapter> adapters;
  double scale = 0;
  Dropout dropout;
};

/// y = x W^T + bias + what adapters add.
struct Linear {
  Weight weight;
  at::Tensor bias;  // [out]; undefined: none
  Lora lora;
};

}  // namespace trireme
