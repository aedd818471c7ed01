#pragma once
// The backward kernel. A block keeps 128 keys and values; query rows and output gradients of every query head that reads them stream
// by, kRows at a time, so that dK and dV of a key head are finished in registers. Each of the two consumer warpgroups
// owns 64 keys and computes the transposed scores, so that P^T and dS^T leave the softmax in the layout of a register operand.
// dS also goes through shared memory for dQ = dS K, of which each warpgroup computes one 64 x 64 part and adds it to fp32 sums in global memory
// that lie in the order of the fragments: 16 bytes a thread, side by side.
//
// In flight at the same time: the next block's scores, dK and dQ of this one, while the exponentials of the next run.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/hopper.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"

#include <climits>
#include <type_traits>

namespace trireme::kernels::backward {

template <class T_, int kDim_, bool kCausal_, bool kDropout_, int kMode_ = 0, int kRows_ = 64, bool kDeterministic_ = false, int kQStages_ = 2, int kSStages_ = 2, bool kKept_ = false>
struct Config {
  static constexpr bool kDeterministic = kDeterministic_, kKept = kKept_;
  static constexpr int kMode = kMode_;
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static constexpr int kKeys = kAttentionBackwardKeys, kRows = kRows_;
  static constexpr int kQStages = kQStages_, kStages = 2, kSStages = kSStages_, kThreads = 384;
  static constexpr uint32_t kKBytes = kKeys * kDim * 2, kQBytes = kRows * kDim * 2, kSBytes = kKeys * kRows * 2,
                            kStatBytes = kRows * 4;
  // Shared memory, in bytes from a multiple of 1,024. Keys have two slots: the next work item's arrive early. Keys and values of the
  // finished one make room for dK and dV on their way out.
  static constexpr uint32_t kK = 0, kV = 2 * kKBytes, kQ = kV + kKBytes, kDo = kQ + kQStages * kQBytes,
                            kDs = kDo + kStages * kQBytes, kDq = kDs + kSStages * kSBytes, kLse = kDq + 2 * 16384, kDelta = kLse + kQStages * kStatBytes,
                            kBarriers = kDelta + kStages * kStatBytes, kInfos = kBarriers + (8 + 2 * kStages + 2 * kQStages) * 8,
                            kBytes = kInfos + 2 * 48;
};

struct Parameters {
  CUtensorMap q, k, v, d_o;
  TileQueue queue;  // heads: of keys
  const float* lse2;   // [q_heads][padded rows], times log2 e; infinite beyond a sequence
  const float* delta;  // the same; zero beyond
  float* dq;           // [q_heads][padded blocks of 64][d / 64][64 x 64 in fragment order]
  int32_t* turns;      // deterministic: [q_heads][padded blocks][d / 64][4 warps], key tiles that have added
  void *dk, *dv;
  int64_t dk_token, dk_head, dv_token, dv_head, padded_rows;
  int group;
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
};

/// What the producer tells the consumers about an item; head -1: no more. Query blocks first_block … blocks - 1 of each head of the group.
struct alignas(16) ItemInfo {
  int32_t first, begin, end, padded, head, first_block, blocks, sequence, unused[4];
};

template <class C>
struct Barriers {
  uint32_t base;
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * s; }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (2 + s); }
  __device__ uint32_t v_full() const { return base + 8 * 4; }
  __device__ uint32_t v_empty() const { return base + 8 * 5; }
  __device__ uint32_t ds_empty() const { return base + 8 * 6; }
  __device__ uint32_t q_full(uint32_t s) const { return base + 8 * (8 + s); }
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (8 + C::kQStages + s); }
  __device__ uint32_t do_full(uint32_t s) const { return base + 8 * (8 + 2 * C::kQStages + s); }
  __device__ uint32_t do_empty(uint32_t s) const { return base + 8 * (8 + 2 * C::kQStages + C::kStages + s); }
};

// Three threads produce: each alone fits the few registers that the consumers leave.

