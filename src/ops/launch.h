#pragma once
// Private to ops/: shared by the launches of our kernels.

#include "kernels/element.h"
#include "kernels/fp8/fp8.h"
#include "matmul/operand.h"
#include "trireme/base/error.h"
#include "trireme/ops/device.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <vector>

namespace trireme::launch {

/// The kernels' element type: fp32, fp16 or bf16; any other dtype is an internal error.
inline kernels::Element element(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return kernels::Element::kF32;
    case at::kHalf: return kernels::Element::kF16;
    case at::kBFloat16: return kernels::Element::kBF16;
    default: TRIREME_CHECK(false, "no kernel for ", c10::toString(x.scalar_type())); return kernels::Element::kF32;
  }
}

inline void launched(cudaError_t status, const char* kernel) {
  TRIREME_CHECK(status == cudaSuccess, "kernel ", kernel, ": ", cudaGetErrorString(status));
}

inline cudaStream_t stream_of(const at::Tensor& x) { return c10::cuda::getCurrentCUDAStream(x.device().index()); }

/// Copies `values` to a GPU as bytes.
template <class T>
at::Tensor to_device(const std::vector<T>& values, at::Device device) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  const at::Tensor host = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  if (bytes > 0) std::memcpy(host.mutable_data_ptr(), values.data(), static_cast<size_t>(bytes));
  return copy_to_device(host, device);
}

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

/// Allocates the wanted forms of a kernel's result [rows, columns], in x's dtype, and gives the kernel their places.
inline void allocate_forms(Operand& result, const at::Tensor& x, int64_t rows, int64_t columns, bool want_plain,
                           bool want_rows, void*& plain, kernels::Fp8Output& fp8) {
  if (want_plain) {
    result.plain = at::empty({rows, columns}, x.options());
    plain = result.plain.mutable_data_ptr();
  }
  if (want_rows) {
    result.rows = empty_rows(x, rows, columns, 1);
    fp8 = row_output(result.rows);
  }
}

/// Runs launch(maxima), which starts a kernel over a plain matrix [rows, columns] of x's dtype, with the maxima that
/// wanted forms are made of. Returns those that the kernel finds.
template <class Launch>
KnownMaxima launch_with_maxima(const at::Tensor& x, int64_t rows, int64_t columns, const OperandForms& wanted,
                               const char* kernel, const Launch& launch) {
  kernels::FoundMaxima found;
  kernels::WantedMaxima maxima{nullptr, nullptr, &found};
  KnownMaxima known;
  if (wanted.current != CurrentCodes::kNone) {
    known.amax = at::empty({1}, x.options().dtype(at::kFloat));
    maxima.amax = known.amax.mutable_data_ptr<float>();
  }
  if (wanted.columns) {
    known.columns = at::empty({kernels::column_maxima_rows(rows, columns), columns}, x.options());
    maxima.columns = known.columns.mutable_data_ptr();
  }
  launched(launch(maxima), kernel);
  if (!found.amax) known.amax = at::Tensor();
  known.columns = found.column_rows > 0 ? known.columns.narrow(0, 0, found.column_rows) : at::Tensor();
  return known;
}

}  // namespace trireme::launch
