#include "kernels/attention/attention_forward_launch.cuh"
#include "kernels/attention/attention_variants.h"

namespace trireme::kernels {

namespace {

template <class T>
cudaError_t pick(const AttentionForward& a, cudaStream_t stream) {
  using forward::Config;
  const int section = section_heads(a.shape, a.shape.tokens);
  // Half the keys of a short sequence's last block of 128 lie behind the mask.
  if (a.shape.causal && a.longest > 0 && a.longest <= 1024)
    return forward::launch<Config<T, 128, 2, 64, 4, true, false, true>>(a, section, stream);
  return a.shape.causal ? forward::launch<Config<T, 128, 2, 128, 2, true, false, true>>(a, section, stream)
                        : forward::launch<Config<T, 128, 2, 128, 2, false, false, true>>(a, section, stream);
}

}  // namespace

cudaError_t attention_forward_d128(const AttentionForward& a, cudaStream_t stream) {
  return a.shape.element == Element::kF16 ? pick<__half>(a, stream) : pick<__nv_bfloat16>(a, stream);
}

}  // namespace trireme::kernels
