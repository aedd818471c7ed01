#include "kernels/attention/attention_forward_launch.cuh"
#include "kernels/attention/attention_launch.h"

namespace trireme::kernels {

namespace {

template <class T>
cudaError_t pick(const AttentionForward& a, cudaStream_t stream) {
  using forward::Config;
  const int section = section_heads(a.shape, a.shape.tokens);
  if (a.workspace != nullptr) {
    if (const cudaError_t status = make_attention_codes(a, stream); status != cudaSuccess) return status;
    return a.shape.causal
               ? forward::launch<Config<T, 128, 2, 128, 2, 4, true, false, false, true>>(a, section, stream)
               : forward::launch<Config<T, 128, 2, 128, 2, 4, false, false, false, true>>(a, section, stream);
  }
  if (a.shape.window > 0) return forward::launch<Config<T, 128, 3, 64, 2, 4, true, false, true>>(a, section, stream);
  if (a.dropout.threshold > 0) return forward::launch<Config<T, 128, 3, 64, 2, 4, true, true>>(a, section, stream);
  return a.shape.causal ? forward::launch<Config<T, 128, 3, 64, 2, 4, true, false>>(a, section, stream)
                        : forward::launch<Config<T, 128, 3, 64, 2, 4, false, false>>(a, section, stream);
}

}  // namespace

cudaError_t attention_forward_d128(const AttentionForward& a, cudaStream_t stream) {
  return a.shape.element == Element::kF16 ? pick<__half>(a, stream) : pick<__nv_bfloat16>(a, stream);
}

}  // namespace trireme::kernels
