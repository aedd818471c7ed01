#pragma once
// Whether our CUDA kernels serve a tensor. Where they do not, LibTorch compositions of the same formulas do.

#include <ATen/core/Tensor.h>

namespace trireme::bridge {

#ifdef TRIREME_WITH_CUDA
/// True when x is fp32, fp16 or bf16 on a GPU that our kernels were built for (compute capability 9.0).
bool has_kernels(const at::Tensor& x);
#else
inline bool has_kernels(const at::Tensor&) { return false; }
#endif

}  // namespace trireme::bridge
