#pragma once
// The forward kernel's configuration, shared memory layout, parameters and barriers.

#include "kernels/attention/attention_codes.cuh"
#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"

namespace trireme::kernels::forward {

/// Whether `value` holds in all 128 threads of the warpgroup, which wait for each other. `id`: a hardware barrier from
/// 1 to 15 of its own.
__device__ inline bool all_of_warpgroup(int id, bool value) {
  uint32_t all;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.and.pred q, %2, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(all)
      : "r"(static_cast<uint32_t>(value)), "r"(id)
      : "memory");
  return all != 0;
}

/// Description of a tile for all threads; head -1: no more tiles. It reads key blocks bottom … blocks - 1. `padding`:
/// of the sequence's tokens in the padded layout, beyond their number among all tokens.
struct alignas(16) TileInfo {
  int32_t first, begin, end, head, blocks, bottom, padding;
  AttentionDraws draws;
};

/// Shared memory holds kSlots units of 64 query rows for each consumer warpgroup, and kStages blocks of keys and of
/// values. kCodes: queries, keys and values are E4M3 codes, the values transposed; T is the type of the result.
template <class T_, int kDim_, int kConsumers_, int kKeys_, int kSlots_, int kStages_, bool kCausal_, bool kDropout_,
          bool kWindow_ = false, bool kCodes_ = false>
struct Config {
  static constexpr bool kCodes = kCodes_;
  static_assert(!kCodes || (kDim_ == 128 && kKeys_ == 128 && !kDropout_ && !kWindow_));
  /// Added to the exponents, in powers of two, and the most by which a row's scores may exceed its maximum before that
  /// is raised. Codes of probabilities reach 448; below 2^-6 they lose precision.
  static constexpr float kLift = kCodes ? 7.0f : 0.0f, kRoom = kCodes ? 1.75f : 8.0f;
  /// Registers of probabilities for 32 keys.
  static constexpr int kPacked = kCodes ? 4 : 8;
  /// Codes: key blocks that share a maximum and the tensor cores' sum of products with values. These keep 14 bits of a
  /// sum, and a probability below 2^-17 of the largest of its run becomes 0.
  static constexpr int kBlocksOfRun = 4;
  static constexpr bool kWindow = kWindow_;
  static_assert(!kWindow || (kCausal_ && !kDropout_));
  using T = T_;
  static constexpr int kDim = kDim_, kConsumers = kConsumers_, kKeys = kKeys_, kSlots = kSlots_, kStages = kStages_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static_assert(kKeys % 64 == 0, "the 64 rows of a warpgroup must not straddle two key blocks");
  static constexpr int kRows = 64 * kConsumers;
  // The producers occupy a whole warpgroup, because setmaxnreg moves registers between warpgroups.
  static constexpr int kProducers = 128, kThreads = kRows * 2 + kProducers;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  // setmaxnreg deadlocks if the warpgroups together ask for more registers than the block owns.
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <= kThreads * (65536 / kThreads / 8 * 8));
  static constexpr uint32_t kOperandBytes = kCodes ? 1 : 2, kQBytes = 64 * kDim * 2,
                            kKBytes = kKeys * kDim * kOperandBytes;
  // Threads that move queries and results. Two more threads hand out tiles and load keys and values. Each is in a warp
  // of its own.
  static constexpr int kMovers = 2;
  // One more than kSlots: otherwise the lookup of a tile would wait until the tile kSlots before it is finished.
  static constexpr uint32_t kInfoSlots = kSlots + 1;
  // Shared memory layout, byte offsets from a multiple of 1,024. Results are staged in the slot of their query rows.
  static constexpr uint32_t kQ = 0, kK = kSlots * kConsumers * kQBytes, kV = kK + kStages * kKBytes,
                            kBarriers = kV + kStages * kKBytes,
                            kInfos = kBarriers + (kSlots * kConsumers + kInfoSlots + 2 * kStages + 1) * 16;
  // Of codes: 32 bytes of each consumer thread for Softmax::end_run().
  static constexpr uint32_t kRuns = kInfos + kInfoSlots * sizeof(TileInfo),
                            kBytes = kRuns + (kCodes ? kRows * 2 * 32 : 0);
  static_assert(kSlots >= 2 && kBytes <= 227 * 1024);
};

/// At most eight heads share a tile: a fragment has eight rows that belong to different threads.
constexpr int kMaxPackShift = 3;

struct Parameters {
  CUtensorMap q, k, v, o, o_rows;  // q and o: boxes of 64 rows (a warpgroup); o_rows: boxes of 16 rows (a warp)
  TileQueue queue;
  void* out;
  float* lse;
  int64_t o_token, o_head;
  int32_t tokens;
  int group, pack_shift;  // query heads per key head; log2 of the number of heads that share a tile
  int window;             // keys that a row sees; kWindow only
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
  uint32_t head_word;
  CodeScales codes;  // kCodes only
};

/// Shared memory addresses of the barriers. q_full: the queries of a warpgroup's unit are loaded. left: the warpgroup's
/// results are in the place of its queries. begun: the loads of the next tile's keys have begun.
template <class C>
struct Barriers {
  uint32_t base;
  static constexpr uint32_t kUnits = C::kSlots * C::kConsumers, kInfosAt = 2 * kUnits,
                            kKeysAt = kInfosAt + 2 * C::kInfoSlots;
  __device__ uint32_t q_full(uint32_t s, uint32_t group) const { return base + 8 * (s * C::kConsumers + group); }
  __device__ uint32_t left(uint32_t s, uint32_t group) const { return base + 8 * (kUnits + s * C::kConsumers + group); }
  __device__ uint32_t info_full(uint32_t s) const { return base + 8 * (kInfosAt + s); }
  __device__ uint32_t info_empty(uint32_t s) const { return base + 8 * (kInfosAt + C::kInfoSlots + s); }
  __device__ uint32_t k_full(uint32_t s) const { return base + 8 * (kKeysAt + s); }
  __device__ uint32_t k_empty(uint32_t s) const { return base + 8 * (kKeysAt + C::kStages + s); }
  __device__ uint32_t v_full(uint32_t s) const { return base + 8 * (kKeysAt + 2 * C::kStages + s); }
  __device__ uint32_t v_empty(uint32_t s) const { return base + 8 * (kKeysAt + 3 * C::kStages + s); }
  __device__ uint32_t begun() const { return base + 8 * (kKeysAt + 4 * C::kStages); }
};

}  // namespace trireme::kernels::forward
