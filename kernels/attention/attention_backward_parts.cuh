#pragma once
// Of the backward kernel: shared memory, parameters, barriers, the order of work, and the matrix products.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"

namespace trireme::kernels::backward {

/// Where dQ, to which every key tile contributes, is summed.
enum class Sums {
  kAnyOrder,  // fp32 in global memory, added by the copy engine
  kKeyOrder,  // the same, key tiles in ascending order: deterministic
  kOnChip,    // one block takes all key tiles of a sequence and head one after the other; sums wait in shared memory
};

/// kFinishes: of short sequences under a causal mask the key tile on the diagonal, which is taken last, adds the
/// others' sums to its own and stores dQ. That pays where they are not few.
template <class T_, int kDim_, bool kCausal_, bool kDropout_, Sums kSums_, bool kFinishes_ = false>
struct Config {
  static constexpr bool kFinishes = kFinishes_;
  static_assert(!kFinishes_ || (kCausal_ && kSums_ == Sums::kAnyOrder));
  static constexpr Sums kSums = kSums_;
  static constexpr bool kOnChip = kSums == Sums::kOnChip;
  static constexpr bool kWide = kDim_ == 128;
  static_assert(!(kOnChip && kWide), "sums on chip are for heads of 64");
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static constexpr int kKeys = kAttentionBackwardKeys, kRows = 64;
  static constexpr int kStages = kWide ? 2 : 3, kDoStages = kStages;
  // Warpgroups: a producer, two that own keys, on chip one for dQ.
  static constexpr int kThreads = kOnChip ? 512 : 384;
  static constexpr int kProducerRegisters = 24, kKeyRegisters = kOnChip ? 200 : 240, kQueryRegisters = 80;
  static_assert(128 * (kProducerRegisters + 2 * kKeyRegisters + (kOnChip ? kQueryRegisters : 0)) <=
                kThreads * (65536 / kThreads / 8 * 8));
  // Of the four parts of dV, those that may be in flight while dS is formed: as many as registers allow.
  static constexpr int kValuesHeld = kWide ? 1 : 4;
  // And of a lane's pairs of delta, those that are read before dP is waited for.
  static constexpr int kDeltasHeld = kWide ? 2 : kRows / 8;
  // dK before the late dQ: with two stages of Q, the next but one must be asked for early. Else dQ first, and dK into
  // the next step.
  static constexpr bool kKeysFirst = kStages == 2;
  // Values of dQ that a thread holds: of a 64 x d / 2 part, on chip of all.
  static constexpr int kDqValues = kOnChip ? kDim / 2 : kDim / 4;
  // More than slots of keys: a tile's dK and dV leave while the next one is under way. By the time a slot is written
  // again all have moved on.
  static constexpr int kInfoSlots = 4;
  // Where dQ, which leaves a step late, asks what it is of: by then Q of three steps further may have been asked for.
  static constexpr int kStepSlots = kFinishes ? 4 : kStages;
  // Of turns, on their way to the thread that relays them.
  static constexpr int kRelaySlots = 4;
  // So many steps before the end of its work a block asks for more.
  static constexpr int kEnding = 4;
  static constexpr uint32_t kKBytes = kKeys * kDim * 2, kQBytes = kRows * kDim * 2, kSBytes = kKeys * kRows * 2,
                            kStatBytes = kRows * 4;
  // On the way out half of each warpgroup; on chip 24 bits a value of all rows.
  static constexpr uint32_t kSumBytes = kOnChip ? kAttentionWholeSequence * kDim * 3 : kRows * kDim * 4;
  // Shared memory, in bytes from a multiple of 1,024. Keys have two slots: those of the next tile arrive early.
  static constexpr uint32_t kK = 0, kV = 2 * kKBytes, kQ = kV + kKBytes, kDo = kQ + kStages * kQBytes,
                            kDs = kDo + kDoStages * kQBytes, kDq = kDs + 2 * kSBytes, kLse = kDq + kSumBytes,
                            kDelta = kLse + kStages * kStatBytes, kBarriers = kDelta + kDoStages * kStatBytes,
                            kInfos = kBarriers + (16 + 2 * (kStages + kDoStages) + kInfoSlots + 2 * kRelaySlots) * 8,
                            kSteps = kInfos + kInfoSlots * 48, kRelay = kSteps + kStepSlots * 16,
                            kBytes = kRelay + kRelaySlots * 4;
  static_assert(kInfos % 16 == 0 && kBytes <= 227 * 1024);
};

struct Parameters {
  CUtensorMap q, k, v, d_o;
  SectionQueue queue;  // heads: of keys
  const float* lse2;   // [q_heads][padded rows], times log2 e; infinite beyond a sequence
  const float* delta;  // the same, divided by keep_scale; zero beyond
  float* dq_sums;      // [q_heads][padded blocks of 64][2][64 x d / 2 in fragment order]; not on chip
  int32_t* turns;  // [q_heads][padded blocks of kRows]; not on chip. What produce_sums knows of their sums; zero: there
                   // are none yet
  bool zeroed;     // the sums: in any order all key tiles may add
  void *dq, *dk, *dv;  // dq: on chip, and of short sequences
  int64_t dq_token, dq_head, dk_token, dk_head, dv_token, dv_head, padded_rows;
  int row_blocks;  // padded_rows / kRows, which would take registers where they are scarce
  int group;
  float scale, scale_log2;  // of dq and dk: with keep_scale, which dS leaves out; of the scores, times log2 e
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
};

/// What the producer tells about a key tile; head -1: no more. Query blocks first_block … blocks - 1 of each head of
/// the group. In the last `finishes` steps it finishes dQ.
struct alignas(16) ItemInfo {
  int32_t first, begin, end, padded, head, first_block, blocks, sequence, down, rotation, last_of_item, finishes;
};

/// What it tells the consumers with a stage of Q.
struct alignas(16) StepInfo {
  int32_t block, head, last;  // last: of its key tile
  int32_t finishes;           // head << 16 | block of a step that finishes dQ; else -1
};

/// The order in which a key tile meets query blocks: heads of the group turn about inside a block, blocks run up or
/// down.
struct Walk {
  int block, head, left;  // left: steps from this one on
  int start, above, stride;

