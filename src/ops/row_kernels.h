#pragma once
// Private to ops/: what the kernels that keep a row on chip ask for.

#include "trireme/ops/dispatch.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// Layer norm and GELU: the widest rows that their kernels take with gradients of vectors.
constexpr int64_t kWidestRowBytes = 16384;
/// RMS norm: in elements.
constexpr int64_t kWidestNormRow = 16384;

/// What norms compute in.
inline at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline Choice row_kernel_choice(std::string_view operation, const at::Tensor& x) {
  return Dispatch(operation, x)
      .needs(x.is_contiguous(), "rows do not lie one after the other")
      .needs(x.size(-1) * x.element_size() <= kWidestRowBytes, "rows are wider than 16,384 bytes")
      .needs(x.size(0) > 0, "there are no rows")
      .choice();
}

}  // namespace trireme