/// Hands out work; keys and values.
template <class C>
__device__ inline void produce_keys(const Parameters& p, uint32_t shared, ItemInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  int item = static_cast<int>(blockIdx.x);
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    const uint32_t slot = round & 1;
    barrier_wait(barriers.k_empty(slot), ((round >> 1) & 1) ^ 1);
    if (item >= p.queue.items()) {
      infos[slot].head = -1;
      barrier_arrive(barriers.k_full(slot));
      break;
    }
    int tile_index, head;
    p.queue.decode(item, tile_index, head);
    const AttentionTile tile = p.queue.tiles[tile_index];
    infos[slot] = {tile.first, tile.begin, tile.end, tile.padded, head, C::kCausal ? (tile.first - tile.begin) / C::kRows : 0,
                   (tile.end - tile.begin + C::kRows - 1) / C::kRows, tile.sequence, {}};
    barrier_expect(barriers.k_full(slot), C::kKBytes);
#pragma unroll
    for (int c = 0; c < C::kDim / 64; ++c)
      load_box(shared + C::kK + slot * C::kKBytes + c * (C::kKeys * 128), &p.k, 64 * c, head, tile.first, barriers.k_full(slot));
    barrier_wait(barriers.v_empty(), (round & 1) ^ 1);
    barrier_expect(barriers.v_full(), C::kKBytes);
#pragma unroll
    for (int c = 0; c < C::kDim / 64; ++c)
      load_box(shared + C::kV + c * (C::kKeys * 128), &p.v, 64 * c, head, tile.first, barriers.v_full());
    item = p.queue.next();
  }
  p.queue.leave();
}

/// Query rows with their log-sum-exp, or output gradients with their delta. An item's info stays until its consumers are done, which
/// is after all of this item's rows have been asked for.
template <class C, bool kGradients>
__device__ inline void produce_rows(const Parameters& p, uint32_t shared, const ItemInfo* infos, const Barriers<C>& barriers) {
  using namespace hopper;
  const CUtensorMap* map = kGradients ? &p.d_o : &p.q;
  const float* stats = kGradients ? p.delta : p.lse2;
  uint32_t step = 0;
#pragma unroll 1
  for (uint32_t round = 0;; ++round) {
    barrier_wait(barriers.k_full(round & 1), (round >> 1) & 1);
    const ItemInfo& info = infos[round & 1];
    if (info.head < 0) break;
    const int first_block = info.first_block, blocks = info.blocks, begin = info.begin;
    int head = info.head * p.group;
#pragma unroll 1
    for (int left = p.group; left > 0; --left, ++head) {
      const float* stat = stats + head * p.padded_rows + info.padded;
#pragma unroll 1
      for (int block = first_block; block < blocks; ++block, ++step) {
        constexpr uint32_t kCount = kGradients ? C::kStages : C::kQStages;
        const uint32_t stage = step % kCount;
        const uint32_t full = kGradients ? barriers.do_full(stage) : barriers.q_full(stage);
        barrier_wait(kGradients ? barriers.do_empty(stage) : barriers.q_empty(stage), ((step / kCount) & 1) ^ 1);
        barrier_expect(full, C::kQBytes + C::kStatBytes);
#pragma unroll
        for (int c = 0; c < C::kDim / 64; ++c)
          load_box(shared + (kGradients ? C::kDo : C::kQ) + stage * C::kQBytes + c * (C::kRows * 128), map, 64 * c, head,
                   begin + block * C::kRows, full);
        load_bytes(shared + (kGradients ? C::kDelta : C::kLse) + stage * C::kStatBytes, stat + block * C::kRows, C::kStatBytes, full);
      }
    }
  }
}

/// The transpose of Q K^T, or of dO V^T: 64 keys by kRows query rows.
template <class C>
__device__ inline void transposed_product(float (&s)[C::kRows / 2], uint32_t keys, uint32_t rows) {
  using namespace hopper;
  const Operand a = operand(keys), b = operand(rows);
#pragma unroll
  for (int i = 0; i < C::kDim / 16; ++i)
    mma_ss<typename C::T, Major::kK, Major::kK>(s, a.at((i / 4) * (C::kKeys * 128) + (i % 4) * 32),
                                                b.at((i / 4) * (C::kRows * 128) + (i % 4) * 32), i != 0);
}

/// sum += x^T y with x^T in registers and y the kRows rows at an address.
template <class C>
__device__ inline void add_product(float (&sum)[C::kDim / 2], const uint32_t (&x)[C::kRows / 4], uint32_t y) {
  using namespace hopper;
  const Operand b = operand(y, C::kRows * 128);
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i)
    mma_rs<typename C::T, Major::kMN>(sum, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3], b.at(i * 2048), 1);
}

