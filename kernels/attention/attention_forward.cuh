#pragma once
// The forward kernel. One producer warp moves Q, K and V tiles into shared memory and hands out work; each consumer warpgroup owns 64 query
// rows. Inside a warpgroup the scores of the next key block and the product with the values of this one are in flight
// while the softmax runs; between warpgroups nothing is ordered unless kPingPong.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/hopper.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"

namespace trireme::kernels::forward {

template <class T_, int kDim_, int kConsumers_, int kStages_, bool kCausal_, bool kDropout_, bool kPingPong_>
struct Config {
  using T = T_;
  static constexpr int kDim = kDim_, kConsumers = kConsumers_, kStages = kStages_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_, kPingPong = kPingPong_;
  static constexpr int kRows = 64 * kConsumers, kKeys = 128, kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr uint32_t kQBytes = kRows * kDim * 2, kKBytes = kKeys * kDim * 2;
  // Shared memory, in bytes from a multiple of 1,024.
  static constexpr uint32_t kQ = 0, kK = 2 * kQBytes, kV = kK + kStages * kKBytes,
                            kO = kV + kStages * kKBytes, kBarriers = kO + kQBytes,
                            kInfos = kBarriers + (4 + 4 * kStages) * 8, kBytes = kInfos + 2 * 32;
};

struct Parameters {
  CUtensorMap q, k, v;
  TileQueue queue;
  void* o;
  float* lse;
  int64_t o_token, o_head, tokens;
  int group;
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
};

/// What the producer tells the consumers about a tile; head -1: no more.
struct alignas(16) TileInfo {
  int32_t first, begin, end, head, blocks, sequence, unused[2];
};

/// Barriers by their addresses.
template <class C>
struct Barriers {
  uint32_t base;
  __device__ uint32_t q_full(uint32_t s) const { return base + 8 * s; }
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (2 + s); }
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * (4 + s); }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (4 + C::kStages + s); }
  __device__ uint32_t v_full(uint32_t s) const { return base + 8 * (4 + 2 * C::kStages + s); }
  __device__ uint32_t v_empty(uint32_t s) const { return base + 8 * (4 + 3 * C::kStages + s); }
};

template <class C>
__device__ inline void produce(const Parameters& p, uint32_t shared, TileInfo* infos,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  constexpr int kColumns = C::kDim / 64;
  uint32_t block = 0;
  int item = static_cast<int>(blockIdx.x);
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round & 1;
    const bool more = item < p.queue.items();
    TileInfo info{};
    int head = -1;
    if (more) {
      int tile_index;
      p.queue.decode(item, tile_index, head);
      const AttentionTile tile = p.queue.tiles[tile_index];
      const int last = C::kCausal ? min(tile.end, tile.first + C::kRows) : tile.end;
      info = {tile.first, tile.begin, tile.end, head, (last - tile.begin + C::kKeys - 1) / C::kKeys,
              tile.sequence, {}};
    }
    info.head = head;
    barrier_wait(barriers.q_empty(slot), ((round >> 1) & 1) ^ 1);
    infos[slot] = info;
    if (!more) {
      barrier_arrive(barriers.q_full(slot));
      break;
    }
    item = p.queue.next();
    barrier_expect(barriers.q_full(slot), C::kQBytes);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      load_box(shared + C::kQ + slot * C::kQBytes + c * (C::kRows * 128), &p.q, 64 * c, head,
               info.first, barriers.q_full(slot));
    const int kv_head = head / p.group;
#pragma unroll 1
    for (int n = info.blocks - 1; n >= 0; --n, ++block) {
      const uint32_t stage = block % C::kStages, parity = (block / C::kStages) & 1;
      const int token = info.begin + n * C::kKeys;
      barrier_wait(barriers.k_empty(stage), parity ^ 1);
      barrier_expect(barriers.k_full(stage), C::kKBytes);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        load_box(shared + C::kK + stage * C::kKBytes + c * (C::kKeys * 128), &p.k, 64 * c, kv_head,
                 token, barriers.k_full(stage));
      barrier_wait(barriers.v_empty(stage), parity ^ 1);
      barrier_expect(barriers.v_full(stage), C::kKBytes);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        load_box(shared + C::kV + stage * C::kKBytes + c * (C::kKeys * 128), &p.v, 64 * c, kv_head,
                 token, barriers.v_full(stage));
    }
  }
  p.queue.leave();
}

/// s = Q K^T of this warpgroup's rows.
template <class C>
__device__ inline void scores(float (&s)[C::kKeys / 2], uint32_t q, uint32_t k) {
  using namespace hopper;
  const Operand a = operand(q), b = operand(k);
#pragma unroll
  for (int i = 0; i < C::kDim / 16; ++i)
    mma_ss<typename C::T, Major::kK, Major::kK>(s, a.at((i / 4) * (C::kRows * 128) + (i % 4) * 32),
                                                b.at((i / 4) * (C::kKeys * 128) + (i % 4) * 32), i != 0);
}

