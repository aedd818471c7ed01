#pragma once
// The forward kernel. A producer warpgroup hands out tiles and moves queries, keys, values and results; each consumer
// warpgroup owns 64 query rows. In a consumer warpgroup the scores of the next key block and the product with the
// values of the current one are in flight while the softmax is computed. Consumer warpgroups do not synchronise with
// each other.

#include "kernels/attention/attention_forward_produce.cuh"
#include "kernels/attention/attention_forward_rows.cuh"
#include "kernels/launch.h"

#include <type_traits>

namespace trireme::kernels::forward {

/// s = Q K^T of this warpgroup's rows.
template <class C>
__device__ inline void scores(float (&s)[C::kKeys / 2], hopper::Operand q, hopper::Operand k) {
  if constexpr (C::kCodes)
    hopper::product_of_code_rows(s, q, k);
  else
    hopper::product_of_rows<typename C::T, C::kDim, 64, C::kKeys>(s, q, k);
}

/// o += P V.
template <class C>
__device__ inline void weighted_values(float (&o)[C::kDim / 2], const uint32_t (&p)[C::kKeys / 32 * C::kPacked],
                                       hopper::Operand v, bool accumulate) {
  if constexpr (C::kCodes)
    hopper::product_with_code_columns(o, p, v, accumulate);
  else
    hopper::product_with_rows<typename C::T, C::kKeys>(o, p, v, accumulate);
}

/// Multiplies a thread's two rows.
template <int kCount>
__device__ inline void scale_rows(float (&x)[kCount], const float (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    x[i] *= factors[0];
    x[i + 1] *= factors[0];
    x[i + 2] *= factors[1];
    x[i + 3] *= factors[1];
  }
}

template <class C>
__device__ inline void consume(const Parameters& p, uint32_t shared, const TileInfo* infos,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  const int thread = static_cast<int>(threadIdx.x) - C::kProducers;
  const int shift = C::kDropout ? 0 : p.pack_shift;
  const int group = uniform(thread / 128), warp = uniform(thread / 32 % 4), lane = threadIdx.x % 32;
  const auto arrive = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  // Keys and values of one block use the same stage number; `block` counts key blocks over all tiles.
  uint32_t block = 0, round = 0;
  const auto phase = [](uint32_t b) { return (b / C::kStages) & 1; };
  const Operand queries = operand(shared + C::kQ), keys = operand(shared + C::kK),
                values = operand(shared + C::kV, C::kKeys * 128);
  const auto k_at = [&](uint32_t b) { return keys.at(b % C::kStages * C::kKBytes); };
  const auto v_at = [&](uint32_t b) { return values.at(b % C::kStages * C::kKBytes); };
  const auto q_at = [&](uint32_t r) { return queries.at(unit_at<C>(0, group, r) - C::kQ); };
  const auto q_full = [&](uint32_t r) { return barriers.q_full(r % C::kSlots, group); };
  const auto left = [&](uint32_t r) { return barriers.left(r % C::kSlots, group); };
  const auto next_tile = [&] {
    // The thread that loads the queries has waited for the tile's description, so this wait covers it too.
    barrier_wait(q_full(round), (round / C::kSlots) & 1);
    return Work<C>::read(infos[round % C::kInfoSlots], unit_of<C>(group, round), shift, p);
  };
  const auto skip_to = [&](const Work<C>& work) {
#pragma unroll 1
    for (int n = work.blocks - 1; n > work.top; --n, ++block) {
      barrier_wait(barriers.k_full(block % C::kStages), phase(block));
      arrive(barriers.k_empty(block % C::kStages));
      barrier_wait(barriers.v_full(block % C::kStages), phase(block));
      arrive(barriers.v_empty(block % C::kStages));
    }
  };

  float s[C::kKeys / 2];
  // Advances from one tile to the first scores of the next one that has rows for this warpgroup. False: no more tiles.
  const auto begin_tile = [&](Work<C>& work) {
#pragma unroll 1
    for (;;) {
      if (work.head < 0) return false;
      skip_to(work);
      if (work.top >= work.bottom) break;
      barrier_arrive(left(round));
      barrier_arrive(barriers.info_empty(round % C::kInfoSlots));
      ++round;
      work = next_tile();
    }
    barrier_wait(barriers.k_full(block % C::kStages), phase(block));
    mma_fence();
    scores<C>(s, q_at(round), k_at(block));
    mma_commit();
    mma_wait<0>();
    pin(s);
    return true;
  };

  Work<C> work = next_tile();
  bool more = begin_tile(work);
#pragma unroll 1
  while (more) {
    const int row = 16 * warp + lane / 4;
    AttentionRowDraws draws;
    if constexpr (C::kDropout) draws = work.draws.of_row(static_cast<uint32_t>(work.first + row - work.begin));
    int n = work.top;
    float o[C::kDim / 2];
    uint32_t probabilities[C::kKeys / 32 * C::kPacked];
    Softmax<C> softmax = Softmax<C>::none();
    // Of codes: results of the earlier runs of key blocks.
    [[maybe_unused]] float total[C::kCodes ? C::kDim / 2 : 1] = {};
    [[maybe_unused]] const uint32_t runs = shared + C::kRuns + thread * 32;
    if constexpr (C::kCodes) {
      work.read_scales(infos[round % C::kInfoSlots], shift, p);
      softmax.first_run(runs);
    }
    const auto scale_log2 = [&](int r) {
      if constexpr (C::kCodes)
        return work.scales[r];
      else
        return p.scale_log2;
    };

    // The scores of the top block are complete. Only this block can hold keys that the causal mask or the end of the
    // sequence excludes. A window excludes keys of the blocks up to `edge`, which may be this one.
    arrive(barriers.k_empty(block % C::kStages));
    const int offset = work.begin + n * C::kKeys + 2 * (lane % 4), end = work.end - 1 - offset,
              first = work.first - offset;
    const int limit0 = C::kCausal ? min(first + (row >> shift), end) : end,
              limit1 = C::kCausal ? min(first + ((row + 8) >> shift), end) : end;
    // The last key that a row does not see, in the columns of the block.
    [[maybe_unused]] int hidden0 = limit0 - p.window, hidden1 = limit1 - p.window;
    // In parts of 32 columns: a part that is masked for all rows costs only its share of the matrix products.
    constexpr int kParts = C::kKeys / 32;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part > 0 && 32 * part >= work.keys) continue;
      if (C::kCausal || 32 * (part + 1) > work.keys) {
#pragma unroll
        for (int j = 4 * part; j < 4 * (part + 1); ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (8 * j + e % 2 > (e < 2 ? limit0 : limit1) ||
                (C::kWindow && 8 * j + e % 2 <= (e < 2 ? hidden0 : hidden1)))
              s[4 * j + e] = -INFINITY;
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        softmax.maximum[r] =
            fmaxf(softmax.maximum[r], Softmax<C>::template largest_of<C::kKeys / 2, 16>(r, s, 16 * part));
    }
    softmax.share(0);
    softmax.share(1);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part == 0 || 32 * part < work.keys) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          softmax.sum[r] += softmax.template exponentials<C::kKeys / 2, 16>(r, s, scale_log2, 16 * part);
        pack_probabilities<C, 32>(probabilities, s, draws, n * C::kKeys + 2 * (lane % 4), p.keep_bias, 2 * part);
      } else {
#pragma unroll
        for (int i = C::kPacked * part; i < C::kPacked * (part + 1); ++i) probabilities[i] = 0;
      }
    }
    bool accumulate = false;
    const int bottom = C::kWindow ? work.bottom : 0;
    if (n > bottom) barrier_wait(barriers.k_full((block + 1) % C::kStages), phase(block + 1));
    // The block below, with the values of this one. kEdge: the window hides keys from some of these rows.
    const auto descend = [&]<bool kEdge>(std::bool_constant<kEdge>) {
      pin(s);
      pin(o);
      mma_fence();
      scores<C>(s, q_at(round), k_at(block + 1));
      mma_commit();
      barrier_wait(barriers.v_full(block % C::kStages), phase(block));
      mma_fence();
      weighted_values<C>(o, probabilities, v_at(block), accumulate);
      accumulate = true;
      mma_commit();
      mma_wait<1>();
      pin(s);
      arrive(barriers.k_empty((block + 1) % C::kStages));
      if constexpr (kEdge) {
        const int shift0 = hidden0 + (work.top - n) * C::kKeys, shift1 = hidden1 + (work.top - n) * C::kKeys;
#pragma unroll
        for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (8 * j + e % 2 <= (e < 2 ? shift0 : shift1)) s[4 * j + e] = -INFINITY;
        }
      }
      // A run ends with a block whose number is a multiple of kBlocksOfRun, and block n begins the next one.
      [[maybe_unused]] const bool ends = n % C::kBlocksOfRun == C::kBlocksOfRun - 1;
      if constexpr (C::kCodes) {
        if (ends) {
          softmax.end_run(runs, scale_log2);
          softmax = Softmax<C>::none();
        }
      }
      float alpha[2];
      const bool raised = softmax.update(s, scale_log2, alpha);
      pin(s);
      // This wait also acts as a branch: without it ptxas moves exponentials behind the mma_wait that follows. Those of
      // codes it moves nevertheless; to keep them before it gains nothing, because the power limits the kernel.
      if (n > bottom) barrier_wait(barriers.k_full((block + 2) % C::kStages), phase(block + 2));
      mma_wait<0>();
      pin(o);
      arrive(barriers.v_empty(block % C::kStages));
      pack_probabilities<C>(probabilities, s, draws, n * C::kKeys + 2 * (lane % 4), p.keep_bias);
      if constexpr (C::kCodes) {
        if (ends) {
          add_run(total, o, runs);
          accumulate = false;
        }
      }
      if (raised && accumulate) scale_rows(o, alpha);
      ++block;
    };
    --n;
    if constexpr (C::kWindow) {
      const int edge = work.edge;
#pragma unroll 1
      for (; n > edge; --n) descend(std::false_type{});
#pragma unroll 1
      for (; n >= bottom; --n) descend(std::true_type{});
    } else {
#pragma unroll 1
      for (; n >= 0; --n) descend(std::false_type{});
    }
    // If the next tile is loaded, its first scores run during the last product with values and while this tile is
    // written. If not, this tile is written while the next one loads. The warps of a warpgroup decide together, because
    // wgmma is undefined unless all of them execute the same one.
    ++round;
    barrier_wait(barriers.v_full(block % C::kStages), phase(block));
    pin(o);
    mma_fence();
    weighted_values<C>(o, probabilities, v_at(block), accumulate);
    mma_commit();
    const auto leave = [&] {
      pin(o);
      arrive(barriers.v_empty(block % C::kStages));
      ++block;
      const auto write = [&](const float (&results)[C::kDim / 2]) {
        finish<C>(p, work, results, softmax, unit_at<C>(shared, group, round - 1) + warp * (16 * 128), left(round - 1),
                  16 * warp, shift);
      };
      if constexpr (C::kCodes) {
        softmax.end_run(runs, scale_log2);
        add_run(total, o, runs);
        write(total);
      } else {
        write(o);
      }
      barrier_arrive(barriers.info_empty((round - 1) % C::kInfoSlots));
    };
    Work<C> next;
    next.head = -1;
    if (uniform(
            all_of_warpgroup(1 + group, barrier_done(q_full(round), (round / C::kSlots) & 1) &&
                                            barrier_done(barriers.k_full((block + 1) % C::kStages), phase(block + 1)))))
      next = next_tile();
    if (next.head >= 0 && next.top == next.blocks - 1) {
      pin(s);
      mma_fence();
      scores<C>(s, q_at(round), k_at(block + 1));
      mma_commit();
      mma_wait<1>();
      leave();
      work = next;
      mma_wait<0>();
      pin(s);
    } else {
      mma_wait<0>();
      leave();
      work = next_tile();
      more = begin_tile(work);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = hopper::shared_address(memory);
  const Barriers<C> barriers{shared + C::kBarriers};
  auto* infos = reinterpret_cast<TileInfo*>(memory + C::kInfos);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < C::kSlots; ++s)
      for (uint32_t g = 0; g < C::kConsumers; ++g) {
        hopper::barrier_init(barriers.q_full(s, g), 1);
        hopper::barrier_init(barriers.left(s, g), 128);
      }
    for (uint32_t s = 0; s < C::kInfoSlots; ++s) {
      hopper::barrier_init(barriers.info_full(s), 1);
      // Every thread arrives, because each reads a tile's description from shared memory itself.
      hopper::barrier_init(barriers.info_empty(s), 128 * C::kConsumers + C::kMovers + 1);
    }
    for (uint32_t s = 0; s < C::kStages; ++s) {
      hopper::barrier_init(barriers.k_full(s), 1);
      hopper::barrier_init(barriers.k_empty(s), 4 * C::kConsumers);
      hopper::barrier_init(barriers.v_full(s), 1);
      hopper::barrier_init(barriers.v_empty(s), 4 * C::kConsumers);
    }
    hopper::barrier_init(barriers.begun(), 1);
    hopper::barrier_init_fence();
    for (const CUtensorMap* map : {&p.q, &p.k, &p.v, &p.o, &p.o_rows}) hopper::prefetch_map(map);
  }
  __syncthreads();
  await_kernel_before();
  allow_next_kernel();
  if (hopper::uniform(static_cast<int>(threadIdx.x) / C::kProducers) == 0) {
    hopper::registers_give<C::kProducerRegisters>();
    const uint32_t warp = static_cast<uint32_t>(hopper::uniform(static_cast<int>(threadIdx.x) / 32));
    if (threadIdx.x == 0) produce<C>(p, shared, infos, barriers);
    if (threadIdx.x == 32) schedule<C>(p, infos, barriers);
    if (warp >= 4 - C::kMovers && threadIdx.x % 32 == 0)
      move_rows<C>(p, shared, infos, barriers, warp - (4 - C::kMovers));
  } else {
    hopper::registers_take<C::kConsumerRegisters>();
    consume<C>(p, shared, infos, barriers);
  }
}

}  // namespace trireme::kernels::forward