/// 64 rows of dS times 64 columns of K; both lie with the summed dimension (keys) as rows.
template <class C>
__device__ inline void query_gradient(float (&dq)[32], uint32_t ds, uint32_t k) {
  using namespace hopper;
  const Operand a = operand(ds), b = operand(k);
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i)
    mma_ss<typename C::T, Major::kMN, Major::kMN>(dq, a.at(i * 2048), b.at(i * 2048), i != 0);
}

/// Writes this warp's 16 keys of dK or dV: fragments to shared memory, whole rows from there.
template <class C>
__device__ inline void finish(float (&x)[C::kDim / 2], float scale, uint32_t staging, void* to, int64_t token_stride,
                              int64_t head_offset, int first, int end) {
  using namespace hopper;
  using T = typename C::T;
  const int lane = threadIdx.x % 32;
  constexpr int kRowBytes = C::kDim * 2, kChunks = kRowBytes / 16, kStep = 32 / kChunks;
#pragma unroll
  for (int j = 0; j < C::kDim / 16; ++j) {
    const uint32_t row = lane % 16, chunk = 2 * j + lane / 16;
    store_matrices(staging + row * kRowBytes + ((chunk ^ (row % 8)) * 16), pack2<T>(x[8 * j] * scale, x[8 * j + 1] * scale),
                   pack2<T>(x[8 * j + 2] * scale, x[8 * j + 3] * scale), pack2<T>(x[8 * j + 4] * scale, x[8 * j + 5] * scale),
                   pack2<T>(x[8 * j + 6] * scale, x[8 * j + 7] * scale));
  }
  __syncwarp();
  T* out = static_cast<T*>(to) + head_offset;
#pragma unroll
  for (int i = 0; i < 16 / kStep; ++i) {
    const uint32_t row = i * kStep + lane / kChunks, chunk = lane % kChunks;
    const int4 words = load_shared16(staging + row * kRowBytes + ((chunk ^ (row % 8)) * 16));
    const int token = first + static_cast<int>(row);
    if (token < end) *reinterpret_cast<int4*>(out + token * token_stride + chunk * 8) = words;
  }
}

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
      const uint32_t lse_at = shared + C::kLse + (at_step % C::kQStages) * C::kStatBytes + 8 * (lane % 4);
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
      const uint32_t q_stage = step % C::kQStages, next = (step + 1) % C::kQStages;
      const uint32_t q_at = shared + C::kQ + q_stage * C::kQBytes, do_at = shared + C::kDo + stage * C::kQBytes;
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
      constexpr bool kValuesFirst = !C::kDropout && C::kMode != 2;
      if constexpr (kValuesFirst) {
#pragma unroll
        for (int i = 0; i < C::kRows / 16; ++i) pack_rows(i, 0, 0);
        mma_fence();
        add_product<C>(dv, packed, do_at);
        mma_commit();
      }
      mma_wait<C::kMode == 0 || C::kMode == 2 ? 0 : 1>();
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
            float probability = s[4 * j + e];
            if constexpr (C::kMode == 5) {
              const uint32_t word = packed[2 * j + e / 2];
              probability = __uint_as_float(e % 2 ? word & 0xffff0000u : word << 16);
            }
            dp[4 * j + e] = probability * (x - (e % 2 ? delta.y : delta.x));
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[4 * i + e] = pack2<T>(dp[8 * i + 2 * e], dp[8 * i + 2 * e + 1]);
        if constexpr (!kValuesFirst) pack_rows(i, even, odd);
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
      if constexpr (C::kMode == 5) {
        mma_wait<0>();
        pin(dv);
      }
      if constexpr (!kValuesFirst) {
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
        barrier_wait(barriers.q_full(next), ((step + 1) / C::kQStages) & 1);
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
        barrier_wait(barriers.q_full(next), ((step + 1) / C::kQStages) & 1);
      }
      mma_wait<1>();
      pin(dk);
      arrive(barriers.q_empty(q_stage));
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
        if constexpr (C::kKept)
          add_bytes_kept(dq_to, staging, 4096);
        else
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

    barrier_wait(barriers.q_full(step % C::kQStages), (step / C::kQStages) & 1);
    mma_fence();
    transposed_product<C>(s, my_k, shared + C::kQ + (step % C::kQStages) * C::kQBytes);
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
  }
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
    for (uint32_t s = 0; s < C::kQStages; ++s) {
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
