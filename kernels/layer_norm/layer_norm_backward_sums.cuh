#pragma once
// Layer norm's backward with sums over rows. The sums of a column stay with the thread that owns it
// while rows pass; so that they leave registers for the rows, a thread owns few columns, and a
// group of threads takes several rows between two barriers. Rows wider than a block are shared by
// a cluster, whose blocks exchange their parts of the row's means through distributed shared memory.

#include "kernels/column_sum/block_sums.cuh"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/layer_norm/row_dropout.cuh"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels::layer_norm_sums {

constexpr int kMaxCluster = 4, kMaxGroups = 8;

__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// A barrier in shared memory that completes a phase when arm() has been called and the announced
/// bytes have come in, in any order. Unlike the cluster's own barrier it orders nothing else: that one
/// waits for every earlier store of the block to reach the whole device.
class Mailbox {
 public:
  __device__ explicit Mailbox(uint64_t* barrier)
      : at_(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))) {}
  __device__ void begin() const {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;" ::"r"(at_)
        : "memory");
  }
  __device__ void arm(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at_), "r"(bytes)
                 : "memory");
  }
  /// Leaves a number at `place` of this block's shared memory in the block `rank` of the cluster,
  /// and tells its mailbox.
  __device__ void send(const float* place, uint32_t rank, float value) const {
    asm volatile(
        "{.reg .u32 there, box; mapa.shared::cluster.u32 there, %0, %2; "
        "mapa.shared::cluster.u32 box, %1, %2; "
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [box];}" ::"r"(
            static_cast<uint32_t>(__cvta_generic_to_shared(place))),
        "r"(at_), "r"(rank), "r"(__float_as_uint(value))
        : "memory");
  }
  __device__ void wait(uint32_t parity) const {
    asm volatile(
        "{.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(at_),
        "r"(parity)
        : "memory");
  }

 private:
  uint32_t at_;
};

/// Sums kCount values (a power of two) over a warp; lane l gets the sum of value l % kCount.
template <int kCount>
__device__ inline float scattered_sum(const float (&v)[kCount]) {
  float kept[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) kept[i] = v[i];
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = lane & static_cast<unsigned>(half);
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? kept[i] : kept[i + half];
      kept[i] = (upper ? kept[i + half] : kept[i]) +
                __shfl_xor_sync(0xffffffffu, sent, static_cast<unsigned>(half));
    }
  }
#pragma unroll
  for (int offset = kCount; offset < 32; offset *= 2)
    kept[0] += __shfl_xor_sync(0xffffffffu, kept[0], static_cast<unsigned>(offset));
  return kept[0];
}

/// What a row needs beside its elements, in shared memory for the group.
struct alignas(16) RowFacts {
  float rstd, shift;  // n = s * rstd + shift
  DropoutHash key;
  uint32_t first;  // pair of elements of the sample that the row starts with
};
/// The same on its way, with the one thread that asked for it.
template <bool kDropout>
struct RawFacts {
  float mean = 0.0f, rstd = 0.0f;
  int64_t id = 0;

  __device__ void load(const LayerNormBackward& a, int row) {
    if (row >= static_cast<int>(a.rows)) return;
    mean = a.mean[row];
    rstd = a.rstd[row];
    if constexpr (kDropout)
      id = a.dropout
               .ids[static_cast<uint32_t>(row) / static_cast<uint32_t>(a.dropout.rows_per_sample)];
  }
  __device__ void settle(const LayerNormBackward& a, int row, RowFacts& to) const {
    const bool there = row < static_cast<int>(a.rows);
    to.rstd = there ? rstd : 0.0f;  // a missing row adds zero times these
    to.shift = there ? -mean * rstd : 0.0f;
    if (!there) return;
    if constexpr (kDropout) {
      const uint32_t row_of_sample =
          static_cast<uint32_t>(row) % static_cast<uint32_t>(a.dropout.rows_per_sample);
      to.key = sample_hash(static_cast<uint64_t>(id), a.dropout.t0, a.dropout.t1);
      to.first = static_cast<uint32_t>(row_of_sample * static_cast<uint64_t>(a.columns) >> 1);
    }
  }
};

/// blockDim = (threads of a group, groups), at most kThreads. A group takes kRows rows at once, `stride` apart; the
/// next ones are on their way to shared memory. kKept: rows stay in registers between the two
/// passes, without room for d_sum; else in shared memory, where two turns of rows have their place.
template <class T, int kSums, bool kDropout, int kThreads, int kPacks, int kRows, bool kKept,
          int kBlocks, bool kCluster>
