#pragma once
// The kernel for rows that do not fit into registers: they stay in shared memory. The sums that a turn's second pass
// needs from all threads are exchanged while the next turn's first pass runs. A row wider than a block is shared by a
// cluster, whose blocks exchange their parts of the row's means.

#include "kernels/cluster.cuh"
#include "kernels/layer_norm/layer_norm_backward_parts.cuh"

namespace trireme::kernels::layer_norm_sums {

constexpr int kStages = 3;

/// kThreads of the variant for GPUs without clusters, with one pack per thread and less than 99 KiB of shared memory.
/// The image for sm_90a has the other variants, all other images have this one.
constexpr int kPortableThreads = kPortablePacks;
#ifdef TRIREME_SM90A
constexpr bool kBuildsPortable = false;
#else
constexpr bool kBuildsPortable = true;
#endif

/// blockDim = (threads of a group, groups), at most kThreads. A row is shared by kParts blocks; if kParts > 1 each
/// block has one group. kMore: with d_sum. A group processes kRows rows at once, `stride` apart. Its iteration t makes
/// the first pass over the rows of turn t + 1 and the second pass over those of turn t, while the rows of turn t + 2
/// are in flight; the rows of turn t + 3 replace those of turn t. A group's threads may be two iterations apart, which
/// determines the numbers of buffers.
template <class T, int kSums, bool kDropout, int kThreads, int kPacks, int kRows, int kBlocks, int kParts, bool kMore>
__global__ void __launch_bounds__(kThreads, kBlocks) pipelined_kernel(const LayerNormBackward a) {
  if constexpr ((kThreads == kPortableThreads) != kBuildsPortable) return;
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  constexpr bool kCluster = kParts > 1;
  constexpr int kWidth = 16 / sizeof(T), kDots = 2 * kRows, kBarriers = 4, kFacts = 8, kWarps = kThreads / 32;
  __shared__ float scratch[kBarriers][kParts * kWarps * kDots];
  __shared__ RowFacts all_facts[kFacts][kCluster ? 1 : kMaxGroups][kRows];
  __shared__ uint64_t barriers[kBarriers][kCluster ? 1 : kMaxGroups];
  const int warps = static_cast<int>(blockDim.x) / 32, group = kCluster ? 0 : static_cast<int>(threadIdx.y),
            lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int part = kCluster ? static_cast<int>(cluster_rank()) : 0;
  const int rows = static_cast<int>(a.rows),
            stride = static_cast<int>(gridDim.x / kParts * (kCluster ? 1 : blockDim.y));
  const int64_t jump = stride * a.columns;
  const Outputs outputs = Outputs::of<T, kDropout>(a);
  Codes<T, false> codes;
  const int packs = static_cast<int>(a.columns / kWidth),
            own = part * static_cast<int>(blockDim.x) * kPacks + static_cast<int>(threadIdx.x);
  const auto column = [&](int p) { return (own + p * static_cast<int>(blockDim.x)) * kWidth; };
  const auto holds = [&](int p) { return own + p * static_cast<int>(blockDim.x) < packs; };

  char* const ring = shared + (group * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 16;
  const auto slot = [&](int input, int stage, int r, int p) {
    return ring + (((input * kStages + stage) * kRows + r) * kPacks + p) * kThreads * 16;
  };
  // Loads pack p of row r of a turn. `first`: the element where the turn's first row starts; `left`: number of rows
  // from that row on.
  const auto ask = [&](int input, int stage, const void* from, int r, int p, int64_t first, int left) {
    if (r * stride < left && holds(p))
      copy_async16(slot(input, stage, r, p), static_cast<const T*>(from) + first + r * jump + column(p));
  };
  const auto take = [&](int input, int stage, int r, int p) {
    return *reinterpret_cast<const Words<4>*>(slot(input, stage, r, p));
  };

  int row = static_cast<int>(blockIdx.x / kParts * (kCluster ? 1 : blockDim.y)) + group;
  int64_t at = row * a.columns;
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t first = at + stage * kRows * jump;
        const int left = rows - row - stage * kRows * stride;
        ask(0, stage, a.dy, r, p, first, left);
        ask(1, stage, a.sum, r, p, first, left);
        if constexpr (kMore) ask(2, stage, a.d_sum, r, p, first, left);
      }
    copy_async_commit();
  }
  // One thread for each row of a turn. It converts the facts of a turn before it signals the sums of two turns earlier,
  // and loads them one iteration before that.
  RawFacts<kDropout> raw;
  const auto facts_row = [&](int turn) { return row + (turn * kRows + static_cast<int>(threadIdx.x)) * stride; };
  if (threadIdx.x < kRows) {
    RawFacts<kDropout> first[3];
#pragma unroll
    for (int turn = 0; turn < 3; ++turn) first[turn].load(a, facts_row(turn));
#pragma unroll
    for (int turn = 0; turn < 3; ++turn) first[turn].settle(a, facts_row(turn), all_facts[turn][group][threadIdx.x]);
    raw.load(a, facts_row(3));
  }
  Words<4> gamma[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    gamma[p] = {};
    if (holds(p)) gamma[p] = as_words(load_shared_read<T, kWidth>(static_cast<const T*>(a.gamma) + column(p)));
  }
  float sums[kSums][kPacks][kWidth] = {};
  // The loop makes this a branch: with a predicated initialisation racecheck takes the address from threads that
  // execute none.
  if (threadIdx.x == 0)
    for (auto& turns : barriers) TransactionBarrier(&turns[group]).init(kCluster ? 1 : 32 * warps);
  if constexpr (kCluster)  // zero for the warps that a narrow row does not have
    for (int i = static_cast<int>(threadIdx.x); i < kBarriers * kParts * kWarps * kDots;
         i += static_cast<int>(blockDim.x))
      (&scratch[0][0])[i] = 0.0f;
  __syncthreads();
  if constexpr (kCluster) cluster_barrier();  // no block may write to a block that has not started

