#include "kernels/layer_norm/layer_norm_backward_pipelined.cuh"

namespace trireme::kernels::layer_norm_sums {

/// The kernel for rows of one pack per thread: they stay in registers for both passes over the row.
///
/// blockDim = (threads of a group, groups), at most kThreads; each thread has one pack of a row. A group processes
/// kRows rows at once, `stride` apart, while the next ones are copied to shared memory. kMore: with d_sum; kCodes:
/// codes in place of dx.
template <class T, int kSums, bool kDropout, int kThreads, int kRows, bool kMore, bool kCodes>
__global__ void __launch_bounds__(kThreads) sums_kernel(const LayerNormBackward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  constexpr int kWidth = 16 / sizeof(T), kDots = 2 * kRows;
  __shared__ float scratch[2][kThreads / 32 * kDots];
  __shared__ RowFacts all_facts[4][kMaxGroups][kRows];
  const int warps = static_cast<int>(blockDim.x) / 32, group = static_cast<int>(threadIdx.y),
            lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int rows = static_cast<int>(a.rows), stride = static_cast<int>(gridDim.x * blockDim.y);
  const int jump = stride * static_cast<int>(a.columns);  // a block has at most kThreads packs
  const Outputs outputs = kCodes ? Outputs() : Outputs::of<T, kDropout>(a);
  Codes<T, kCodes> codes;
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
    if constexpr (kMore) ask(2, a.d_sum, r, at, rows - row);
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
    [[maybe_unused]] Words<4> more[kRows];
    float dots[kDots] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float g[kWidth], n[kWidth], w[kWidth];
      dy[r] = {}, s[r] = {};
      if (r * stride < left && mine) {
        dy[r] = take(0, r), s[r] = take(1, r);
        if constexpr (kMore) more[r] = take(2, r);
      }
      ask(0, a.dy, r, ask_at, ask_left);
      ask(1, a.sum, r, ask_at, ask_left);
      if constexpr (kMore) ask(2, a.d_sum, r, ask_at, ask_left);
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
      if constexpr (kMore) {
        to_floats(packed(as_pack<T>(more[r])), w);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] += w[i];
      }
      leave_pack<T, kDropout, kSums == 3, kCodes>(a, g, at + r * jump + column, facts[r], column, outputs, codes,
                                                  sums[kSums - 1][0]);
    }
    copy_async_commit();
  }

  codes.finish(a);
  copy_async_wait<0>();
  leave_sums(
      sums, [&](int) { return column; }, [&](int) { return mine; }, static_cast<int>(a.columns),
      reinterpret_cast<float*>(shared), a.workspace + blockIdx.x * kSums * a.columns);
}

}  // namespace trireme::kernels::layer_norm_sums

