#pragma once
// What a norm's backward computes for the sub-layer before it.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// Between a sub-layer h = residual + dropout(branch), h [rows, D], and the norm that reads h: ResidualJoin::gradient
/// and Norm::branch. The kernel that computes the gradient of h in the norm's backward also applies the sub-layer's
/// dropout to it and sums the columns of the result. The sub-layer's backward begins with both. One object for each
/// such pair in a forward pass; not with tiles. Norms that do not compute it leave it to the sub-layer.
struct BranchGradient {
  // Set by the sub-layer's forward.
  Dropout dropout{};         // not active: nothing is expected
  int64_t rows = 0;          // of h
  bool column_sums = false;  // whether the branch's bias is trained

  // Set by the norm's backward.
  at::Tensor of;       // the gradient of h [rows, D]
  at::Tensor dropped;  // dropout(of)
  at::Tensor sums;     // [D]: of its columns, if wanted

  bool expected(int64_t num_rows) const { return dropout.active() && rows == num_rows; }
  /// Whether `dropped` was computed of dy. If h has other users than the norm, dy is a sum of their gradients, which
  /// autograd never writes into `of`, because this object shares its storage.
  bool computed_of(const at::Tensor& dy) const {
    return of.defined() && dy.const_data_ptr() == of.const_data_ptr() && dy.sizes() == of.sizes() &&
           dy.strides() == of.strides() && dy.scalar_type() == of.scalar_type();
  }
};

}  // namespace trireme
