#pragma once
// The kernels that run before and after the backward kernel.

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
  float scale, delta_scale;
  float *lse2, *delta;  // [q_heads][padded rows]
  int32_t* turns;       // [q_heads][blocks]; null with sums on chip
  float* dq_sums;       // [q_heads][blocks][2][64 x d / 2 in fragment order]; null with sums on chip
  bool zero;            // whether prepare() zeroes dq_sums
  bool finished;        // whether dQ of short sequences is written already
};

/// Writes delta = delta_scale rowsum(dO o O) and lse log2 e in the padded layout (beyond a sequence 0 and infinity),
/// turns = 0, and if `zero` is set dq_sums = 0.
cudaError_t prepare(const SideArguments& a, int d, Element element, cudaStream_t stream);
/// dq = scale dq_sums, without the blocks of short sequences if `finished` is set.
cudaError_t convert(const SideArguments& a, int d, Element element, cudaStream_t stream);

}  // namespace trireme::kernels::backward
