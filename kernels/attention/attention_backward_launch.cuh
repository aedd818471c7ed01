#pragma once
// The backward kernel, which assigns the roles of producer and consumer to warpgroups, and the launch of one of its
// configurations with the kernels before and after it.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_backward_produce.cuh"
#include "kernels/attention/attention_backward_query.cuh"
#include "kernels/attention/attention_launch.h"
#include "kernels/launch.h"

#include <type_traits>

namespace trireme::kernels::backward {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = hopper::shared_address(memory);
  const Barriers<C> barriers{shared + C::kBarriers};
  auto* infos = reinterpret_cast<ItemInfo*>(memory + C::kInfos);
  auto* steps = reinterpret_cast<StepInfo*>(memory + C::kSteps);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  const int group = hopper::uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    hopper::registers_give<C::kProducerRegisters>();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x % 32 == 0) {
      if (warp == 0)
        produce_keys<C>(p, shared, infos, barriers);
      else if (warp == 1)
        produce_rows<C, false>(p, shared, infos, steps, barriers);
      else if (warp == 2)
        produce_rows<C, true>(p, shared, infos, steps, barriers);
      else if constexpr (!C::kOnChip)
        produce_sums<C>(p, shared, infos, barriers);
    }
  } else if (C::kOnChip && group == 3) {
    if constexpr (C::kOnChip) {
      hopper::registers_give<C::kQueryRegisters>();
      sum_query_gradients<C>(p, shared, infos, barriers);
    }
  } else {
    hopper::registers_take<C::kKeyRegisters>();
    consume<C>(p, shared, infos, steps, barriers);
  }
}

template <class C>
cudaError_t launch(const AttentionBackward& a, cudaStream_t stream) {
  const AttentionShape& s = a.shape;
  Parameters p{};
  for (const cudaError_t status : {tensor_map(p.q, a.q, s.tokens, s.q_heads, s.d, C::kRows, s.element),
                                   tensor_map(p.d_o, a.d_o, s.tokens, s.q_heads, s.d, C::kRows, s.element),
                                   tensor_map(p.k, a.k, s.tokens, s.kv_heads, s.d, C::kKeys, s.element),
                                   tensor_map(p.v, a.v, s.tokens, s.kv_heads, s.d, C::kKeys, s.element)})
    if (status != cudaSuccess) return status;
  const int64_t padded = a.block_count * 64;
  auto* lse2 = static_cast<float*>(a.workspace);
  float *delta = lse2 + s.q_heads * padded, *dq_sums = C::kOnChip ? nullptr : delta + s.q_heads * padded;
  auto* turns = C::kOnChip ? nullptr : reinterpret_cast<int32_t*>(dq_sums + s.q_heads * padded * s.d);
  // With shared keys, the key tiles of a head group visit a block of query rows one after the other, so the first one
  // can store and the others add. Without shared keys, all key tiles visit the rows at the same time: waiting for the
  // first store costs more than zeroing the sums beforehand.
  const bool zeroed = C::kSums == Sums::kAnyOrder && s.q_heads == s.kv_heads;
  const float keep_scale = 128.0f / static_cast<float>(128 - a.dropout.threshold);
  const SideArguments side{
      a.o.data, a.d_o.data,    a.d_q.data, a.o.strides, a.d_o.strides, a.d_q.strides,        a.lse,
      a.blocks, a.block_count, padded,     s.tokens,    s.q_heads,     s.scale * keep_scale, 1 / keep_scale,
      lse2,     delta,         turns,      dq_sums,     zeroed,        C::kFinishes};
  if (const cudaError_t status = prepare(side, s.d, s.element, stream); status != cudaSuccess) return status;

  const int processors = multiprocessors();
  p.queue = {C::kOnChip ? a.sequences : a.tiles, a.counters,
             static_cast<int>(C::kOnChip ? a.sequence_count : a.tile_count), s.kv_heads, processors};
  p.lse2 = lse2;
  p.delta = delta;
  p.dq_sums = dq_sums;
  p.turns = turns;
  p.zeroed = zeroed;
  p.dq = a.d_q.data;
  p.dq_token = a.d_q.strides.token;
  p.dq_head = a.d_q.strides.head;
  p.dk = a.d_k.data;
  p.dv = a.d_v.data;
  p.dk_token = a.d_k.strides.token;
  p.dk_head = a.d_k.strides.head;
  p.dv_token = a.d_v.strides.token;
  p.dv_head = a.d_v.strides.head;
  p.padded_rows = padded;
  p.row_blocks = static_cast<int>(padded / C::kRows);
  p.group = s.q_heads / s.kv_heads;
  p.window = s.window;
  p.scale = s.scale * keep_scale;
  p.scale_log2 = s.scale * kLog2E;
  p.sample_ids = a.dropout.sample_ids;
  p.t0 = a.dropout.t0;
  p.t1 = a.dropout.t1;
  p.head_word = AttentionDraws::head_word(a.dropout.first_head);
  p.keep_bias = (128 - a.dropout.threshold) * 0x01010101u;
  p.keep_scale = keep_scale;
  if (const cudaError_t status = allow_shared_memory(kernel<C>, C::kBytes); status != cudaSuccess) return status;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(processors, p.queue.items()));
  // Starts while the last blocks of prepare() still run: the kernel reads only sums and statistics from it.
  if (const cudaError_t status = launch_behind(kernel<C>, grid, C::kThreads, C::kBytes, stream, p);
      status != cudaSuccess)
    return status;
  const bool done = C::kOnChip || (C::kFinishes && a.short_blocks == a.block_count);
  return done ? cudaSuccess : convert(side, s.d, s.element, stream);
}

