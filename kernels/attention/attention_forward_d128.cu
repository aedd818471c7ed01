#include "kernels/attention/attention_forward_launch.cuh"

namespace trireme::kernels::forward {

template <class T>
static cudaError_t launch_d128(const AttentionForward& a, cudaStream_t stream) {
  const int section = section_heads(a.shape);
  if (a.shape.causal) return launch<Config<T, 128, 2, 128, 2, true, false, true>>(a, section, stream);
  return launch<Config<T, 128, 2, 128, 2, false, false, true>>(a, section, stream);
}

cudaError_t attention_forward_d128(const AttentionForward& a, cudaStream_t stream) {
  return a.shape.element == Element::kF16 ? launch_d128<__half>(a, stream) : launch_d128<__nv_bfloat16>(a, stream);
}

}  // namespace trireme::kernels::forward
