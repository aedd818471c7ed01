#pragma once
// Linear layers without bias, with LoRA adapters added to rows of a (fused) frozen weight.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// One adapter on rows [row_begin, row_begin + b.size(0)) of the layer's output.
struct LoraAdapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [rows, r]
  int64_t row_begin = 0;
  uint64_t stream = 0;  // of dropout: every adapter drops its own elements of the shared input
};

/// y[.., o] = x W^T, plus scale * dropout(x) A^T B^T on each adapter's rows. x is [B, S, in] (any
/// leading shape when dropout is off), weight [out, in]; all of one dtype.
/// Backward keeps x only when some gradient needs it (a trained weight or an adapter) and the
/// [tokens, r] products; dropout masks are regenerated. A frozen weight gets no gradient. The
/// weight tensors themselves are saved, never copies or views of them.
at::Tensor lora_linear(const at::Tensor& x, const at::Tensor& weight,
                       const std::vector<LoraAdapter>& adapters, double scale,
                       const Dropout& dropout);

/// The plain composition; records autograd. Oracle of the tests.
at::Tensor lora_linear_reference(const at::Tensor& x, const at::Tensor& weight,
                                 const std::vector<LoraAdapter>& adapters, double scale,
                                 const Dropout& dropout);

}  // namespace trireme