/// The variant for short sequences is used if at least one query block in kBlocksPerShort belongs to one.
constexpr int64_t kBlocksPerShort = 8;

/// Launches the configuration for this head size and element type that the arguments select.
template <class T, int kDim>
cudaError_t pick(const AttentionBackward& a, cudaStream_t stream) {
  if (a.shape.window > 0)
    return a.deterministic ? launch<Config<T, kDim, true, false, Sums::kFixedOrder, false, true>>(a, stream)
                           : launch<Config<T, kDim, true, false, Sums::kAnyOrder, false, true>>(a, stream);
  const auto by_sums = [&]<bool kCausal, bool kDropout>(std::bool_constant<kCausal>, std::bool_constant<kDropout>) {
    if constexpr (kDim == 64 && !(kCausal && kDropout))
      if (keeps_sums_on_chip(a)) return launch<Config<T, kDim, kCausal, kDropout, Sums::kOnChip>>(a, stream);
    // With dropout the kFinishes variant would spill registers.
    if constexpr (kCausal && !kDropout)
      if (!a.deterministic && a.short_blocks * kBlocksPerShort >= a.block_count)
        return launch<Config<T, kDim, kCausal, kDropout, Sums::kAnyOrder, true>>(a, stream);
    // Heads of 64 that share no keys need no zeros with the fixed order, which takes as long otherwise.
    const bool narrow = kDim == 64 && kCausal && kDropout && a.shape.q_heads == a.shape.kv_heads;
    return a.deterministic || (narrow && a.short_blocks == 0)
               ? launch<Config<T, kDim, kCausal, kDropout, Sums::kFixedOrder>>(a, stream)
               : launch<Config<T, kDim, kCausal, kDropout, Sums::kAnyOrder>>(a, stream);
  };
  if (a.dropout.threshold > 0) {
    if constexpr (kDim == 64)
      if (!a.shape.causal) return by_sums(std::false_type{}, std::true_type{});
    return by_sums(std::true_type{}, std::true_type{});
  }
  return a.shape.causal ? by_sums(std::true_type{}, std::false_type{}) : by_sums(std::false_type{}, std::false_type{});
}

}  // namespace trireme::kernels::backward
