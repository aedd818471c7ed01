#pragma once
// Private to ops/: matrices by their rows, and the conditions of the kernels that keep a row on chip.

#include "trireme/ops/dispatch.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// Widest rows of the layer norm and GELU kernels with gradients of vectors, in bytes.
constexpr int64_t kWidestLayerNormBytes = 16384, kWidestGeluBytes = 32768;
/// Widest rows of the RMS norm kernels, in elements.
constexpr int64_t kWidestNormRow = 16384;

/// The type in which norms compute.
inline at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline Choice row_kernel_choice(std::string_view operation, const at::Tensor& x, int64_t widest_bytes) {
  return Dispatch(operation, x)
      .needs(x.is_contiguous(), "the rows are not contiguous")
      .needs(x.size(-1) * x.element_size() <= widest_bytes, "the rows are wider than the kernel's registers")
      .needs(x.size(0) > 0, "there are no rows")
      .choice();
}

/// [..., n] as [rows, n].
inline at::Tensor flatten_tokens(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace trireme
