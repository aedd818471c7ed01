#pragma once
// Private to ops/: tensors to our CUDA kernels. In a build without CUDA, and on GPUs other than
// sm_90, has_kernels() is false and the LibTorch composition serves.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace trireme::bridge {

#ifdef TRIREME_WITH_CUDA
/// True when x is fp32, fp16 or bf16 on a GPU that our kernels were built for.
bool has_kernels(const at::Tensor& x);
/// A GPU of the kind that our kernels were built for.
bool on_hopper(at::Device device);
/// out = (accumulate ? out : 0) + dropout(x); x and out contiguous [B, S, D].
void dropout(const at::Tensor& x, at::Tensor& out, const at::Tensor& sample_ids,
             const DropoutKey& key, bool accumulate);
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);
/// In place on heads [B, S, heads, H] contiguous; false when the shape does not suit the kernel.
bool rope_rotate(at::Tensor heads, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated);
/// d_qkv [B, S, q + 2 kv, H] from gradients of any strides; undefined when the shape does not suit the kernel.
at::Tensor rope_merge(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                      const at::Tensor& cos, const at::Tensor& sin);
#else
inline bool has_kernels(const at::Tensor&) { return false; }
inline void dropout(const at::Tensor&, at::Tensor&, const at::Tensor&, const DropoutKey&, bool) {}
inline at::Tensor swiglu(const at::Tensor&) { return {}; }
inline at::Tensor swiglu_backward(const at::Tensor&, const at::Tensor&) { return {}; }
inline bool rope_rotate(at::Tensor, const at::Tensor&, const at::Tensor&, int64_t) { return false; }
inline at::Tensor rope_merge(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&) {
  return {};
}
#endif

}  // namespace trireme::bridge