__global__ void __launch_bounds__(kThreads, kBlocks) sums_kernel(const LayerNormBackward a) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T), kDots = 2 * kRows;
  __shared__ float scratch[2][kMaxCluster * kThreads / 32 * kDots];
  __shared__ RowFacts all_facts[3][kMaxGroups][kRows];
  __shared__ uint64_t barriers[2];
  using Pack = Vec<T, kWidth>;
  const int warps = static_cast<int>(blockDim.x) / 32, group = static_cast<int>(threadIdx.y),
            lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int parts = kCluster ? static_cast<int>(cluster_size()) : 1,
            part = kCluster ? static_cast<int>(cluster_rank()) : 0;
  const int rows = static_cast<int>(a.rows),
            stride = static_cast<int>(gridDim.x / parts * blockDim.y);
  const int64_t jump = stride * a.columns;
  const bool more = !kKept && a.d_sum != nullptr,
             once = streams(a.rows * a.columns * static_cast<int64_t>(sizeof(T)));
  const int packs = static_cast<int>(a.columns / kWidth),
            own = part * static_cast<int>(blockDim.x) * kPacks + static_cast<int>(threadIdx.x);
  const auto column = [&](int p) { return (own + p * static_cast<int>(blockDim.x)) * kWidth; };
  const auto holds = [&](int p) { return own + p * static_cast<int>(blockDim.x) < packs; };

  char* const ring = shared + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
  constexpr int kStages = kKept ? 1 : 2;
  const auto slot = [&](int input, int stage, int r, int p) {
    return ring + (((input * kStages + stage) * kRows + r) * kPacks + p) * kThreads * 16;
  };
  const auto ask = [&](int input, int stage, const void* from, int r, int p, int64_t at, int left) {
    if (r * stride < left && holds(p))
      copy_async16(slot(input, stage, r, p),
                   static_cast<const T*>(from) + at + r * jump + column(p));
  };
  const auto take = [&](int input, int stage, int r, int p) {
    return *reinterpret_cast<const Words<4>*>(slot(input, stage, r, p));
  };

  int row = static_cast<int>(blockIdx.x / parts * blockDim.y) + group;
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
        if (more) ask(2, stage, a.d_sum, r, p, first, left);
      }
    copy_async_commit();
  }
  // A thread for each row: what it asks for in one turn it settles in the next, before the barrier,
  // for the turn after.
  RawFacts<kDropout> raw;
  if (threadIdx.x < kRows) {
    const int first = row + static_cast<int>(threadIdx.x) * stride;
    raw.load(a, first);
    raw.settle(a, first, all_facts[0][group][threadIdx.x]);
    raw.load(a, first + kRows * stride);
  }
  Words<4> gamma[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    gamma[p] = {};
    if (holds(p))
      gamma[p] = as_words(load_shared_read<T, kWidth>(static_cast<const T*>(a.gamma) + column(p)));
  }
  float sums[kSums][kPacks][kWidth] = {};
  int turn = 0, facts_turn = 0;
  uint32_t parity = 0;
  if (kCluster && threadIdx.x < 2) Mailbox(&barriers[threadIdx.x]).begin();
  __syncthreads();
  if constexpr (kCluster) cluster_barrier();  // nobody writes to a block that has not begun

  for (; row < rows; row += kRows * stride, at += kRows * jump, turn ^= 1) {
    const int left = rows - row, next_left = left - kStages * kRows * stride;
    const int stage = kKept ? 0 : turn;
    copy_async_wait<kStages - 1>();
    const RowFacts* const facts = all_facts[facts_turn][group];
    facts_turn = facts_turn == 2 ? 0 : facts_turn + 1;
    if (threadIdx.x < kRows)
      raw.settle(a, row + (kRows + static_cast<int>(threadIdx.x)) * stride,
                 all_facts[facts_turn][group][threadIdx.x]);
    Words<4> dy[kKept ? kRows : 1][kKept ? kPacks : 1], s[kKept ? kRows : 1][kKept ? kPacks : 1];
    float dots[kDots] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float rstd = facts[r].rstd, shift = facts[r].shift;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float g[kWidth], n[kWidth], w[kWidth];
        if constexpr (kKept) {
          dy[r][p] = {}, s[r][p] = {};
          if (r * stride < left && holds(p))
            dy[r][p] = take(0, 0, r, p), s[r][p] = take(1, 0, r, p);
          ask(0, 0, a.dy, r, p, at + kRows * jump, next_left);
          ask(1, 0, a.sum, r, p, at + kRows * jump, next_left);
          to_floats(as_pack<T>(dy[r][p]), g);
          to_floats(as_pack<T>(s[r][p]), n);
        } else {
          if (r * stride >= left || !holds(p)) continue;
          to_floats(as_pack<T>(take(0, stage, r, p)), g);
          to_floats(as_pack<T>(take(1, stage, r, p)), n);
        }
        to_floats(packed(as_pack<T>(gamma[p])), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          n[i] = fmaf(n[i], rstd, shift);
          sums[0][p][i] = fmaf(g[i], n[i], sums[0][p][i]);
          sums[1][p][i] += g[i];
          g[i] *= w[i];
          dots[r] += g[i];
          dots[kRows + r] = fmaf(g[i], n[i], dots[kRows + r]);
        }
      }
    }
    const float mine = scattered_sum(dots);
    if constexpr (!kCluster) {
      if (lane < kDots) scratch[turn][(group * warps + warp) * kDots + lane] = mine;
      if (warps == 1)
        __syncwarp();
      else
        asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(static_cast<int>(blockDim.x))
                     : "memory");
    } else {
      // Nobody is still reading what these overwrite: a warp sends after it has read the totals of
      // the turn before, and this block has waited for that turn's numbers of all warps. Nobody has
      // left either: each waits for all that it is sent.
      const Mailbox mailbox(&barriers[turn]);
      __syncwarp();  // the next rows' facts are in place when the first thread says so
      if (threadIdx.x == 0)
        mailbox.arm(static_cast<uint32_t>(parts * warps * kDots * static_cast<int>(sizeof(float))));
      if (lane < kDots) {
        for (int to = 0; to < parts; ++to)
          mailbox.send(&scratch[turn][(part * warps + warp) * kDots + lane],
                       static_cast<uint32_t>(to), mine);
      }
      mailbox.wait(parity);
      parity ^= static_cast<uint32_t>(turn);
    }
    if (threadIdx.x < kRows)
      raw.load(a, row + (2 * kRows + static_cast<int>(threadIdx.x)) * stride);
    float total = 0.0f;
    for (int w = lane / kDots; w < warps * parts; w += 32 / kDots)
      total += scratch[turn][(group * warps + w) * kDots + lane % kDots];
