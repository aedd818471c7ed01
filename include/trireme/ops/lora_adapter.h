#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// One adapter on rows [row_begin, row_begin + b.size(0)) of a (fused) layer's output: scale * dropout(x) A^T B^T is
/// added there.
struct LoraAdapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [rows, r]
  int64_t row_begin = 0;
  uint64_t stream = 0;  // of dropout: every adapter drops its own elements of the shared input
};

}  // namespace trireme
