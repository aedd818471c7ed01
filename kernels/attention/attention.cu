#include "kernels/attention/attention.h"

#include "kernels/attention/attention_launch.h"
#include "kernels/attention/attention_variants.h"

namespace trireme::kernels {

namespace {

bool valid(const AttentionShape& s, const AttentionDropout& d, const AttentionTile* tiles, int64_t count,
           const int32_t* counters) {
  if (d.threshold >= 128 || (d.threshold > 0 && ((s.d != 64 && !s.causal) || d.sample_ids == nullptr))) return false;
  return tiles != nullptr && counters != nullptr && count > 0 && count * s.q_heads < INT32_MAX / 2;
}

}  // namespace

cudaError_t attention_forward(const AttentionForward& a, cudaStream_t stream) {
  if (const cudaError_t status = check_attention(a.shape); status != cudaSuccess) return status;
  for (const AttentionTensor& t : {a.q, a.k, a.v, a.o})
    if (!valid_tensor(t)) return cudaErrorInvalidValue;
  if (a.lse == nullptr || !valid(a.shape, a.dropout, a.tiles, a.tile_count, a.counters)) return cudaErrorInvalidValue;
  if (a.dropout.threshold > 0 && (a.longest > 0 ? a.longest : a.shape.tokens) > 65536) return cudaErrorInvalidValue;
  return a.shape.d == 128 ? attention_forward_d128(a, stream) : attention_forward_d64(a, stream);
}

int64_t attention_backward_workspace(const AttentionBackward& a) {
  // Per padded row: log-sum-exp, delta and the fp32 sums of dQ. Per block of rows: a turn counter.
  const int64_t row = keeps_sums_on_chip(a) ? 2 : 2 + a.shape.d;
  return a.shape.q_heads * a.block_count * (64 * row + 1) * 4;
}

cudaError_t attention_backward(const AttentionBackward& a, cudaStream_t stream) {
  if (const cudaError_t status = check_attention(a.shape); status != cudaSuccess) return status;
  for (const AttentionTensor& t : {a.q, a.k, a.v, a.o, a.d_o, a.d_q, a.d_k, a.d_v})
    if (!valid_tensor(t)) return cudaErrorInvalidValue;
  if (a.lse == nullptr || a.blocks == nullptr || a.workspace == nullptr || a.block_count <= 0 ||
      a.shape.q_heads > INT16_MAX || a.block_count * a.shape.q_heads > INT32_MAX / 2 ||
      !valid(a.shape, a.dropout, a.tiles, a.tile_count, a.counters))
    return cudaErrorInvalidValue;
  return a.shape.d == 128 ? attention_backward_d128(a, stream) : attention_backward_d64(a, stream);
}

}  // namespace trireme::kernels
