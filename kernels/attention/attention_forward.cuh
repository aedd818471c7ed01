#pragma once
// The forward kernel. One producer warp moves Q, K and V tiles into shared memory and hands out work; each consumer warpgroup owns 64 query
// rows. Inside a warpgroup the scores of the next key block and the product with the values of this one are in flight
// while the softmax runs; between warpgroups nothing is ordered unless kPingPong.

#include "kernels/attention/attention_forward_parts.cuh"

namespace trireme::kernels::forward {

/// s = Q K^T of this warpgroup's rows.
template <class C>
__device__ inline void scores(float (&s)[C::kKeys / 2], uint32_t q, uint32_t k) {
  hopper::product_of_rows<typename C::T, C::kDim, C::kRows, C::kKeys>(s, q, k);
}

/// o += P V.
template <class C>
__device__ inline void weighted_values(float (&o)[C::kDim / 2], const uint32_t (&p)[C::kKeys / 4], uint32_t v,
                                       bool accumulate) {
  hopper::product_with_rows<typename C::T, C::kKeys>(o, p, v, accumulate);
}

/// The two rows of a thread; `sum` is this thread's part until the end.
struct Softmax {
  float maximum[2], sum[2];

  /// s becomes exp2(scale_log2 (s - maximum)). True: earlier results are to be multiplied with alpha. `maximum` is raised only when a row
  /// of the warp has outgrown it by 2^8, which is rare after a row's first block: results are the same but for roundings, far from overflow.
  template <int kCount>
  __device__ bool update(float (&s)[kCount], float scale_log2, float (&alpha)[2]) {
    constexpr float kRoom = 8.0f;
    const float largest[2] = {largest_of(0, s), largest_of(1, s)};
    const bool raised = __any_sync(0xffffffffu, fmaxf(largest[0] - maximum[0], largest[1] - maximum[1]) * scale_log2 > kRoom);
    if (raised) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = maximum[r];
        maximum[r] = fmaxf(before, largest[r]);
        share(r);
        alpha[r] = fast_exp2((before - maximum[r]) * scale_log2);
        sum[r] *= alpha[r];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += exponentials(r, s, scale_log2);
    return raised;
  }
  /// The largest of kPart values from the given one on, in row r of this thread.
  template <int kCount, int kPart = kCount>
  __device__ static float largest_of(int r, const float (&s)[kCount], int from = 0) {
    float largest = s[from + 2 * r];
#pragma unroll
    for (int g = from / 4; g < (from + kPart) / 4; ++g) largest = fmaxf(largest, fmaxf(s[4 * g + 2 * r], s[4 * g + 2 * r + 1]));
    return largest;
  }
  /// maximum[r] over the threads of a row.
  __device__ void share(int r) {
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xffffffffu, maximum[r], 1));
    maximum[r] = fmaxf(maximum[r], __shfl_xor_sync(0xffffffffu, maximum[r], 2));
  }
  /// The exponentials of kPart values in place of the scores; returns their sum.
  template <int kCount, int kPart = kCount>
  __device__ float exponentials(int r, float (&s)[kCount], float scale_log2, int from = 0) const {
    const float offset = maximum[r] * scale_log2;
    float total = 0.0f;
#pragma unroll
    for (int g = from / 4; g < (from + kPart) / 4; ++g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * g + 2 * r + e];
        x = fast_exp2(fmaf(x, scale_log2, -offset));
        total += x;
      }
    }
    return total;
  }
};

/// Probabilities of kCount columns from 16 i on in the element type, those that dropout takes set to zero.
template <class C, int kCount = C::kKeys>
__device__ inline void pack_probabilities(uint32_t (&p)[C::kKeys / 4], const float (&s)[C::kKeys / 2],
                                          const AttentionRowDraws& draws, uint32_t column, uint32_t bias, int i = 0) {
#pragma unroll
  for (int j = 4 * i; j < 4 * i + kCount / 4; ++j) p[j] = hopper::pack2<typename C::T>(s[2 * j], s[2 * j + 1]);
  if constexpr (C::kDropout) {
#pragma unroll
    for (int j = i; j < i + kCount / 16; ++j) {
      const uint32_t even = draws.kept(column + 16 * j, bias), odd = draws.kept(column + 16 * j + 1, bias);
      p[4 * j] &= half_masks<0>(even, odd);
      p[4 * j + 1] &= half_masks<1>(even, odd);
      p[4 * j + 2] &= half_masks<2>(even, odd);
      p[4 * j + 3] &= half_masks<3>(even, odd);
    }
  }
}