/// o += P V.
template <class C>
__device__ inline void weighted_values(float (&o)[C::kDim / 2], const uint32_t (&p)[C::kKeys / 4], uint32_t v,
                                       bool accumulate) {
  using namespace hopper;
  const Operand b = operand(v, C::kKeys * 128);
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i)
    mma_rs<typename C::T, Major::kMN>(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], b.at(i * 2048),
                                      i != 0 || accumulate);
}

/// The two rows of a thread; `sum` is this thread's part until the end.
struct Softmax {
  float maximum[2], sum[2];

  /// s becomes exp2(scale_log2 (s - maximum)); returns what earlier results are to be multiplied with.
  template <bool kFirst, int kCount>
  __device__ float2 update(float (&s)[kCount], float scale_log2) {
    float alpha[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = s[2 * r];
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      if constexpr (!kFirst) m = fmaxf(m, maximum[r]);
      alpha[r] = kFirst ? 0.0f : fast_exp2((maximum[r] - m) * scale_log2);
      maximum[r] = m;
      const float offset = m * scale_log2;
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = fast_exp2(fmaf(x, scale_log2, -offset));
          total += x;
        }
      }
      sum[r] = kFirst ? total : fmaf(sum[r], alpha[r], total);
    }
    return {alpha[0], alpha[1]};
  }
};

template <class C>
__device__ inline void pack_probabilities(uint32_t (&p)[C::kKeys / 4], const float (&s)[C::kKeys / 2],
                                          const AttentionDraws& draws, uint32_t row, uint32_t column, uint32_t bias) {
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) p[i] = hopper::pack2<typename C::T>(s[2 * i], s[2 * i + 1]);
  if constexpr (C::kDropout) {
#pragma unroll
    for (int i = 0; i < C::kKeys / 16; ++i) {
      const uint32_t even = draws.kept(row, column + 16 * i, bias),
                     odd = draws.kept(row, column + 16 * i + 1, bias);
      p[4 * i] &= half_masks<0>(even, odd);
      p[4 * i + 1] &= half_masks<1>(even, odd);
      p[4 * i + 2] &= half_masks<2>(even, odd);
      p[4 * i + 3] &= half_masks<3>(even, odd);
    }
  }
}

/// Normalises and writes this warp's 16 rows, and their log-sum-exp.
template <class C>
__device__ inline void finish(const Parameters& p, const TileInfo& info, float (&o)[C::kDim / 2], Softmax& softmax,
                              uint32_t staging, int warp_row) {
  using namespace hopper;
  using T = typename C::T;
  const int lane = threadIdx.x % 32;
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = softmax.sum[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    inverse[r] = (C::kDropout ? p.keep_scale : 1.0f) / total;
    const int row = warp_row + lane / 4 + 8 * r;
    if (lane % 4 == 0 && row < info.end)
      p.lse[info.head * p.tokens + row] = softmax.maximum[r] * p.scale + __logf(total);
  }
  constexpr int kRowBytes = C::kDim * 2, kChunks = kRowBytes / 16, kStep = 32 / kChunks;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < C::kDim / 16; ++j) {
    const uint32_t row = lane % 16, chunk = 2 * j + lane / 16;
    store_matrices(staging + row * kRowBytes + ((chunk ^ (row % 8)) * 16),
                   pack2<T>(o[8 * j] * inverse[0], o[8 * j + 1] * inverse[0]),
                   pack2<T>(o[8 * j + 2] * inverse[1], o[8 * j + 3] * inverse[1]),
                   pack2<T>(o[8 * j + 4] * inverse[0], o[8 * j + 5] * inverse[0]),
                   pack2<T>(o[8 * j + 6] * inverse[1], o[8 * j + 7] * inverse[1]));
  }
  __syncwarp();
  T* out = static_cast<T*>(p.o) + info.head * p.o_head;
#pragma unroll
  for (int i = 0; i < 16 / kStep; ++i) {
    const uint32_t row = i * kStep + lane / kChunks, chunk = lane % kChunks;
    const int4 words = load_shared16(staging + row * kRowBytes + ((chunk ^ (row % 8)) * 16));
    const int token = warp_row + static_cast<int>(row);
    if (token < info.end) *reinterpret_cast<int4*>(out + token * p.o_token + chunk * 8) = words;
  }
}