#pragma unroll
    for (int offset = kDots; offset < 32; offset *= 2)
      total += __shfl_xor_sync(0xffffffffu, total, offset);
    total *= __fdividef(1.0f, static_cast<float>(a.columns));

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float g_mean = __shfl_sync(0xffffffffu, total, r),
                  gn_mean = __shfl_sync(0xffffffffu, total, kRows + r);
      if (r * stride >= left) break;
      // ds = rstd * (g - mean(g) - n * mean(g n)) = rstd * g + slope * s + level
      const float rstd = facts[r].rstd, slope = -rstd * rstd * gn_mean,
                  level = -rstd * fmaf(gn_mean, facts[r].shift, g_mean);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!holds(p)) continue;
        float g[kWidth], v[kWidth], w[kWidth];
        if constexpr (kKept) {
          to_floats(packed(as_pack<T>(dy[r][p])), g);
          to_floats(packed(as_pack<T>(s[r][p])), v);
        } else {
          to_floats(packed(as_pack<T>(take(0, stage, r, p))), g);
          to_floats(packed(as_pack<T>(take(1, stage, r, p))), v);
          ask(0, stage, a.dy, r, p, at + 2 * kRows * jump, next_left);
          ask(1, stage, a.sum, r, p, at + 2 * kRows * jump, next_left);
        }
        to_floats(packed(as_pack<T>(gamma[p])), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] = fmaf(g[i] * w[i], rstd, fmaf(v[i], slope, level));
        if (more) {
          to_floats(as_pack<T>(take(2, stage, r, p)), w);
          ask(2, stage, a.d_sum, r, p, at + kStages * kRows * jump, next_left);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) g[i] += w[i];
        }
        Pack out = from_floats<T>(g);
        const int64_t to = at + r * jump + column(p);
        if (a.ds != nullptr) store_whole(static_cast<T*>(a.ds) + to, out, once);
        if constexpr (kDropout) {
          to_floats(out, g);
          apply_dropout(g, facts[r].key, facts[r].first + static_cast<uint32_t>(column(p)) / 2,
                        a.dropout.threshold, a.dropout.scale);
          out = from_floats<T>(g);
          if (a.dx != nullptr) store_whole(static_cast<T*>(a.dx) + to, out, once);
        }
        if constexpr (kSums == 3) {
          to_floats(out, g);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) sums[2][p][i] += g[i];
        }
      }
    }
    copy_async_commit();
  }

  copy_async_wait<0>();
  leave_sums(sums, column, holds, static_cast<int>(a.columns), reinterpret_cast<float*>(shared),
             a.workspace + blockIdx.x / parts * kSums * a.columns);
}

}  // namespace trireme::kernels::layer_norm_sums
