#pragma once
// Rows of a frozen matrix that are trained.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// The matrix gets the values of the rows before each use, and their gradient goes to `values`.
struct TrainedRows {
  at::Tensor values{};  // [N, D]; undefined: no rows
  at::Tensor ids{};     // int64 [N], ascending, on the device of the values
  int64_t begin = -1;   // of consecutive rows: the first; -1: they are not

  bool defined() const { return values.defined(); }
  int64_t count() const { return values.size(0); }
  /// Writes the values into `matrix` [V, D], without recording a gradient.
  void put_into(const at::Tensor& matrix) const;
  /// The rows' columns of x [T, V].
  at::Tensor columns_of(const at::Tensor& x_TV) const;
};

}  // namespace trireme