  // The first pass over the rows of a turn; its sums go to all blocks of the cluster.
  const auto sum_rows = [&](int turn, int stage, int left) {
    const RowFacts* const facts = all_facts[turn % kFacts][group];
    float dots[kDots] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float rstd = facts[r].rstd, shift = facts[r].shift;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (r * stride >= left || !holds(p)) continue;
        float g[kWidth], n[kWidth], w[kWidth];
        to_floats(as_pack<T>(take(0, stage, r, p)), g);
        to_floats(as_pack<T>(take(1, stage, r, p)), n);
        to_floats(packed(as_pack<T>(gamma[p])), w);
        sum_pack(g, n, w, rstd, shift, sums[0][p], sums[1][p], dots[r], dots[kRows + r]);
      }
    }
    const float mine = scattered_sum(dots);
    const TransactionBarrier barrier(&barriers[turn % kBarriers][group]);
    float* const place =
        &scratch[turn % kBarriers][(kCluster ? part * kWarps + warp : group * warps + warp) * kDots + lane];
    if (!kCluster && lane < kDots) *place = mine;
    __syncwarp();  // orders these sums and the converted facts before the first thread's signal
    if constexpr (kCluster) {
      if (threadIdx.x == 0)
        barrier.arm(static_cast<uint32_t>(kParts * warps * kDots * static_cast<int>(sizeof(float))));
      if (lane < kDots) {
#pragma unroll
        for (int to = 0; to < kParts; ++to) barrier.send(place, static_cast<uint32_t>(to), mine);
      }
    } else {  // every thread arrives: racecheck credits an arrival with the lane's own writes only
      barrier.arrive();
    }
  };
  if (row < rows) {
    copy_async_wait<kStages - 1>();
    sum_rows(0, 0, rows - row);
  }

  for (int turn = 0, stage = 0; row < rows; ++turn, row += kRows * stride, at += kRows * jump) {
    const int left = rows - row, after = stage == kStages - 1 ? 0 : stage + 1,
              ask_left = left - kStages * kRows * stride;
    const int64_t ask_at = at + kStages * kRows * jump;
    copy_async_wait<kStages - 2>();
    if (threadIdx.x < kRows) raw.settle(a, facts_row(3), all_facts[(turn + 3) % kFacts][group][threadIdx.x]);
    if (kRows * stride < left) sum_rows(turn + 1, after, left - kRows * stride);
    if (threadIdx.x < kRows) raw.load(a, facts_row(4));

    TransactionBarrier(&barriers[turn % kBarriers][group]).wait(static_cast<uint32_t>(turn / kBarriers) & 1);
    constexpr int kCount = kCluster ? kParts * kWarps : 0;
    const float means = row_means<kDots, kCount>(scratch[turn % kBarriers] + group * warps * kDots,
                                                 kCluster ? kCount : warps, a.columns);
    const RowFacts* const facts = all_facts[turn % kFacts][group];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float g_mean = __shfl_sync(0xffffffffu, means, r), gn_mean = __shfl_sync(0xffffffffu, means, kRows + r);
      if (r * stride >= left) break;
      const RowSlope slope(facts[r], g_mean, gn_mean);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!holds(p)) continue;
        float g[kWidth], v[kWidth], w[kWidth];
        to_floats(as_pack<T>(take(0, stage, r, p)), g);
        to_floats(as_pack<T>(take(1, stage, r, p)), v);
        ask(0, stage, a.dy, r, p, ask_at, ask_left);
        ask(1, stage, a.sum, r, p, ask_at, ask_left);
        to_floats(packed(as_pack<T>(gamma[p])), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] = fmaf(g[i] * w[i], slope.rstd, fmaf(v[i], slope.slope, slope.level));
        if constexpr (kMore) {
          to_floats(as_pack<T>(take(2, stage, r, p)), w);
          ask(2, stage, a.d_sum, r, p, ask_at, ask_left);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) g[i] += w[i];
        }
        leave_pack<T, kDropout, kSums == 3, false>(a, g, at + r * jump + column(p), facts[r], column(p), outputs, codes,
                                                   sums[kSums - 1][p]);
      }
    }
    copy_async_commit();
    stage = after;
  }

  copy_async_wait<0>();
  leave_sums(sums, column, holds, static_cast<int>(a.columns), reinterpret_cast<float*>(shared),
             a.workspace + blockIdx.x / kParts * kSums * a.columns);
}

}  // namespace trireme::kernels::layer_norm_sums
