#pragma once
// Private to the CUDA half of ops/: what every bridge from tensors to kernels needs.

#include "kernels/element.h"
#include "trireme/base/error.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

namespace trireme::bridge {

/// fp32, fp16 or bf16; others are an internal error.
inline kernels::Element element(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat: return kernels::Element::kF32;
    case at::kHalf: return kernels::Element::kF16;
    case at::kBFloat16: return kernels::Element::kBF16;
    default:
      TRIREME_CHECK(false, "no kernel for ", c10::toString(x.scalar_type()));
      return kernels::Element::kF32;
  }
}

inline void launched(cudaError_t status, const char* kernel) {
  TRIREME_CHECK(status == cudaSuccess, "kernel ", kernel, ": ", cudaGetErrorString(status));
}

inline cudaStream_t stream_of(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index());
}

}  // namespace trireme::bridge