/// A tile as one warpgroup sees it. Row r of its 64 is token first + (r >> shift), head `head` + the low bits of r.
template <class C>
struct Work {
  int first, begin, end, head, sequence;
  int keys;         // of the block `top`, those that concern any of these rows
  int blocks, top;  // key blocks of the tile; the last one that concerns these 64 rows, -1 when they lie behind the sequence

  __device__ static Work read(const TileInfo& info, int unit, int shift) {
    Work w;
    w.first = hopper::uniform(info.first) + (64 * unit >> shift);
    w.begin = hopper::uniform(info.begin);
    w.end = hopper::uniform(info.end);
    w.head = hopper::uniform(info.head);
    w.blocks = hopper::uniform(info.blocks);
    w.sequence = C::kDropout ? info.sequence : 0;
    const int last = C::kCausal ? min(w.end, w.first + (64 >> shift)) : w.end;
    w.top = w.first < w.end ? (last - w.begin - 1) / C::kKeys : -1;
    w.keys = last - w.begin - w.top * C::kKeys;
    return w;
  }
};

/// Normalises and writes this warp's 16 rows from warp_row on, and their log-sum-exp.
template <class C>
__device__ inline void finish(const Parameters& p, int first, int end, int head, const float (&o)[C::kDim / 2], const Softmax& softmax,
                              uint32_t staging, int warp_row, int shift) {
  using namespace hopper;
  using T = typename C::T;
  const int lane = threadIdx.x % 32, heads = (1 << shift) - 1;
  const auto token_of = [&](int row) { return first + ((warp_row + row) >> shift); };
  const auto head_of = [&](int row) { return head + (row & heads); };
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = softmax.sum[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    inverse[r] = (C::kDropout ? p.keep_scale : 1.0f) * fast_reciprocal(total);
    const int row = lane / 4 + 8 * r, token = token_of(row);
    if (lane % 4 == 0 && token < end)
      p.lse[head_of(row) * p.tokens + token] = softmax.maximum[r] * p.scale + __logf(total);
  }
  // As the copy engine wants it: columns of 64 elements, rows of 128 bytes in the 128-byte swizzle.
  const auto chunk_at = [&](uint32_t row, uint32_t chunk) { return staging + chunk / 8 * 2048 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16; };
  if (lane == 0) add_bytes_read<0>();
  __syncwarp();
#pragma unroll
  for (int j = 0; j < C::kDim / 16; ++j)
    store_matrices(chunk_at(lane % 16, 2 * j + lane / 16),
                   pack2<T>(o[8 * j] * inverse[0], o[8 * j + 1] * inverse[0]),
                   pack2<T>(o[8 * j + 2] * inverse[1], o[8 * j + 3] * inverse[1]),
                   pack2<T>(o[8 * j + 4] * inverse[0], o[8 * j + 5] * inverse[0]),
                   pack2<T>(o[8 * j + 6] * inverse[1], o[8 * j + 7] * inverse[1]));
  proxy_fence();
  __syncwarp();
  if (token_of(15) < end) {
    if (lane == 0) {
#pragma unroll
      for (int c = 0; c < C::kDim / 64; ++c) store_box(&p.o_rows, 64 * c, head, token_of(0), staging + c * 2048);
      store_commit();
    }
  } else {
    constexpr int kChunks = C::kDim / 8, kStep = 32 / kChunks;
#pragma unroll 1
    for (int i = 0; i < 16 / kStep; ++i) {
      const uint32_t row = i * kStep + lane / kChunks, chunk = lane % kChunks;
      const int4 words = load_shared16(chunk_at(row, chunk));
      const int token = token_of(row);
      if (token < end)
        *reinterpret_cast<int4*>(static_cast<T*>(p.o) + token * p.o_token + head_of(row) * p.o_head + chunk * 8) = words;
    }
  }
}

