#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_variants.h"

namespace trireme::kernels {

namespace {

template <class T, bool kDeterministic>
cudaError_t pick(const AttentionBackward& a, cudaStream_t stream) {
  using backward::Config;
  return a.shape.causal ? backward::launch<Config<T, 128, true, false, kDeterministic>>(a, a.shape.kv_heads, stream)
                        : backward::launch<Config<T, 128, false, false, kDeterministic>>(a, a.shape.kv_heads, stream);
}

}  // namespace

cudaError_t attention_backward_d128(const AttentionBackward& a, cudaStream_t stream) {
  if (a.shape.element == Element::kF16) return a.deterministic ? pick<__half, true>(a, stream) : pick<__half, false>(a, stream);
  return a.deterministic ? pick<__nv_bfloat16, true>(a, stream) : pick<__nv_bfloat16, false>(a, stream);
}

}  // namespace trireme::kernels
