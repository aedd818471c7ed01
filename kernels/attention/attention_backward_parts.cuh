#pragma once
// The backward kernel's configuration, shared memory layout, parameters, barriers, order of work and matrix products.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"

namespace trireme::kernels::backward {

/// Where dQ, which receives a term from every key tile, is summed.
enum class Sums {
  kAnyOrder,    // fp32 in global memory, added by the copy engine in varying order
  kFixedOrder,  // the same, each row's key tiles in one order: deterministic
  kOnChip,      // one block takes all key tiles of a sequence and head in turn; sums stay in shared memory
};

/// kFinishes: for short causal sequences, the key tile on the diagonal comes last, adds the sums of the other tiles to
/// its own and stores dQ. This is faster only if such sequences are a large enough share of the batch.
template <class T_, int kDim_, bool kCausal_, bool kDropout_, Sums kSums_, bool kFinishes_ = false,
          bool kWindow_ = false>
struct Config {
  static constexpr bool kWindow = kWindow_;
  static_assert(!kWindow || (kCausal_ && !kDropout_ && !kFinishes_ && kSums_ != Sums::kOnChip));
  static constexpr bool kFinishes = kFinishes_;
  static_assert(!kFinishes_ || (kCausal_ && kSums_ == Sums::kAnyOrder));
  static constexpr Sums kSums = kSums_;
  static constexpr bool kOnChip = kSums == Sums::kOnChip;
  static constexpr bool kWide = kDim_ == 128;
  static_assert(!(kOnChip && kWide), "sums on chip are for heads of 64");
  using T = T_;
  static constexpr int kDim = kDim_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  // See SectionQueue.
  static constexpr bool kStaggered = kCausal && kSums == Sums::kFixedOrder;
  static constexpr int kKeys = kAttentionBackwardKeys, kRows = 64;
  static constexpr int kStages = kWide ? 2 : 3, kDoStages = kStages;
  // Warpgroups: one producer, two consumers that own keys, and with sums on chip one for dQ.
  static constexpr int kThreads = kOnChip ? 512 : 384;
  static constexpr int kProducerRegisters = 24, kKeyRegisters = kOnChip ? 200 : 240, kQueryRegisters = 80;
  // setmaxnreg deadlocks if the warpgroups together ask for more registers than the block owns.
  static_assert(128 * (kProducerRegisters + 2 * kKeyRegisters + (kOnChip ? kQueryRegisters : 0)) <=
                kThreads * (65536 / kThreads / 8 * 8));
  // How many of the four parts of dV may be in flight while dS is computed: as many as registers allow.
  static constexpr int kValuesHeld = kWide ? 1 : 4;
  // How many of a lane's pairs of delta are loaded before the wait for dP.
  static constexpr int kDeltasHeld = kWide ? 2 : kRows / 8;
  // Order of dK and the late dQ. With two stages of Q, dK comes first, so that its stage is released early. With more
  // stages dQ comes first and dK runs into the next step.
  static constexpr bool kKeysFirst = kStages == 2;
  // Values of dQ per thread: of a 64 x d / 2 part, with sums on chip of 64 x d.
  static constexpr int kDqValues = kOnChip ? kDim / 2 : kDim / 4;
  // More slots than for keys, because dK and dV of a tile are stored while the next tile is computed. By the time a
  // slot is overwritten no thread reads it any more.
  static constexpr int kInfoSlots = 4;
  // dQ of a step is stored one step late and reads the step's description then. By that time Q of three further steps
  // may have been requested.
  static constexpr int kStepSlots = kFinishes ? 4 : kStages;
  // Turns that are posted and not yet relayed.
  static constexpr int kRelaySlots = 4;
  // A block requests its next work item this many steps before the end of the current one.
  static constexpr int kEnding = 4;
  static constexpr uint32_t kKBytes = kKeys * kDim * 2, kQBytes = kRows * kDim * 2, kSBytes = kKeys * kRows * 2,
                            kStatBytes = kRows * 4;
  // Half of the sums of each warpgroup on their way to global memory; with sums on chip 24 bits a value for all rows.
  static constexpr uint32_t kSumBytes = kOnChip ? kAttentionWholeSequence * kDim * 3 : kRows * kDim * 4;
  // Shared memory layout, byte offsets from a multiple of 1,024. Two slots of keys, so that those of the next tile can
  // be loaded early.
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
  SectionQueue queue;  // its `heads` are key heads
  const float* lse2;   // [q_heads][padded rows], log-sum-exp times log2 e; infinity beyond a sequence
  const float* delta;  // [q_heads][padded rows], delta / keep_scale; zero beyond a sequence
  float* dq_sums;      // [q_heads][padded blocks of 64][2][64 x d / 2 in fragment order]; null with sums on chip
  // [q_heads][padded blocks of kRows]: turn counters of the sums, see turn_now(); zero: no sums yet. Null with sums on
  // chip.
  int32_t* turns;
  bool zeroed;         // whether dq_sums are zero at the start, so that with kAnyOrder every key tile may add
  void *dq, *dk, *dv;  // dq: written with sums on chip and for short sequences
  int64_t dq_token, dq_head, dk_token, dk_head, dv_token, dv_head, padded_rows;
  int row_blocks;  // padded_rows / kRows, precomputed to save registers
  int group;
  int window;  // keys that a row sees; kWindow only
  // scale: of dq and dk, includes keep_scale, which dS does not; scale_log2: of the scores, times log2 e
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
  uint32_t head_word;
};

/// Description of a key tile, written by the producer; head -1: no more work. Covers query blocks first_block … blocks
/// - 1 of each head of the group. In the last `finishes` steps the tile stores dQ itself.
struct alignas(16) ItemInfo {
  int32_t first, begin, end, padded, head, first_block, blocks, sequence, down, rotation, last_of_item, finishes;
};

/// Description of a step, written by the producer together with a stage of Q.
struct alignas(16) StepInfo {
  int32_t block, head, last;  // last: whether it is the last step of its key tile
  int32_t finishes;           // head << 16 | block if this step stores dQ itself; otherwise -1
};

/// The order in which a key tile visits query blocks: all heads of the group for one block, then the next block,
/// ascending or descending.
struct Walk {
  int block, head, left;  // left: steps including this one
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
  /// The same, rereading `info` instead of keeping its values in registers.
  __device__ void next(int group, const volatile ItemInfo& info) {
    --left;
    if (++head == (info.head + 1) * group) head -= group;
    if (head == start) block += info.down ? -1 : 1;
  }
};

template <class C>
struct Barriers {
  uint32_t base;
  // Every thread that has read a stage's statistics arrives: racecheck tracks only the threads that arrive themselves,
  // and this is as fast as one arrival per warp.
  static constexpr uint32_t kReaders = 256;
  // Warps that compute dQ.
  static constexpr uint32_t kQueryWarps = C::kOnChip ? 4 : 8;
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * s; }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (2 + s); }
  __device__ uint32_t v_full() const { return base + 8 * 4; }
  __device__ uint32_t v_empty() const { return base + 8 * 5; }
  // ds_full: both warpgroups have written their half of dS. ds_empty: the products have read it.
  __device__ uint32_t ds_full(uint32_t s) const { return base + 8 * (6 + s); }
  __device__ uint32_t ds_empty(uint32_t s) const { return base + 8 * (8 + s); }
  // The last kEnding steps of this work item have begun.
  __device__ uint32_t ending() const { return base + 8 * 10; }
  // sums_full: a warpgroup's part of dQ is in shared memory. sums_empty: that memory is free, or in steps that store dQ
  // holds the other tiles' sums.
  __device__ uint32_t sums_full(uint32_t group) const { return base + 8 * (11 + group); }
  __device__ uint32_t sums_empty(uint32_t group) const { return base + 8 * (13 + group); }
  __device__ uint32_t q_full(uint32_t s) const { return base + 8 * (15 + s); }
  __device__ uint32_t q_empty(uint32_t s) const { return base + 8 * (15 + C::kStages + s); }
  __device__ uint32_t do_full(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + s); }
  __device__ uint32_t do_empty(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + C::kDoStages + s); }
  __device__ uint32_t info_full(uint32_t s) const { return base + 8 * (15 + 2 * C::kStages + 2 * C::kDoStages + s); }

  // Slots of turns to be relayed.
  __device__ uint32_t relay_full(uint32_t s) const { return info_full(C::kInfoSlots + s); }
  __device__ uint32_t relay_empty(uint32_t s) const { return relay_full(C::kRelaySlots + s); }

  __device__ void init() const {
    using hopper::barrier_init;
    for (uint32_t s = 0; s < 2; ++s) {
      barrier_init(k_full(s), 1);
      // With sums on chip the dQ products are the last readers of keys.
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

/// The transpose of Q K^T or of dO V^T: 64 keys by kRows query rows.
template <class C>
__device__ inline void transposed_product(float (&s)[C::kRows / 2], uint32_t keys, uint32_t rows) {
  hopper::product_of_rows<typename C::T, C::kDim, C::kKeys, C::kRows>(s, hopper::operand(keys), hopper::operand(rows));
}

/// sum (+)= x^T y with x^T in registers and y kRows rows in shared memory, 16 rows a product. Calls `before` when kHeld
/// products are left.
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

/// Whether the second half of the key tile that starts at `first` has keys of the sequence that ends at `end`.
template <class C>
__device__ inline bool second_half(int first, int end) {
  return first + C::kKeys / 2 < end;
}

/// dq = 64 rows of dS times d / 2 columns of K (with sums on chip all d columns). In both operands the rows are the
/// summed dimension, the keys; only the first kKeys of them are used.
template <class C, int kKeys = C::kKeys>
__device__ inline void query_gradient(float (&dq)[C::kDqValues], uint32_t ds, uint32_t k) {
  using namespace hopper;
  const Operand a = operand(ds), b = operand(k);
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i)
    mma_ss<typename C::T, Major::kMN, Major::kMN>(dq, a.at(i * 2048), b.at(i * 2048), i != 0);
}

}  // namespace trireme::kernels::backward
