#include "kernels/attention/attention_forward_launch.cuh"
#include "kernels/attention/attention_launch.h"

namespace trireme::kernels {

namespace {

template <class T>
cudaError_t pick(const AttentionForward& a, cudaStream_t stream) {
  using forward::Config;
  // Without a mask the tiles of a sequence are consecutive, so few sequences are in work at a time. With a mask the
  // last tiles of all sequences come first.
  const int64_t tokens = a.shape.causal || a.longest == 0 ? a.shape.tokens : std::min(a.shape.tokens, 8 * a.longest);
  const int section = section_heads(a.shape, tokens);
  if (a.shape.window > 0) return forward::launch<Config<T, 64, 3, 128, 2, 4, true, false, true>>(a, section, stream);
  if (a.dropout.threshold > 0)
    return a.shape.causal ? forward::launch<Config<T, 64, 3, 128, 2, 4, true, true>>(a, section, stream)
                          : forward::launch<Config<T, 64, 4, 64, 3, 6, false, true>>(a, section, stream);
  return a.shape.causal ? forward::launch<Config<T, 64, 3, 128, 2, 4, true, false>>(a, section, stream)
                        : forward::launch<Config<T, 64, 4, 64, 3, 6, false, false>>(a, section, stream);
}

}  // namespace

cudaError_t attention_forward_d64(const AttentionForward& a, cudaStream_t stream) {
  return a.shape.element == Element::kF16 ? pick<__half>(a, stream) : pick<__nv_bfloat16>(a, stream);
}

}  // namespace trireme::kernels