template <class C>
__device__ inline void consume(const Parameters& p, uint32_t shared, const TileInfo* infos,
                               const Barriers<C>& barriers) {
  using namespace hopper;
  const int group = uniform(static_cast<int>(threadIdx.x) / 128 - 1), warp = (threadIdx.x / 32) % 4,
            lane = threadIdx.x % 32;
  const auto my_turn = [&] {
    if constexpr (C::kPingPong) named_sync(1 + group, 256);
  };
  const auto your_turn = [&] {
    if constexpr (C::kPingPong) named_arrive(2 - group, 256);
  };
  const auto arrive = [&](uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };
  if (group == 1) your_turn();
  uint32_t block = 0;
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round & 1;
    barrier_wait(barriers.q_full(slot), (round >> 1) & 1);
    TileInfo info = infos[slot];
    info.first = uniform(info.first);
    info.begin = uniform(info.begin);
    info.end = uniform(info.end);
    info.head = uniform(info.head);
    info.blocks = uniform(info.blocks);
    if (info.head < 0) break;
    // The first block, from the right, that concerns these 64 rows; -1 when they lie behind the sequence.
    const int first = info.first + 64 * group;
    const int last = C::kCausal ? min(info.end, first + 64) : info.end;
    int n = first < info.end ? (last - info.begin - 1) / C::kKeys : -1;
#pragma unroll 1
    for (int skip = info.blocks - 1; skip > n; --skip, ++block) {
      const uint32_t stage = block % C::kStages, parity = (block / C::kStages) & 1;
      my_turn();
      your_turn();
      barrier_wait(barriers.k_full(stage), parity);
      arrive(barriers.k_empty(stage));
      barrier_wait(barriers.v_full(stage), parity);
      arrive(barriers.v_empty(stage));
    }
    if (n < 0) {
      arrive(barriers.q_empty(slot));
      continue;
    }
    const uint32_t q = shared + C::kQ + slot * C::kQBytes + group * (64 * 128);
    AttentionDraws draws;
    if constexpr (C::kDropout)
      draws = AttentionDraws::of(p.sample_ids[info.sequence], p.t0, p.t1, info.head);
    const int row = first + 16 * warp + lane / 4;
    const uint32_t draw_row = static_cast<uint32_t>(row - info.begin);
    float s[C::kKeys / 2], o[C::kDim / 2];
    uint32_t probabilities[C::kKeys / 4];
    Softmax softmax;

    uint32_t stage = block % C::kStages;
    barrier_wait(barriers.k_full(stage), (block / C::kStages) & 1);
    my_turn();
    mma_fence();
    scores<C>(s, q, shared + C::kK + stage * C::kKBytes);
    mma_commit();
    your_turn();
    mma_wait<0>();
    pin(s);
    arrive(barriers.k_empty(stage));
    if (n == 0) arrive(barriers.q_empty(slot));
    {
      const int offset = info.begin + n * C::kKeys + 2 * (lane % 4);
      const int limit0 = (C::kCausal ? min(row, info.end - 1) : info.end - 1) - offset,
                limit1 = (C::kCausal ? min(row + 8, info.end - 1) : info.end - 1) - offset;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (8 * j + e % 2 > (e < 2 ? limit0 : limit1)) s[4 * j + e] = -INFINITY;
      }
    }
    softmax.template update<true>(s, p.scale_log2);
    pack_probabilities<C>(probabilities, s, draws, draw_row, n * C::kKeys + 2 * (lane % 4), p.keep_bias);
    bool accumulate = false;
    if (n > 0) barrier_wait(barriers.k_full((block + 1) % C::kStages), ((block + 1) / C::kStages) & 1);
#pragma unroll 1
    for (--n; n >= 0; --n) {
      const uint32_t next = (block + 1) % C::kStages;
      my_turn();
      pin(s);
      pin(o);
      mma_fence();
      scores<C>(s, q, shared + C::kK + next * C::kKBytes);
      mma_commit();
      barrier_wait(barriers.v_full(stage), (block / C::kStages) & 1);
      mma_fence();
      weighted_values<C>(o, probabilities, shared + C::kV + stage * C::kKBytes, accumulate);
      accumulate = true;
      mma_commit();
      your_turn();
      mma_wait<1>();
      pin(s);
      arrive(barriers.k_empty(next));
      if (n == 0) arrive(barriers.q_empty(slot));
      const float2 alpha = softmax.template update<false>(s, p.scale_log2);
      pin(s);
      // A branch: the assembler would otherwise move exponentials behind the wait that follows.
      if (n > 0)
        barrier_wait(barriers.k_full((block + 2) % C::kStages), ((block + 2) / C::kStages) & 1);
      mma_wait<0>();
      pin(o);
      arrive(barriers.v_empty(stage));
      pack_probabilities<C>(probabilities, s, draws, draw_row, n * C::kKeys + 2 * (lane % 4), p.keep_bias);
#pragma unroll
      for (int i = 0; i < C::kDim / 2; i += 4) {
        o[i] *= alpha.x;
        o[i + 1] *= alpha.x;
        o[i + 2] *= alpha.y;
        o[i + 3] *= alpha.y;
      }
      stage = next;
      ++block;
    }
    barrier_wait(barriers.v_full(stage), (block / C::kStages) & 1);
    pin(o);
    mma_fence();
    weighted_values<C>(o, probabilities, shared + C::kV + stage * C::kKBytes, accumulate);
    mma_commit();
    mma_wait<0>();
    pin(o);
    arrive(barriers.v_empty(stage));
    ++block;
    finish<C>(p, info, o, softmax, shared + C::kO + (group * 4 + warp) * (16 * C::kDim * 2), first + 16 * warp);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) kernel(const __grid_constant__ Parameters p) {
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
  if (hopper::uniform(static_cast<int>(threadIdx.x) / 128) == 0) {
    hopper::registers_give<C::kProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(p, shared, infos, barriers);
  } else {
    hopper::registers_take<C::kConsumerRegisters>();
    consume<C>(p, shared, infos, barriers);
  }
}

}  // namespace trireme::kernels::forward
