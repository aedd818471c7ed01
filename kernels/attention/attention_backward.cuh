#pragma once
// The consumer warpgroups of the backward kernel. A block keeps 128 keys and values in shared memory and streams the
// query rows and output gradients of every query head that reads them, kRows at a time, so that dK and dV of a key head
// are summed in registers. Each of the two consumer warpgroups owns 64 keys and computes the transposed scores, so that
// P^T and dS^T come out of the softmax in the layout of a register operand. dS also goes through shared memory for dQ =
// dS K. Each warpgroup computes one 64 x d / 2 part of dQ; where the sums of dQ stay on chip a third warpgroup computes
// all of it (see enum Sums). Sums in global memory are stored in fragment order.
//
// Overlap: the products for the next scores, for dK, and for dQ of the previous step run while the next step's
// exponentials are computed; part of dV runs while dS is computed. dQ is computed one step late, or by the third
// warpgroup, so that neither consumer warpgroup waits for the other's half of dS. The two warpgroups can then drift
// apart, and one's products overlap with the other's arithmetic.

#include "kernels/attention/attention_backward_rows.cuh"
#include "kernels/attention/attention_backward_scores.cuh"

namespace trireme::kernels::backward {

template <class C>
__device__ inline void consume(const Parameters& p, uint32_t shared, const ItemInfo* infos, const StepInfo* steps,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1), warp = uniform(thread / 32);
  const auto arrive = [&](uint32_t barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };
  const int warp_key = 64 * group + 16 * warp;
  // Where this lane stores rows of dS, [keys][64 query rows] swizzled: key lane % 16 of its warp's keys, query chunk
  // lane / 16. The address of the chunk 2 i further is this one xor 32 i.
  const auto ds_store = [&] {
    const uint32_t here = C::kFinishes ? lane_again() : lane, key = warp_key + here % 16;
    return shared + C::kDs + key * 128 + (((here / 16) ^ (key % 8)) * 16);
  };
  const auto k_of = [&](uint32_t round) { return shared + C::kK + (round & 1) * C::kKBytes; };

  // To save registers, the description of a step is read from shared memory at each use.
  uint32_t step = 0, round = 0;
  const auto step_info = [&](uint32_t at_step) -> const StepInfo& { return steps[at_step % C::kStepSlots]; };
  const auto tile_info = [&](uint32_t of_round) -> const ItemInfo& { return infos[of_round % C::kInfoSlots]; };
  const auto wait_for_q = [&](uint32_t at_step) {
    barrier_wait(barriers.q_full(at_step % C::kStages), (at_step / C::kStages) & 1);
  };
  const auto wait_for_k = [&] { barrier_wait(barriers.k_full(round & 1), (round >> 1) & 1); };
  AttentionDraws draws;
  const auto draw = [&](uint32_t at_step) {
    if constexpr (C::kDropout)
      draws =
          AttentionDraws::of(p.sample_ids[tile_info(round).sequence], p.t0, p.t1, step_info(at_step).head, p.head_word);
  };

  float dk[C::kDim / 2], dv[C::kDim / 2], s[C::kRows / 2];
  const auto scores = [&](uint32_t at_step, uint32_t k) {
    mma_fence();
    transposed_product<C>(s, k + group * (64 * 128), shared + C::kQ + (at_step % C::kStages) * C::kQBytes);
    mma_commit();
  };
  const auto lse_of = [&](uint32_t at_step) {
    return shared + C::kLse + (at_step % C::kStages) * C::kStatBytes + 8 * (lane % 4);
  };
  const auto rows_of = [&](uint32_t at_step) {
    const ItemInfo& info = tile_info(round);
    Rows<C> rows;
    rows.first = info.first - info.begin;
    rows.length = info.end - info.begin;
    rows.first_row = step_info(at_step).block * C::kRows;
    rows.masked =
        uniform(rows.first + C::kKeys > rows.length || (C::kCausal && rows.first_row < rows.first + 64 * group + 63) ||
                (C::kWindow && rows.first_row + C::kRows > rows.first + 64 * group + p.window));
    if constexpr (!C::kWide) load_statistics(rows.lse, lse_of(at_step));
    return rows;
  };
  const auto to_probabilities = [&](uint32_t at_step, const Rows<C>& rows) {
    if (rows.masked)
      mask_scores<C>(s, rows.first + warp_key + lane / 4, rows.first_row + 2 * (lane % 4), rows.length, p.window);
    probabilities<C>(s, rows.lse, lse_of(at_step), p.scale_log2);
  };