namespace trireme::kernels {

namespace {

using namespace layer_norm_sums;

/// partials: receives the number of partial rows that the kernel writes, at most a.rows and at most
/// kLayerNormBlocksPerSm per multiprocessor. A row has at most kThreads packs.
template <class T, int kSums, bool kDropout, int kThreads, int kRows, bool kMore = false, bool kCodes = false>
cudaError_t launch_sums(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const auto kernel = sums_kernel<T, kSums, kDropout, kThreads, kRows, kMore, kCodes>;
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  const int threads = static_cast<int>(ceil_div(packs, 32) * 32), fit = kThreads / threads,
            groups = fit > kMaxGroups ? kMaxGroups : fit;
  const size_t inputs = size_t{kMore ? 3 : 2} * kRows * kThreads * 16,
               sums = block_sums_bytes(groups, a.columns, kSums), bytes = inputs > sums ? inputs : sums;
  if (const cudaError_t error = allow_shared_memory(kernel, bytes); error != cudaSuccess) return error;
  *partials = resident_blocks(kernel, threads * groups, bytes, kLayerNormBlocksPerSm, ceil_div(a.rows, groups));
  return launch_behind(kernel, dim3(static_cast<unsigned>(*partials)),
                       dim3(static_cast<unsigned>(threads), static_cast<unsigned>(groups)), bytes, stream, a);
}

/// The same for pipelined_kernel; a row has at most kThreads * kPacks * kParts packs.
template <class T, int kSums, bool kDropout, int kThreads, int kPacks, int kRows, int kBlocks, int kParts, bool kMore>
cudaError_t launch_pipelined(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const auto kernel = pipelined_kernel<T, kSums, kDropout, kThreads, kPacks, kRows, kBlocks, kParts, kMore>;
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  const int threads = static_cast<int>(ceil_div(ceil_div(packs, kParts * kPacks), 32) * 32), fit = kThreads / threads,
            groups = kParts > 1         ? 1
                     : fit > kMaxGroups ? kMaxGroups
                                        : fit;
  if (fit < 1) return cudaErrorInvalidValue;
  const size_t inputs = static_cast<size_t>(kMore ? 3 : 2) * kStages * kRows * kPacks * kThreads * 16,
               sums = block_sums_bytes(groups, a.columns, kSums), bytes = inputs > sums ? inputs : sums;
  if constexpr (kParts > 1) return launch_clusters(kernel, a, a.rows, kParts, threads, bytes, partials, stream);
  if (const cudaError_t error = allow_shared_memory(kernel, bytes); error != cudaSuccess) return error;
  *partials = resident_blocks(kernel, threads * groups, bytes, kLayerNormBlocksPerSm, ceil_div(a.rows, groups));
  return launch_behind(kernel, dim3(static_cast<unsigned>(*partials)),
                       dim3(static_cast<unsigned>(threads), static_cast<unsigned>(groups)), bytes, stream, a);
}

/// With a third input, shared memory holds half as many rows at once.
template <class T, int kSums, bool kDropout, int kParts>
cudaError_t launch_pipelined(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  if (a.d_sum != nullptr) return launch_pipelined<T, kSums, kDropout, 512, 2, 1, 1, kParts, true>(a, partials, stream);
  return launch_pipelined<T, kSums, kDropout, 512, 2, 2, 1, kParts, false>(a, partials, stream);
}

/// The fastest choice measured on an H200, as far as other GPUs have it. A row of one pack per thread stays in
/// registers between the two passes, four rows at once, or two if a row is as wide as a block or with d_sum. Wider rows
/// stay in shared memory, and the widest are shared by a cluster.
template <class T, int kSums, bool kDropout>
cudaError_t launch(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  const int64_t packs = a.columns / (16 / static_cast<int>(sizeof(T)));
  if constexpr (sizeof(T) == 2) {
    if constexpr (kSums == 3 && kDropout)
      if (a.codes != nullptr) return launch_sums<T, 3, true, 512, 4, false, true>(a, partials, stream);
    if (a.d_sum != nullptr) {
      if (packs <= 512) return launch_sums<T, kSums, kDropout, 512, 2, true>(a, partials, stream);
      if constexpr (kSums == 2)
        if (packs <= 640) return launch_sums<T, 2, kDropout, 640, 2, true>(a, partials, stream);
    } else {
      if (packs <= 256) return launch_sums<T, kSums, kDropout, 512, 4>(a, partials, stream);
      if (packs <= 512) return launch_sums<T, kSums, kDropout, 512, 2>(a, partials, stream);
      if (packs <= 640) return launch_sums<T, kSums, kDropout, 640, 2>(a, partials, stream);
      if (runs_sm90a()) {
        if (packs <= 1024) return launch_pipelined<T, kSums, kDropout, 512, 1, 4, 1, 2, false>(a, partials, stream);
        if constexpr (kSums == 2) return launch_pipelined<T, 2, kDropout, 256, 1, 4, 2, 8, false>(a, partials, stream);
      }
    }
  }
  if (!runs_sm90a())
    return a.d_sum != nullptr
               ? launch_pipelined<T, kSums, kDropout, kPortableThreads, 1, 1, 1, 1, true>(a, partials, stream)
               : launch_pipelined<T, kSums, kDropout, kPortableThreads, 1, 1, 1, 1, false>(a, partials, stream);
  if (packs <= 1024) return launch_pipelined<T, kSums, kDropout, 1>(a, partials, stream);
  // An fp32 row of kMaxColumns has 4,096 packs, a 16-bit row half as many.
  constexpr int kParts = sizeof(T) == 2 ? 2 : 4;
  return launch_pipelined<T, kSums, kDropout, kParts>(a, partials, stream);
}

}  // namespace

cudaError_t layer_norm_backward_sums(const LayerNormBackward& a, int64_t* partials, cudaStream_t stream) {
  // The kernel counts rows, including those that it prefetches, in 32 bits.
  if (a.rows > INT32_MAX - (1 << 20)) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    const bool dropout = a.dropout.ids != nullptr;
    if (a.d_bias != nullptr)
      return dropout ? launch<T, 3, true>(a, partials, stream) : launch<T, 3, false>(a, partials, stream);
    return dropout ? launch<T, 2, true>(a, partials, stream) : launch<T, 2, false>(a, partials, stream);
  });
}

}  // namespace trireme::kernels