template <class C>
__device__ inline void consume(const Parameters& p, uint32_t shared, const TileInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  const int thread = static_cast<int>(threadIdx.x) - C::kProducers;
  const int shift = C::kDropout ? 0 : p.pack_shift;
  const int group = uniform(thread / 128), warp = uniform(thread / 32 % 4), lane = threadIdx.x % 32;
  const auto my_turn = [&] {
    if constexpr (C::kPingPong) named_sync(1 + group, 256);
  };
  const auto your_turn = [&] {
    if constexpr (C::kPingPong) named_arrive(2 - group, 256);
  };
  const auto arrive = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  // Keys and values of one block lie in the same stage; `block` counts them over all tiles.
  uint32_t block = 0, round = 0;
  const auto phase = [](uint32_t b) { return (b / C::kStages) & 1; };
  const auto k_at = [&](uint32_t b) { return shared + C::kK + b % C::kStages * C::kKBytes; };
  const auto v_at = [&](uint32_t b) { return shared + C::kV + b % C::kStages * C::kKBytes; };
  // Which 64 rows of a tile are this warpgroup's: turn about, since the last rows of short sequences are often missing and warpgroups
  // may run a tile apart.
  const auto unit = [&] { return C::kPingPong ? group : static_cast<int>((group + round) % C::kConsumers); };
  const auto q_at = [&] { return shared + C::kQ + (round & 1) * C::kQBytes + unit() * (64 * 128); };
  const auto next_tile = [&] {
    barrier_wait(barriers.q_full(round & 1), (round >> 1) & 1);
    return Work<C>::read(infos[round & 1], unit(), shift);
  };
  const auto skip_to = [&](const Work<C>& work) {
#pragma unroll 1
    for (int n = work.blocks - 1; n > work.top; --n, ++block) {
      my_turn();
      your_turn();
      barrier_wait(barriers.k_full(block % C::kStages), phase(block));
      arrive(barriers.k_empty(block % C::kStages));
      barrier_wait(barriers.v_full(block % C::kStages), phase(block));
      arrive(barriers.v_empty(block % C::kStages));
    }
  };

  float s[C::kKeys / 2];
  // From one tile to the first scores of the next that concerns this warpgroup; false: no more.
  const auto begin_tile = [&](Work<C>& work) {
#pragma unroll 1
    for (;;) {
      if (work.head < 0) return false;
      skip_to(work);
      if (work.top >= 0) break;
      arrive(barriers.q_empty(round & 1));
      ++round;
      work = next_tile();
    }
    barrier_wait(barriers.k_full(block % C::kStages), phase(block));
    my_turn();
    mma_fence();
    scores<C>(s, q_at(), k_at(block));
    mma_commit();
    your_turn();
    mma_wait<0>();
    pin(s);
    return true;
  };

  if (group == 1) your_turn();
  Work<C> work = next_tile();
  bool more = begin_tile(work);
#pragma unroll 1
  while (more) {
    const int row = 16 * warp + lane / 4;
    AttentionRowDraws draws;
    if constexpr (C::kDropout)
      draws = AttentionDraws::of(p.sample_ids[work.sequence], p.t0, p.t1, work.head).of_row(static_cast<uint32_t>(work.first + row - work.begin));
    int n = work.top;
    float o[C::kDim / 2];
    uint32_t probabilities[C::kKeys / 4];
    Softmax softmax;

    // The scores of the top block are there. Only it can hold keys behind a row or behind the sequence.
    arrive(barriers.k_empty(block % C::kStages));
    if (n == 0) arrive(barriers.q_empty(round & 1));
    const int offset = work.begin + n * C::kKeys + 2 * (lane % 4), end = work.end - 1 - offset, first = work.first - offset;
    const int limit0 = C::kCausal ? min(first + (row >> shift), end) : end,
              limit1 = C::kCausal ? min(first + ((row + 8) >> shift), end) : end;
    softmax.maximum[0] = softmax.maximum[1] = -INFINITY;
    softmax.sum[0] = softmax.sum[1] = 0;
    // By 32 columns: those behind the limits of all rows cost nothing but their part of the products.
    constexpr int kParts = C::kKeys / 32;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part > 0 && 32 * part >= work.keys) continue;
      if (C::kCausal || 32 * (part + 1) > work.keys) {
#pragma unroll
        for (int j = 4 * part; j < 4 * (part + 1); ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (8 * j + e % 2 > (e < 2 ? limit0 : limit1)) s[4 * j + e] = -INFINITY;
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) softmax.maximum[r] = fmaxf(softmax.maximum[r], Softmax::largest_of<C::kKeys / 2, 16>(r, s, 16 * part));
    }
    softmax.share(0);
    softmax.share(1);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part == 0 || 32 * part < work.keys) {
#pragma unroll
        for (int r = 0; r < 2; ++r) softmax.sum[r] += softmax.exponentials<C::kKeys / 2, 16>(r, s, p.scale_log2, 16 * part);
        pack_probabilities<C, 32>(probabilities, s, draws, n * C::kKeys + 2 * (lane % 4), p.keep_bias, 2 * part);
      } else {
#pragma unroll
        for (int i = 8 * part; i < 8 * (part + 1); ++i) probabilities[i] = 0;
      }
    }
    bool accumulate = false;
    if (n > 0) barrier_wait(barriers.k_full((block + 1) % C::kStages), phase(block + 1));
