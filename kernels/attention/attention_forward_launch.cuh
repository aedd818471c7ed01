#pragma once
// Host launch of one configuration of the forward kernel. Each .cu file that includes this instantiates a few.

#include "kernels/attention/attention_forward.cuh"
#include "kernels/attention/attention_launch.h"
#include "kernels/launch.h"

#include <bit>

namespace trireme::kernels::forward {

template <class C>
cudaError_t launch(const AttentionForward& a, int section, cudaStream_t stream) {
  const AttentionShape& s = a.shape;
  Parameters p{};
  p.group = s.q_heads / s.kv_heads;
  // A dropout decision depends on the head, so with dropout a tile has one head only.
  p.pack_shift = C::kDropout ? 0 : std::min(std::countr_zero(static_cast<unsigned>(p.group)), kMaxPackShift);
  if constexpr (C::kCodes) {
    const AttentionCodes codes = attention_codes(a);
    const int64_t rows = 64 * a.block_count;
    p.codes = {codes.q_scales, codes.amax, s.q_heads, p.group};
    for (const cudaError_t status :
         {tensor_map(p.q, codes.q, {C::kDim, s.q_heads, rows}, {C::kDim, 1 << p.pack_shift, 64 >> p.pack_shift}),
          tensor_map(p.k, codes.k, {C::kDim, s.kv_heads, rows}, {C::kDim, 1, C::kKeys}),
          tensor_map(p.v, codes.v, {rows, C::kDim, s.kv_heads}, {C::kKeys, C::kDim, 1})})
      if (status != cudaSuccess) return status;
  } else {
    for (const cudaError_t status :
         {tensor_map(p.q, a.q, s.tokens, s.q_heads, s.d, 64 >> p.pack_shift, s.element, 1 << p.pack_shift),
          tensor_map(p.k, a.k, s.tokens, s.kv_heads, s.d, C::kKeys, s.element),
          tensor_map(p.v, a.v, s.tokens, s.kv_heads, s.d, C::kKeys, s.element)})
      if (status != cudaSuccess) return status;
  }
  for (const cudaError_t status :
       {tensor_map(p.o, a.o, s.tokens, s.q_heads, s.d, 64 >> p.pack_shift, s.element, 1 << p.pack_shift),
        tensor_map(p.o_rows, a.o, s.tokens, s.q_heads, s.d, 16 >> p.pack_shift, s.element, 1 << p.pack_shift)})
    if (status != cudaSuccess) return status;
  p.queue = {a.tiles, a.counters, static_cast<int>(a.tile_count), s.q_heads, section};
  p.out = a.o.data;
  p.lse = a.lse;
  p.o_token = a.o.strides.token;
  p.o_head = a.o.strides.head;
  p.tokens = static_cast<int32_t>(s.tokens);
  p.window = s.window;
  p.scale = s.scale;
  p.scale_log2 = s.scale * kLog2E;
  p.sample_ids = a.dropout.sample_ids;
  p.t0 = a.dropout.t0;
  p.t1 = a.dropout.t1;
  p.head_word = AttentionDraws::head_word(a.dropout.first_head);
  p.keep_bias = (128 - a.dropout.threshold) * 0x01010101u;
  p.keep_scale = 128.0f / static_cast<float>(128 - a.dropout.threshold);
  if (const cudaError_t status = allow_shared_memory(kernel<C>, C::kBytes); status != cudaSuccess) return status;
  const int blocks = std::min(multiprocessors(), p.queue.items());
  return launch_behind(kernel<C>, dim3(static_cast<unsigned>(blocks)), C::kThreads, C::kBytes, stream, p);
}

}  // namespace trireme::kernels::forward