  __device__ static Walk of(const ItemInfo& info, int group) {
    Walk w;
    w.above = (info.head + 1) * group;
    w.start = w.head = w.above - group + info.rotation;
    w.stride = info.down ? -1 : 1;
    w.block = info.down ? info.blocks - 1 : info.first_block;
    w.left = (info.blocks - info.first_block) * group;
    return w;
  }
  __device__ void next(int group) {
    --left;
    if (++head == above) head -= group;
    if (head == start) block += stride;
  }
  /// The same of a walk along `info`, where registers are scarce.
  __device__ void next(int group, const volatile ItemInfo& info) {
    --left;
    if (++head == (info.head + 1) * group) head -= group;
    if (head == start) block += info.down ? -1 : 1;
  }
};

template <class C>
struct Barriers {
  uint32_t base;
  // Every thread that has read a stage's statistics says so: racecheck follows no other threads, and it takes no longer
  // than one of a warp.
  static constexpr uint32_t kReaders = 256;
  // That form dQ.
  static constexpr uint32_t kQueryWarps = C::kOnChip ? 4 : 8;
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * s; }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (2 + s); }
  __device__ uint32_t v_full() const { return base + 8 * 4; }
  __device__ uint32_t v_empty() const { return base + 8 * 5; }
  // Both warpgroups' halves of dS; the products with it.
  __device__ uint32_t ds_full(uint32_t s) const { return base + 8 * (6 + s); }
  __device__ uint32_t ds_empty(uint32_t s) const { return base + 8 * (8 + s); }
  // This item's last steps have begun.
  __device__ uint32_t ending() const { return base + 8 * 10; }
  // A warpgroup's part of dQ on the way out; to a tile that finishes, what others have left on the way in.
  __device__ uint32_t sums_full(uint32_t group) const { return base + 8 * (11 + group); }
  __device__ uint32_t sums_empty(uint32_t group) const { return base + 8 * (13 + group); }
  __device__ uint32_t q_full(uint32_t s) const { return base + 8 * (15 + s); }
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (15 + C::kStages + s); }
  __device__ uint32_t do_full(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + s); }
  __device__ uint32_t do_empty(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + C::kDoStages + s); }
  __device__ uint32_t info_full(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + 2 * C::kDoStages + s); }

  // Turns to be relayed.
  __device__ uint32_t relay_full(uint32_t s) const { return info_full(C::kInfoSlots + s); }
  __device__ uint32_t relay_empty(uint32_t s) const { return relay_full(C::kRelaySlots + s); }

  __device__ void init() const {
    using hopper::barrier_init;
    for (uint32_t s = 0; s < 2; ++s) {
      barrier_init(k_full(s), 1);
      // On chip the products with dS are the last that read keys.
      barrier_init(k_empty(s), kQueryWarps);
      barrier_init(ds_full(s), 8);
      barrier_init(ds_empty(s), kQueryWarps);
      barrier_init(sums_full(s), C::kFinishes ? 128 : 4);
      barrier_init(sums_empty(s), 1);
    }
    barrier_init(v_full(), 1);
    barrier_init(v_empty(), 8);
    barrier_init(ending(), 1);
    for (uint32_t s = 0; s < C::kStages; ++s) {
      barrier_init(q_full(s), 1);
      barrier_init(q_empty(s), kReaders);
    }
    for (uint32_t s = 0; s < C::kDoStages; ++s) {
      barrier_init(do_full(s), 1);
      barrier_init(do_empty(s), kReaders);
    }
    for (uint32_t s = 0; s < C::kInfoSlots; ++s) barrier_init(info_full(s), 1);
    for (uint32_t s = 0; s < 2 * C::kRelaySlots; ++s) barrier_init(relay_full(s), 1);
    hopper::barrier_init_fence();
  }
};

