#pragma once
// Of the forward kernel: shared memory, parameters, barriers.

#include "kernels/attention/attention_dropout.cuh"
#include "kernels/attention/tile_queue.cuh"
#include "kernels/device.cuh"
#include "kernels/hopper.cuh"

namespace trireme::kernels::forward {

/// kSlots units of 64 query rows a consumer warpgroup and kStages blocks of keys and values are in shared memory at a
/// time.
template <class T_, int kDim_, int kConsumers_, int kKeys_, int kSlots_, int kStages_, bool kCausal_, bool kDropout_>
struct Config {
  using T = T_;
  static constexpr int kDim = kDim_, kConsumers = kConsumers_, kKeys = kKeys_, kSlots = kSlots_, kStages = kStages_;
  static constexpr bool kCausal = kCausal_, kDropout = kDropout_;
  static_assert(kKeys % 64 == 0, "the 64 rows of a warpgroup must not straddle two key blocks");
  static constexpr int kRows = 64 * kConsumers;
  // A whole warpgroup produces, so that its registers can go to the others.
  static constexpr int kProducers = 128, kThreads = kRows * 2 + kProducers;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 112;
  static constexpr int kProducerRegisters = 32;
  // Who takes more than the block was given waits for ever.
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <= kThreads * (65536 / kThreads / 8 * 8));
  static constexpr uint32_t kQBytes = 64 * kDim * 2, kKBytes = kKeys * kDim * 2;
  // Threads that move queries and results; two more hand out tiles and bring keys and values, each in a warp of its
  // own.
  static constexpr int kMovers = 2;
  // With as many as units the lookup of a tile would wait for the one before the last.
  static constexpr uint32_t kInfoSlots = kSlots + 1;
  // Shared memory, in bytes from a multiple of 1,024. Results leave from the slot of their query rows.
  static constexpr uint32_t kQ = 0, kK = kSlots * kConsumers * kQBytes, kV = kK + kStages * kKBytes,
                            kBarriers = kV + kStages * kKBytes,
                            kInfos = kBarriers + (kSlots * kConsumers + kInfoSlots + 2 * kStages + 1) * 16,
                            kBytes = kInfos + kInfoSlots * 32;
  static_assert(kSlots >= 2 && kBytes <= 227 * 1024);
};

/// At most eight heads share a tile: they are the eight rows of a fragment that differ between threads.
constexpr int kMaxPackShift = 3;

struct Parameters {
  CUtensorMap q, k, v, o, o_rows;  // q and o in boxes of a warpgroup's 64 rows, the last one of a warp's 16
  TileQueue queue;
  void* out;
  float* lse;
  int64_t o_token, o_head;
  int32_t tokens;
  int group, pack_shift;  // query heads of a key head; log2 of how many of them share a tile
  float scale, scale_log2;
  const int64_t* sample_ids;
  uint32_t t0, t1, keep_bias;
  float keep_scale;
};

/// What all are told about a tile; head -1: no more.
struct alignas(16) TileInfo {
  int32_t first, begin, end, head, blocks, unused;
  AttentionDraws draws;
};

/// Barriers by their addresses. q_full: the queries of a warpgroup's unit are there; left: its results have taken their
/// place. begun: keys of the next tile are being brought.
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
