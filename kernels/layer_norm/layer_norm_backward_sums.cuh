#pragma once
// The kernel for rows of one pack per thread: they stay in registers for both passes over the row.

#include "kernels/layer_norm/layer_norm_backward_parts.cuh"

namespace trireme::kernels::layer_norm_sums {

/// blockDim = (threads of a group, groups), at most kThreads; each thread has one pack of a row. A group processes
/// kRows rows at once, `stride` apart, while the next ones are copied to shared memory. No d_sum.
template <class T, int kSums, bool kDropout, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads) sums_kernel(const LayerNormBackward a) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T), kDots = 2 * kRows;
  __shared__ float scratch[2][kThreads / 32 * kDots];
  __shared__ RowFacts all_facts[4][kMaxGroups][kRows];
  const int warps = static_cast<int>(blockDim.x) / 32, group = static_cast<int>(threadIdx.y),
            lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = static_cast<int>(a.rows), stride = static_cast<int>(gridDim.x * blockDim.y);
  const int jump = stride * static_cast<int>(a.columns);  // a block has at most kThreads packs
  const Outputs outputs = Outputs::of<T, kDropout>(a);
  const int column = static_cast<int>(threadIdx.x) * kWidth;
  const bool mine = column < static_cast<int>(a.columns);

  char* const ring = shared + (threadIdx.y * blockDim.x + threadIdx.x) * 16;
  const auto slot = [&](int input, int r) { return ring + (input * kRows + r) * kThreads * 16; };
  // Loads the pack of row r of a turn. `first`: the element where the turn's first row starts; `left`: number of rows
  // from that row on.
  const auto ask = [&](int input, const void* from, int r, int64_t first, int left) {
    if (r * stride < left && mine)
      copy_async16(slot(input, r), static_cast<const T*>(from) + first + r * jump + column);
  };
  const auto take = [&](int input, int r) { return *reinterpret_cast<const Words<4>*>(slot(input, r)); };

  int row = static_cast<int>(blockIdx.x * blockDim.y) + group;
  int64_t at = row * a.columns;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    ask(0, a.dy, r, at, rows - row);
    ask(1, a.sum, r, at, rows - row);
  }
  copy_async_commit();
  // One thread for each row of a turn: it loads the facts in one turn and converts them in the next, before the
  // barrier, for the turn after that.
  RawFacts<kDropout> raw;
  if (threadIdx.x < kRows) {
    const int first = row + static_cast<int>(threadIdx.x) * stride;
    raw.load(a, first);
    raw.settle(a, first, all_facts[0][group][threadIdx.x]);
    raw.load(a, first + kRows * stride);
  }
  Words<4> gamma = {};
  if (mine) gamma = as_words(load_shared_read<T, kWidth>(static_cast<const T*>(a.gamma) + column));
  float sums[kSums][1][kWidth] = {};
  __syncthreads();

  for (int turn = 0; row < rows; row += kRows * stride, at += kRows * jump, ++turn) {
    const int left = rows - row, ask_left = left - kRows * stride;
    const int64_t ask_at = at + kRows * jump;
    copy_async_wait<0>();
    const RowFacts* const facts = all_facts[turn % 4][group];
    if (threadIdx.x < kRows)
      raw.settle(a, row + (kRows + static_cast<int>(threadIdx.x)) * stride,
                 all_facts[(turn + 1) % 4][group][threadIdx.x]);
    Words<4> dy[kRows], s[kRows];
    float dots[kDots] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float g[kWidth], n[kWidth], w[kWidth];
      dy[r] = {}, s[r] = {};
      if (r * stride < left && mine) dy[r] = take(0, r), s[r] = take(1, r);
      ask(0, a.dy, r, ask_at, ask_left);
      ask(1, a.sum, r, ask_at, ask_left);
      to_floats(as_pack<T>(dy[r]), g);
      to_floats(as_pack<T>(s[r]), n);
      to_floats(packed(as_pack<T>(gamma)), w);
      sum_pack(g, n, w, facts[r].rstd, facts[r].shift, sums[0][0], sums[1][0], dots[r], dots[kRows + r]);
    }
    const float own = scattered_sum(dots);
    if (lane < kDots) scratch[turn % 2][(group * warps + warp) * kDots + lane] = own;
    if (warps == 1)
      __syncwarp();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(static_cast<int>(blockDim.x)) : "memory");
    if (threadIdx.x < kRows) raw.load(a, row + (2 * kRows + static_cast<int>(threadIdx.x)) * stride);
    const float means = row_means<kDots>(scratch[turn % 2] + group * warps * kDots, warps, a.columns);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float g_mean = __shfl_sync(0xffffffffu, means, r), gn_mean = __shfl_sync(0xffffffffu, means, kRows + r);
      if (r * stride >= left) break;
      if (!mine) continue;
      const RowSlope slope(facts[r], g_mean, gn_mean);
      float g[kWidth], v[kWidth], w[kWidth];
      to_floats(packed(as_pack<T>(dy[r])), g);
      to_floats(packed(as_pack<T>(s[r])), v);
      to_floats(packed(as_pack<T>(gamma)), w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) g[i] = fmaf(g[i] * w[i], slope.rstd, fmaf(v[i], slope.slope, slope.level));
      leave_pack<T, kDropout, kSums == 3>(a, g, at + r * jump + column, facts[r], column, outputs, sums[kSums - 1][0]);
    }
    copy_async_commit();
  }

  copy_async_wait<0>();
  leave_sums(
      sums, [&](int) { return column; }, [&](int) { return mine; }, static_cast<int>(a.columns),
      reinterpret_cast<float*>(shared), a.workspace + blockIdx.x * kSums * a.columns);
}

}  // namespace trireme::kernels::layer_norm_sums