  // Starts the product for dQ of a step. The step belongs to the key tile of round `of_round`.
  const auto dq_product = [&](float (&dq)[C::kDqValues], uint32_t of_step, uint32_t of_round) {
    const uint32_t buffer = of_step & 1;
    barrier_wait(barriers.ds_full(buffer), (of_step >> 1) & 1);
    proxy_fence();
    mma_fence();
    query_gradient<C>(dq, shared + C::kDs + buffer * C::kSBytes,
                      k_of(of_round) + group * (C::kDim == 128 ? C::kKeys * 128 : 64));
    mma_commit();
  };
  const auto leave_dq = [&](float (&dq)[C::kDqValues], uint32_t of_step, uint32_t of_round) {
    leave_query_gradient<C>(p, shared, barriers, tile_info(of_round), step_info(of_step), of_step, group, warp, lane,
                            dq);
  };

  // Runs before dS of `step` is written to its buffer: dK and dV are staged in this warp's rows of that buffer.
  const auto leave_gradients = [&](uint32_t of_round) {
    const uint32_t buffer = step & 1;
    if constexpr (C::kDim == 64) barrier_wait(barriers.ds_empty(buffer), ((step >> 1) & 1) ^ 1);
    store_gradients<C>(p, tile_info(of_round), warp_key, shared + C::kDs + buffer * C::kSBytes + warp_key * 128, dk,
                       dv);
  };

