#pragma once
// Private to ops/: rows of a post-norm block to our CUDA kernels. In a build without CUDA has_kernels()
// is false and nothing here is called.

#include "post_norm_rows.h"

namespace trireme::bridge {

#ifdef TRIREME_WITH_CUDA
rows::PostNormed post_norm_forward(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                                   const LayerNormWeights& norm, const Dropout& dropout, uint64_t stream);
rows::PostNormGradients post_norm_backward(const at::Tensor& dy, const rows::PostNormed& kept, const at::Tensor& gamma,
                                           const Dropout& dropout, uint64_t stream, bool want_bias);
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, GeluForm form);
std::array<at::Tensor, 2> gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                        GeluForm form);
#else
inline rows::PostNormed post_norm_forward(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                          const LayerNormWeights&, const Dropout&, uint64_t) {
  return {};
}
inline rows::PostNormGradients post_norm_backward(const at::Tensor&, const rows::PostNormed&, const at::Tensor&,
                                                  const Dropout&, uint64_t, bool) {
  return {};
}
inline at::Tensor gelu_forward(const at::Tensor&, const at::Tensor&, GeluForm) { return {}; }
inline std::array<at::Tensor, 2> gelu_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, GeluForm) {
  return {};
}
#endif

}  // namespace trireme::bridge
