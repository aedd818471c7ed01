#pragma once
// The kernels before and after the backward kernel.

#include "kernels/attention/attention.h"

namespace trireme::kernels::backward {

struct SideArguments {
  const void *o, *d_o;
  void* dq;
  AttentionStrides o_strides, do_strides, dq_strides;
  const float* lse;
  const AttentionBlock* blocks;
  int64_t block_count, padded_rows, tokens;
  int q_heads;
  float scale;
  float *lse2, *delta;  // [q_heads][padded rows]
  int32_t* turns;       // [q_heads][blocks], null unless sums go in key order
  float* dq_sums;       // [q_heads][blocks][d / 64][64 x 64 in fragment order], null when kept on chip
};

/// delta = rowsum(dO o O) and lse log2 e in the padded layout (0 and infinity beyond a sequence), dq_sums = 0, turns = 0.
cudaError_t prepare(const SideArguments& a, int d, Element element, cudaStream_t stream);
/// dq = scale dq_sums.
cudaError_t convert(const SideArguments& a, int d, Element element, cudaStream_t stream);

}  // namespace trireme::kernels::backward