  // `fresh`: first step of a key tile, with dK and dV of the previous tile still in registers. `ends`: whether `step`
  // is the last of its tile. With sums on chip it is read one step ahead; otherwise no register is free to keep it, and
  // it is read in the middle of the step, because at the head of the step nothing would hide its latency.
  bool fresh = true, more = true;
  [[maybe_unused]] bool ends = false;
  const auto ends_tile = [&](uint32_t at_step) -> bool { return uniform(step_info(at_step).last); };
  const auto another_tile = [&] {
    barrier_wait(barriers.info_full((round + 1) % C::kInfoSlots), ((round + 1) / C::kInfoSlots) & 1);
    return uniform(tile_info(round + 1).head) >= 0;
  };
  // One query block. Expects its probabilities in s; on return s holds those of the next step, which may belong to the
  // next key tile.
  const auto advance = [&] {
    const uint32_t stage = step % C::kStages, do_stage = step % C::kDoStages,
                   do_at = shared + C::kDo + do_stage * C::kQBytes;
    const uint32_t buffer = step & 1, old_round = fresh ? round - 1 : round;
    const bool first = fresh;
    fresh = false;
    float dp[C::kRows / 2];
    [[maybe_unused]] float dq[C::kDqValues];
    uint32_t packed[C::kRows / 4], ds[C::kRows / 4];
    if (!C::kKeysFirst && first && round > 0) {
      // All products are complete before this branch reads the accumulators: ptxas serialises every wgmma of the kernel
      // if a branch reads accumulators while products are in flight.
      mma_wait<0>();
      pin(dk);
      pin(dv);
      leave_gradients(old_round);
    }
    barrier_wait(barriers.v_full(), round & 1);
    barrier_wait(barriers.do_full(do_stage), (step / C::kDoStages) & 1);
    mma_fence();
    transposed_product<C>(dp, shared + C::kV + group * (64 * 128), do_at);
    mma_commit();
    if constexpr (!C::kKeysFirst) {
      mma_wait<1>();
      pin(dk);
      if (step > 0) barrier_arrive(barriers.q_empty((step - 1) % C::kStages));
    } else {
      if (first && round > 0) leave_gradients(old_round);
    }

    [[maybe_unused]] Kept<C> kept;
    if constexpr (C::kDropout) {
      const uint32_t column = tile_info(round).first - tile_info(round).begin + warp_key + lane / 4;
      kept.draw(draws, step_info(step).block * C::kRows + 2 * (lane % 4), column, p.keep_bias);
    }
    pack_probabilities<C>(packed, s, kept);
    mma_fence();
    add_product<C, C::kValuesHeld>(dv, packed, do_at, !first, [] { mma_commit(); });
    mma_commit();
    const uint32_t delta_at = shared + C::kDelta + do_stage * C::kStatBytes + 8 * (lane % 4);
    float2 deltas[C::kDeltasHeld];
    load_statistics(deltas, delta_at);
    const bool last = C::kOnChip ? ends : ends_tile(step);
    mma_wait<1>();
    pin(dp);
    if (last) {
      arrive(barriers.v_empty());
      more = another_tile();
    }

    score_gradients<C>(ds, dp, s, deltas, delta_at, kept);

    // Without a next block the current scores are computed again and not used, so that all steps run the same code.
    const uint32_t next = more ? step + 1 : step;
    if (last && more) {
      ++round;
      fresh = true;
      wait_for_k();
    }
    wait_for_q(next);
    if constexpr (C::kOnChip) ends = ends_tile(next);
    if (!C::kOnChip && (last || p.group > 1)) draw(next);
    scores(next, k_of(round));
    const auto leave_ds = [&] {
      // All dQ products of two steps earlier must have read this buffer.
      barrier_wait(barriers.ds_empty(buffer), ((step >> 1) & 1) ^ 1);
      const uint32_t to = ds_store() + buffer * C::kSBytes;
#pragma unroll
      for (int i = 0; i < C::kRows / 16; ++i)
        store_matrices(to ^ (32 * i), ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
      // The reader executes the proxy fence: here every warp would wait for its own stores.
      arrive(barriers.ds_full(buffer));
    };
    if constexpr (!C::kOnChip) leave_ds();
    const auto key_product = [&] {
      mma_fence();
      add_product<C>(dk, ds, shared + C::kQ + stage * C::kQBytes, !first);
      mma_commit();
    };
    [[maybe_unused]] Rows<C> rows{};
    if constexpr (C::kKeysFirst) {
      key_product();
      // dV is complete: the registers of its operand are free for dQ.
      mma_wait<2>();
      barrier_arrive(barriers.do_empty(do_stage));
      dq_product(dq, step - 1, old_round);
    } else {
      mma_wait<1>();
      barrier_arrive(barriers.do_empty(do_stage));
      if constexpr (C::kOnChip) {
        rows = rows_of(next);
      } else {
        dq_product(dq, step - 1, old_round);
      }
      key_product();
    }
    if constexpr (C::kOnChip) {
      // The third warpgroup does not need dS immediately.
      leave_ds();
      if (last && uniform(tile_info(round).first == tile_info(round).begin)) draw(next);
    }
    if constexpr (C::kWide) {
      mma_wait<2>();
      pin(s);
      rows = rows_of(next);
      // dK is complete. Its stage is released early, because with two stages the load of the block after next waits for
      // it.
      mma_wait<1>();
      pin(dk);
      barrier_arrive(barriers.q_empty(stage));
      to_probabilities(next, rows);
      mma_wait<0>();
    } else {
      if constexpr (!C::kOnChip) {
        // This wait also acts as a branch: without it the compiler moves the loads of the statistics behind the
        // products.
        wait_for_q(next);
        rows = rows_of(next);
      }
      mma_wait<C::kOnChip ? 1 : 2>();
      pin(s);
      to_probabilities(next, rows);
      // This wait also acts as a branch: without it ptxas moves exponentials behind the mma_wait that follows.
      wait_for_q(next);
      if constexpr (!C::kOnChip) mma_wait<1>();
    }
    if constexpr (!C::kOnChip) {
      pin(dq);
      if (step > 0) {
        arrive(barriers.ds_empty(buffer ^ 1));
        if (first) arrive(barriers.k_empty(old_round & 1));
        leave_dq(dq, step - 1, old_round);
      }
    }
    pin(dv);
    ++step;
  };

  // Computes the probabilities of the first step of a key tile if no previous step has computed them.
  const auto enter = [&] {
    wait_for_k();
    wait_for_q(step);
    if constexpr (C::kOnChip) ends = ends_tile(step);
    if (!C::kOnChip || uniform(tile_info(round).first == tile_info(round).begin)) draw(step);
    scores(step, k_of(round));
    mma_wait<0>();
    pin(s);
    to_probabilities(step, rows_of(step));
  };
  // For a key tile whose second half lies beyond the sequence. The second warpgroup then computes nothing; it only
  // signals the barriers that other threads wait on. The third warpgroup does not read this half of dS.
  [[maybe_unused]] const auto stand_by = [&] {
    mma_wait<0>();
    pin(dk);
    pin(dv);
    if (round > 0) leave_gradients(round - 1);
    for (bool last = false; !last; ++step) {
      const uint32_t buffer = step & 1, do_stage = step % C::kDoStages;
      wait_for_q(step);
      last = ends_tile(step);
      if (step > 0) barrier_arrive(barriers.q_empty((step - 1) % C::kStages));
      barrier_wait(barriers.do_full(do_stage), (step / C::kDoStages) & 1);
      barrier_arrive(barriers.do_empty(do_stage));
      barrier_wait(barriers.ds_empty(buffer), ((step >> 1) & 1) ^ 1);
      arrive(barriers.ds_full(buffer));
    }
    barrier_wait(barriers.v_full(), round & 1);
    arrive(barriers.v_empty());
    more = another_tile();
    if (!more) return;
    ++round;
    // dK and dV in registers are never stored: their keys lie beyond the sequence.
    fresh = true;
    enter();
  };

  // A block that starts after the others have drawn all items has no tile.
  barrier_wait(barriers.info_full(0), 0);
  if (uniform(infos[0].head) < 0) return;
  enter();
#pragma unroll 1
  while (more) {
    if constexpr (C::kOnChip) {
      if (fresh && uniform(group == 1 && !second_half<C>(tile_info(round).first, tile_info(round).end))) {
        stand_by();
        continue;
      }
    }
    advance();
  }
  if constexpr (C::kOnChip) {
    mma_wait<0>();
    pin(dk);
  } else {
    float dq[C::kDqValues];
    dq_product(dq, step - 1, round);
    mma_wait<0>();
    pin(dk);
    pin(dq);
    leave_dq(dq, step - 1, round);
  }
  leave_gradients(round);
}

}  // namespace trireme::kernels::backward