/// The transpose of Q K^T, or of dO V^T: 64 keys by kRows query rows.
template <class C>
__device__ inline void transposed_product(float (&s)[C::kRows / 2], uint32_t keys, uint32_t rows) {
  hopper::product_of_rows<typename C::T, C::kDim, C::kKeys, C::kRows>(s, hopper::operand(keys), hopper::operand(rows));
}

/// sum (+)= x^T y with x^T in registers and y the kRows rows at an address; 16 rows at a time, and `before` when kHeld
/// such are left.
template <class C, int kHeld = 0, class F = void (*)()>
__device__ inline void add_product(
    float (&sum)[C::kDim / 2], const uint32_t (&x)[C::kRows / 4], uint32_t y, bool accumulate, F before = [] {}) {
  using namespace hopper;
  const Operand b = operand(y, C::kRows * 128);
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i) {
    if (kHeld > 0 && i > 0 && i == C::kRows / 16 - kHeld) before();
    mma_rs<typename C::T, Major::kMN>(sum, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3], b.at(i * 2048),
                                      i != 0 || accumulate);
  }
}

/// Whether the second warpgroup's half of the key tile from `first` on has keys of the sequence that ends at `end`.
template <class C>
__device__ inline bool second_half(int first, int end) {
  return first + C::kKeys / 2 < end;
}

/// dq = 64 rows of dS times d / 2 columns of K, on chip all; both lie with the summed dimension (keys) as rows, the
/// first kKeys of the tile count.
template <class C, int kKeys = C::kKeys>
__device__ inline void query_gradient(float (&dq)[C::kDqValues], uint32_t ds, uint32_t k) {
  using namespace hopper;
  const Operand a = operand(ds), b = operand(k);
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i)
    mma_ss<typename C::T, Major::kMN, Major::kMN>(dq, a.at(i * 2048), b.at(i * 2048), i != 0);
}

}  // namespace trireme::kernels::backward
