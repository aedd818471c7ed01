#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_launch.h"

namespace trireme::kernels {

cudaError_t attention_backward_d128(const AttentionBackward& a, cudaStream_t stream) {
  return a.shape.element == Element::kF16 ? backward::pick<__half, 128>(a, stream)
                                          : backward::pick<__nv_bfloat16, 128>(a, stream);
}

}  // namespace trireme::kernels
