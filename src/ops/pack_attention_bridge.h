#pragma once
// Private to ops/: attention over packs by our Hopper kernels. In a build without CUDA serves_pack_attention() is false and nothing
// else here is called.

#include "trireme/ops/pack_attention.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace trireme::bridge {

/// Whether the kernels take qkv [T, 3, N, H] of this type, head size and dropout.
#ifdef TRIREME_WITH_CUDA
bool serves_pack_attention(const at::Tensor& qkv_T3NH, const Dropout& dropout);
/// {result [T, N, H], log-sum-exp fp32 [N, T]}.
std::array<at::Tensor, 2> pack_attention(const at::Tensor& qkv_T3NH, const PackLayout& layout, double scale, const Dropout& dropout,
                                         uint64_t stream);
/// d_qkv [T, 3, N, H].
at::Tensor pack_attention_backward(const at::Tensor& dy_TNH, const at::Tensor& qkv_T3NH, const at::Tensor& out_TNH,
                                   const at::Tensor& lse_NT, const PackLayout& layout, double scale, const Dropout& dropout,
                                   uint64_t stream);
#else
inline bool serves_pack_attention(const at::Tensor&, const Dropout&) { return false; }
inline std::array<at::Tensor, 2> pack_attention(const at::Tensor&, const PackLayout&, double, const Dropout&, uint64_t) { return {}; }
inline at::Tensor pack_attention_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const PackLayout&,
                                          double, const Dropout&, uint64_t) {
  return {};
}
#endif

}  // namespace trireme::bridge