#pragma unroll 1
    for (--n; n >= 0; --n) {
      my_turn();
      pin(s);
      pin(o);
      mma_fence();
      scores<C>(s, q_at(), k_at(block + 1));
      mma_commit();
      barrier_wait(barriers.v_full(block % C::kStages), phase(block));
      mma_fence();
      weighted_values<C>(o, probabilities, v_at(block), accumulate);
      accumulate = true;
      mma_commit();
      your_turn();
      mma_wait<1>();
      pin(s);
      arrive(barriers.k_empty((block + 1) % C::kStages));
      if (n == 0) arrive(barriers.q_empty(round & 1));
      float alpha[2];
      const bool raised = softmax.update(s, p.scale_log2, alpha);
      pin(s);
      // A branch: the assembler would otherwise move exponentials behind the wait that follows.
      if (n > 0) barrier_wait(barriers.k_full((block + 2) % C::kStages), phase(block + 2));
      mma_wait<0>();
      pin(o);
      arrive(barriers.v_empty(block % C::kStages));
      pack_probabilities<C>(probabilities, s, draws, n * C::kKeys + 2 * (lane % 4), p.keep_bias);
      if (raised) {
#pragma unroll
        for (int i = 0; i < C::kDim / 2; i += 4) {
          o[i] *= alpha[0];
          o[i + 1] *= alpha[0];
          o[i + 2] *= alpha[1];
          o[i + 3] *= alpha[1];
        }
      }
      ++block;
    }
    // The last product with values runs beside the first scores of the next tile, unless that one begins with blocks to skip.
    ++round;
    Work<C> next = next_tile();
    barrier_wait(barriers.v_full(block % C::kStages), phase(block));
    const bool together = next.head >= 0 && next.top == next.blocks - 1;
    if (together) {
      barrier_wait(barriers.k_full((block + 1) % C::kStages), phase(block + 1));
      my_turn();
      pin(s);
      pin(o);
      mma_fence();
      weighted_values<C>(o, probabilities, v_at(block), accumulate);
      mma_commit();
      mma_fence();
      scores<C>(s, q_at(), k_at(block + 1));
      mma_commit();
      your_turn();
      mma_wait<0>();
    } else {
      pin(o);
      mma_fence();
      weighted_values<C>(o, probabilities, v_at(block), accumulate);
      mma_commit();
      mma_wait<0>();
    }
    pin(o);
    arrive(barriers.v_empty(block % C::kStages));
    ++block;
    finish<C>(p, work.first, work.end, work.head, o, softmax, shared + C::kO + (group * 4 + warp) * (16 * C::kDim * 2), 16 * warp, shift);
    work = next;
    more = together || begin_tile(work);
  }
  if (lane == 0) add_bytes_done();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) kernel(const __grid_constant__ Parameters p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = hopper::shared_address(memory);
  const Barriers<C> barriers{shared + C::kBarriers};
  auto* infos = reinterpret_cast<TileInfo*>(memory + C::kInfos);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < 2; ++s) {
      hopper::barrier_init(barriers.q_full(s), 1);
      hopper::barrier_init(barriers.q_empty(s), 4 * C::kConsumers);
    }
    for (uint32_t s = 0; s < C::kStages; ++s) {
      hopper::barrier_init(barriers.k_full(s), 1);
      hopper::barrier_init(barriers.k_empty(s), 4 * C::kConsumers);
      hopper::barrier_init(barriers.v_full(s), 1);
      hopper::barrier_init(barriers.v_empty(s), 4 * C::kConsumers);
    }
    hopper::barrier_init_fence();
  }
  __syncthreads();
  if (hopper::uniform(static_cast<int>(threadIdx.x) / C::kProducers) == 0) {
    hopper::registers_give<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(p, shared, infos, barriers);
  } else {
    hopper::registers_take<C::kConsumerRegisters>();
    consume<C>(p, shared, infos, barriers);
  }
}

}  // namespace trireme::kernels::forward
