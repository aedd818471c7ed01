#pragma once
// The backward kernel. A block keeps 128 keys and values; query rows and output gradients of every query head that reads them stream
// by, kRows at a time, so that dK and dV of a key head are finished in registers. Each of the two consumer warpgroups
// owns 64 keys and computes the transposed scores, so that P^T and dS^T leave the softmax in the layout of a register operand.
// dS also goes through shared memory for dQ = dS K, of which each warpgroup computes one 64 x 64 part and adds it to fp32 sums in global memory
// that lie in the order of the fragments: 16 bytes a thread, side by side.
//
// In flight at the same time: the next block's scores, dK and dQ of this one, while the exponentials of the next run.

#include "kernels/attention/attention_backward_parts.cuh"

#include <type_traits>

namespace trireme::kernels::backward {

/// Inside one statement, as barrier_wait.
__device__ inline void wait_for_turn(const int32_t* count, int32_t turn) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .s32 seen;\n"
      "AGAIN:\n"
      "ld.acquire.gpu.global.s32 seen, [%0];\n"
      "setp.eq.s32 p, seen, %1;\n"
      "@p bra DONE;\n"
      "bra AGAIN;\n"
      "DONE:\n}\n" ::"l"(count),
      "r"(turn)
      : "memory");
}

template <class C>
__device__ inline void consume(const Parameters& p, uint32_t shared, const ItemInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  using T = typename C::T;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1), warp = uniform(thread / 32);
  const auto arrive = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  // Where this lane puts rows of dS, [kRows / 64 columns][keys][64 query rows] swizzled: key lane % 16 of its warp's, query chunk lane / 16;
  // the chunk 2 i further is 32 i away by exclusive or.
  const uint32_t ds_key = 64 * group + 16 * warp + lane % 16;
  const uint32_t ds_store = shared + C::kDs + ds_key * 128 + (((lane / 16) ^ (ds_key % 8)) * 16);
  uint32_t step = 0;
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round & 1;
    barrier_wait(barriers.k_full(slot), (round >> 1) & 1);
    // Read where it is needed: registers are scarce.
    const ItemInfo& info = infos[slot];
    if (uniform(info.head) < 0) break;
    const uint32_t k = shared + C::kK + slot * C::kKBytes, v = shared + C::kV;
    const uint32_t my_k = k + group * (64 * 128), my_v = v + group * (64 * 128);
    const int my_first = uniform(info.first) - uniform(info.begin) + 64 * group;  // in the sequence
    // This thread's first key and the length of the sequence; blocks from clear_block on need no mask.
    const int key = my_first + 16 * warp + lane / 4, length = uniform(info.end) - uniform(info.begin);
    const int clear_block = my_first - 64 * group + C::kKeys > length ? INT_MAX : C::kCausal ? (my_first + 63 + C::kRows - 1) / C::kRows : 0;
    const int blocks = uniform(info.blocks), first_block = uniform(info.first_block);

    float dk[C::kDim / 2] = {}, dv[C::kDim / 2] = {}, s[C::kRows / 2];
    int block = first_block, left = (blocks - first_block) * p.group;
    int head = uniform(info.head) * p.group;
    // d 128: this warpgroup's half of d; d 64: its half of the rows.
    constexpr int kBlockSums = C::kRows * C::kDim;
    const auto sums_of_head = [&] {
      return p.dq + ((static_cast<int64_t>(head) * p.padded_rows + info.padded) / C::kRows + first_block) * kBlockSums +
                   group * 4096 + warp * 1024;
    };
    float* dq_to = sums_of_head();
    [[maybe_unused]] const int turn = my_first / C::kKeys;
    AttentionDraws draws;
    if constexpr (C::kDropout) draws = AttentionDraws::of(p.sample_ids[info.sequence], p.t0, p.t1, head);

    // From the raw scores of query block `block` in stage step % kStages to probabilities.
    const auto probabilities = [&](uint32_t at_step) {
      if (block < clear_block) {
        // Query rows below these are masked for the two keys: those before the key when causal, all when it lies behind the sequence.
        const int first_row = block * C::kRows + 2 * (lane % 4);
        const int low0 = (key < length ? (C::kCausal ? key : 0) : INT_MAX) - first_row;
        const int low1 = (key + 8 < length ? (C::kCausal ? key + 8 : 0) : INT_MAX) - first_row;
#pragma unroll
        for (int j = 0; j < C::kRows / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (8 * j + e % 2 < (e < 2 ? low0 : low1)) s[4 * j + e] = -INFINITY;
        }
      }
      const uint32_t lse_at = shared + C::kLse + (at_step % C::kStages) * C::kStatBytes + 8 * (lane % 4);
#pragma unroll
      for (int j = 0; j < C::kRows / 8; ++j) {
        const float2 lse = load_shared_float2(lse_at + 32 * j);
        s[4 * j] = fast_exp2(fmaf(s[4 * j], p.scale_log2, -lse.x));
        s[4 * j + 1] = fast_exp2(fmaf(s[4 * j + 1], p.scale_log2, -lse.y));
        s[4 * j + 2] = fast_exp2(fmaf(s[4 * j + 2], p.scale_log2, -lse.x));
        s[4 * j + 3] = fast_exp2(fmaf(s[4 * j + 3], p.scale_log2, -lse.y));
      }
      pin(s);
    };
    // One query block, from its probabilities in s; with kMore, leaves those of the next there.
    const auto advance = [&]<bool kMore>(std::bool_constant<kMore>) {
      const uint32_t stage = step % C::kStages, parity = (step / C::kStages) & 1;
      const uint32_t next = (step + 1) % C::kStages;
      const uint32_t q_at = shared + C::kQ + stage * C::kQBytes, do_at = shared + C::kDo + stage * C::kQBytes;
      float dp[C::kRows / 2], dq[32];
      uint32_t packed[C::kRows / 4], ds[C::kRows / 4];
      barrier_wait(barriers.do_full(stage), parity);
      mma_fence();
      transposed_product<C>(dp, my_v, do_at);
      mma_commit();
      // Sixteen query rows of P at a time become an operand of dV = P^T dO.
      [[maybe_unused]] const uint32_t draw_column = static_cast<uint32_t>(key), draw_row = block * C::kRows + 2 * (lane % 4);
      const auto pack_rows = [&](int i, uint32_t even, uint32_t odd) {
#pragma unroll
        for (int e = 0; e < 4; ++e) packed[4 * i + e] = pack2<T>(s[8 * i + 2 * e], s[8 * i + 2 * e + 1]);
        if constexpr (C::kDropout) {
          // Transposed: bit 3 of the key selects by two bytes, that of the query row by one.
          packed[4 * i] &= half_masks<0>(even, odd);
          packed[4 * i + 1] &= half_masks<2>(even, odd);
          packed[4 * i + 2] &= half_masks<1>(even, odd);
          packed[4 * i + 3] &= half_masks<3>(even, odd);
        }
      };
      if constexpr (C::kValuesFirst) {
#pragma unroll
        for (int i = 0; i < C::kRows / 16; ++i) pack_rows(i, 0, 0);
        mma_fence();
        add_product<C>(dv, packed, do_at);
        mma_commit();
      }
      mma_wait<0>();
      pin(dp);
      const uint32_t delta_at = shared + C::kDelta + stage * C::kStatBytes + 8 * (lane % 4);
#pragma unroll
      for (int i = 0; i < C::kRows / 16; ++i) {
        [[maybe_unused]] uint32_t even = 0, odd = 0;
        if constexpr (C::kDropout) {
          even = draws.kept(draw_row + 16 * i, draw_column, p.keep_bias);
          odd = draws.kept(draw_row + 16 * i + 1, draw_column, p.keep_bias);
        }
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; ++j) {
          const float2 delta = load_shared_float2(delta_at + 32 * j);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float x = dp[4 * j + e];
            if constexpr (C::kDropout) {
              const uint32_t kept = e % 2 ? odd : even;
              const uint32_t mask = j % 2 == 0 ? (e < 2 ? word_mask<0>(kept) : word_mask<2>(kept))
                                               : (e < 2 ? word_mask<1>(kept) : word_mask<3>(kept));
              x = __uint_as_float(__float_as_uint(x) & mask) * p.keep_scale;
            }
            dp[4 * j + e] = s[4 * j + e] * (x - (e % 2 ? delta.y : delta.x));
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[4 * i + e] = pack2<T>(dp[8 * i + 2 * e], dp[8 * i + 2 * e + 1]);
        if constexpr (!C::kValuesFirst) pack_rows(i, even, odd);
      }
      // One buffer: the other warpgroup's dQ of the step before must have read it.
      if constexpr (C::kSStages == 1) barrier_wait(barriers.ds_empty(), (step & 1) ^ 1);
      const uint32_t ds_at = shared + C::kDs + (step % C::kSStages) * C::kSBytes;
#pragma unroll
      for (int i = 0; i < C::kRows / 16; ++i) {
        store_matrices(((ds_store + (step % C::kSStages) * C::kSBytes) ^ (32 * (i % 4))) + (i / 4) * (C::kKeys * 128), ds[4 * i],
                       ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
      }
      proxy_fence();
      if constexpr (!C::kValuesFirst) {
        mma_fence();
        add_product<C>(dv, packed, do_at);
        mma_commit();
      }
      // The next block's scores go first, then dK; dQ waits for the other warpgroup's half of dS.
      if constexpr (kMore) {
        ++block;
        --left;
        if (block == blocks) {
          block = first_block;
          ++head;
          if constexpr (C::kDropout) draws = AttentionDraws::of(p.sample_ids[info.sequence], p.t0, p.t1, head);
        }
        barrier_wait(barriers.q_full(next), ((step + 1) / C::kStages) & 1);
        mma_fence();
        transposed_product<C>(s, my_k, shared + C::kQ + next * C::kQBytes);
        mma_commit();
      }
      mma_fence();
      add_product<C>(dk, ds, q_at);
      mma_commit();
      // dV is done: its operand's registers make room for dQ.
      mma_wait<kMore ? 2 : 1>();
      arrive(barriers.do_empty(stage));
      named_sync(1, 256);
      mma_fence();
      query_gradient<C>(dq, ds_at + (C::kDim == 128 ? 0 : group * (C::kKeys * 128)),
                        k + (C::kDim == 128 ? group * (C::kKeys * 128) : 0));
      mma_commit();
      if constexpr (kMore) {
        mma_wait<2>();
        pin(s);
        probabilities(step + 1);
        // A branch: the assembler would otherwise move exponentials behind the wait that follows.
        barrier_wait(barriers.q_full(next), ((step + 1) / C::kStages) & 1);
      }
      mma_wait<1>();
      pin(dk);
      arrive(barriers.q_empty(stage));
      mma_wait<0>();
      pin(dv);
      pin(dq);
      if constexpr (C::kSStages == 1) arrive(barriers.ds_empty());
      // Each warp's part of dQ goes out by itself.
      if (lane == 0) add_bytes_read();
      __syncwarp();
      const uint32_t staging = shared + C::kDq + (group * 4 + warp) * 4096;
#pragma unroll
      for (int i = 0; i < 8; ++i) store_shared4(staging + i * 512 + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
      proxy_fence();
      __syncwarp();
      if (lane == 0) {
        // Deterministic: key tiles add in ascending order. A tile waits only for tiles that were handed out before it, so someone always moves on.
        [[maybe_unused]] int32_t* const count = p.turns + (dq_to - p.dq) / 1024;
        if constexpr (C::kDeterministic) wait_for_turn(count, turn);
        add_bytes(dq_to, staging, 4096);
        if constexpr (C::kDeterministic) {
          add_bytes_done();
          asm volatile("fence.proxy.async;" ::: "memory");
          __threadfence();
          atomicAdd(count, 1);
        }
      }
      __syncwarp();
      dq_to = block == first_block ? sums_of_head() : dq_to + kBlockSums;
      ++step;
    };

    barrier_wait(barriers.q_full(step % C::kStages), (step / C::kStages) & 1);
    mma_fence();
    transposed_product<C>(s, my_k, shared + C::kQ + (step % C::kStages) * C::kQBytes);
    mma_commit();
    mma_wait<0>();
    pin(s);
    probabilities(step);
    barrier_wait(barriers.v_full(), round & 1);
#pragma unroll 1
    while (left > 1) advance(std::true_type{});
    advance(std::false_type{});
    // Both warpgroups have read K and V for the last time: they make room for the results.
    named_sync(1, 256);
    const uint32_t staging = (group * 4 + warp) * (16 * C::kDim * 2);
    const int first = info.first + 64 * group + 16 * warp;
    finish<C>(dk, p.scale, k + staging, p.dk, p.dk_token, info.head * p.dk_head, first, info.end);
    finish<C>(dv, C::kDropout ? p.keep_scale : 1.0f, v + staging, p.dv, p.dv_token, info.head * p.dv_head, first, info.end);
    proxy_fence();
    arrive(barriers.k_empty(slot));
    arrive(barriers.v_empty());
  }
  // Shared memory stays until what was asked for has left it.
  if (lane == 0) add_bytes_done();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = hopper::shared_address(memory);
  const Barriers<C> barriers{shared + C::kBarriers};
  auto* infos = reinterpret_cast<ItemInfo*>(memory + C::kInfos);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < 2; ++s) {
      hopper::barrier_init(barriers.k_full(s), 1);
      hopper::barrier_init(barriers.k_empty(s), 8);
    }
    hopper::barrier_init(barriers.v_full(), 1);
    hopper::barrier_init(barriers.v_empty(), 8);
    hopper::barrier_init(barriers.ds_empty(), 8);
    for (uint32_t s = 0; s < C::kStages; ++s) {
      hopper::barrier_init(barriers.q_full(s), 1);
      hopper::barrier_init(barriers.q_empty(s), 8);
    }
    for (uint32_t s = 0; s < C::kStages; ++s) {
      hopper::barrier_init(barriers.do_full(s), 1);
      hopper::barrier_init(barriers.do_empty(s), 8);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  if (hopper::uniform(static_cast<int>(threadIdx.x) / 128) == 0) {
    hopper::registers_give<24>();
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) produce_keys<C>(p, shared, infos, barriers);
      if (warp == 1) produce_rows<C, false>(p, shared, infos, barriers);
      if (warp == 2) produce_rows<C, true>(p, shared, infos, barriers);
    }
  } else {
    hopper::registers_take<240>();
    consume<C>(p, shared, infos, barriers);
  }
}

}  // namespace trireme::kernels::backward
