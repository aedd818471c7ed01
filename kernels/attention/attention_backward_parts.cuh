#pragma once
// Of the backward kernel: shared memory, parameters, barriers, what the producer threads do, and the matrix products.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/hopper.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"

#include <climits>

namespace trireme::kernels::backward {

template <class T_, int kDim_, bool kCausal_, bool kDropout_, bool kDeterministic_>
struct Config {
  static constexpr bool kDeterministic = kDeterministic_;
  // Heads of 128 leave room for 64 query rows at a time and two buffers of dS, and registers for all of P before dV = P^T dO starts.
  static constexpr bool kWide = kDim_ == 128, kValuesFirst = kWide && !kDropout_;
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static constexpr int kKeys = kAttentionBackwardKeys, kRows = kWide ? 64 : 128;
  static constexpr int kStages = 2, kSStages = kWide ? 2 : 1, kThreads = 384;
  static constexpr uint32_t kKBytes = kKeys * kDim * 2, kQBytes = kRows * kDim * 2, kSBytes = kKeys * kRows * 2,
                            kStatBytes = kRows * 4;
  // Shared memory, in bytes from a multiple of 1,024. Keys have two slots: the next work item's arrive early. Keys and values of the
  // finished one make room for dK and dV on their way out.
  static constexpr uint32_t kK = 0, kV = 2 * kKBytes, kQ = kV + kKBytes, kDo = kQ + kStages * kQBytes,
                            kDs = kDo + kStages * kQBytes, kDq = kDs + kSStages * kSBytes, kLse = kDq + 2 * 16384, kDelta = kLse + kStages * kStatBytes,
                            kBarriers = kDelta + kStages * kStatBytes, kInfos = kBarriers + (8 + 4 * kStages) * 8,
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
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (8 + C::kStages + s); }
  __device__ uint32_t do_full(uint32_t s) const { return base + 8 * (8 + 2 * C::kStages + s); }
  __device__ uint32_t do_empty(uint32_t s) const { return base + 8 * (8 + 3 * C::kStages + s); }
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
        const uint32_t stage = step % C::kStages;
        const uint32_t full = kGradients ? barriers.do_full(stage) : barriers.q_full(stage);
        barrier_wait(kGradients ? barriers.do_empty(stage) : barriers.q_empty(stage), ((step / C::kStages) & 1) ^ 1);
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
  hopper::product_of_rows<typename C::T, C::kDim, C::kKeys, C::kRows>(s, keys, rows);
}

/// sum += x^T y with x^T in registers and y the kRows rows at an address.
template <class C>
__device__ inline void add_product(float (&sum)[C::kDim / 2], const uint32_t (&x)[C::kRows / 4], uint32_t y) {
  hopper::product_with_rows<typename C::T, C::kRows>(sum, x, y, true);
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

}  // namespace trireme::kernels::backward
