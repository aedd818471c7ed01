#pragma once
// x W^T with adapters as a plain composition that records autograd: the oracle of the layers' tests.

#include "trireme/ops/block_layers.h"

#include <ATen/ATen.h>

namespace trireme::testing {

inline at::Tensor lora_linear_reference(const at::Tensor& x, const at::Tensor& weight,
                                        const std::vector<LoraAdapter>& adapters, const LoraSettings& lora) {
  at::Tensor y = at::linear(x, weight);
  for (const LoraAdapter& adapter : adapters) {
    at::Tensor input = x;
    if (lora.dropout.active()) input = x * apply_dropout(at::ones_like(x), lora.dropout, adapter.stream);
    const at::Tensor update = at::linear(at::linear(input, adapter.a), adapter.b) * lora.scale;
    const int64_t after = weight.size(0) - adapter.row_begin - adapter.b.size(0);
    y = y + at::constant_pad_nd(update, {adapter.row_begin, after});
  }
  return y;
}

}  // namespace trireme::testing
