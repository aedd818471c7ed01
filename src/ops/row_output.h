#pragma once
// Private to ops/: FP8 rows as kernel outputs.

#include "kernels/fp8/fp8.h"
#include "matmul/operand.h"

#include <ATen/ATen.h>

namespace trireme::launch {

inline uint8_t* bytes(const at::Tensor& x) { return static_cast<uint8_t*>(x.mutable_data_ptr()); }
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

/// Allocates FP8 rows [rows, columns] on x's device.
inline Fp8Rows empty_rows(const at::Tensor& x, int64_t rows, int64_t columns, int64_t groups) {
  return {at::empty({rows, columns}, x.options().dtype(at::kFloat8_e4m3fn)),
          at::empty({rows, groups}, x.options().dtype(at::kFloat))};
}

inline kernels::Fp8Output row_output(const Fp8Rows& rows) {
  kernels::Fp8Output out;
  out.data = bytes(rows.data);
  out.row_inverse = rows.inverse_scale.mutable_data_ptr<float>();
  return out;
}

}  // namespace trireme::launch
