#pragma once
// The launchers by head size, each in a file of its own so that they compile in parallel.

#include "kernels/attention/attention.h"

namespace trireme::kernels {

cudaError_t attention_forward_d64(const AttentionForward& a, cudaStream_t stream);
cudaError_t attention_forward_d128(const AttentionForward& a, cudaStream_t stream);
cudaError_t attention_backward_d64(const AttentionBackward& a, cudaStream_t stream);
cudaError_t attention_backward_d128(const AttentionBackward& a, cudaStream_t stream);

}  // namespace trireme::kernels
