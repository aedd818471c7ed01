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
  float scale, delta_scale;
  float *lse2, *delta;  // [q_heads][padded rows]
  int32_t* turns;       // [q_heads][blocks], null when sums are kept on chip
  float* dq_sums;       // [q_heads][blocks][2][64 x d / 2 in fragment order], null when kept on chip
  bool zero;            // them
  bool finished;        // dQ of short sequences is there already
};

/// delta = delta_scale rowsum(dO o O) and lse log2 e in the padded layout (0 and infinity beyond a sequence), turns =
/// 0; sums = 0 if asked for.
cudaError_t prepare(const SideArguments& a, int d, Element element, cudaStream_t stream);
/// dq = scale dq_sums.
cudaError_t convert(const SideArguments& a, int d, Element element, cudaStream_t stream);

}  // namespace trireme::kernels::backward
