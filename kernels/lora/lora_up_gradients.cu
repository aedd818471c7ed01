#include "kernels/hopper.cuh"
#include "kernels/launch.h"
#include "kernels/lora/lora.h"
#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

constexpr int kWarps = 16;
constexpr int kWarpColumns = 64;
constexpr int kRows = 16;    // of a run
constexpr int kGroup = 16;   // ranks of a warp
constexpr int kStages = 2;   // runs of a phase; the same number is in flight to each warp
constexpr int kBuffers = 3;  // phases whose parts of d are in shared memory
constexpr int kRunSums = kRows * kGroup;
constexpr size_t kShared = sizeof(float) * kBuffers * kStages * kWarps * kRunSums;

/// Number of warps in a block with the same ranks; they divide the block's columns among them.
template <int kRank>
constexpr int kSlices = kWarps / (kRank / kGroup);

int64_t block_columns(int rank) { return kWarps / (rank / kGroup) * kWarpColumns; }

struct Plan {
  int64_t column_blocks, parts;  // a block has block_columns() columns and every parts-th run of tokens
};

/// A multiprocessor holds one block only; `parts` is chosen for the lowest cost over one to three waves of blocks.
Plan plan_of(const LoraUpProducts& p) {
  constexpr int64_t kOverhead = 8,
                    kFewest = 4;  // in runs: the cost of a block's start and its write of dB; the fewest runs per block
  const int64_t runs = p.tokens / kRows, column_blocks = ceil_div(p.columns, block_columns(p.rank));
  const int64_t slots = multiprocessors() > 0 ? multiprocessors() : 1;
  Plan best = {};
  int64_t best_cost = 0;
  for (int64_t waves = 1; waves <= 3; ++waves) {
    const int64_t wanted = waves * slots / column_blocks;
    int64_t part_runs = ceil_div(runs, wanted > 1 ? wanted : 1);
    if (part_runs < kFewest) part_runs = kFewest < runs ? kFewest : runs;
    const int64_t parts = ceil_div(runs, part_runs),
                  cost = ceil_div(column_blocks * parts, slots) * (part_runs + kOverhead);
    if (waves == 1 || cost < best_cost) best = {column_blocks, parts}, best_cost = cost;
  }
  return best;
}

/// Partial sums in the workspace: d [column block][token][rank], then dB [part][column][rank].
struct Partial {
  float *d, *db;
  int64_t d_floats, db_floats;  // floats per column block; floats per part
};

Partial partial_of(const LoraUpProducts& p, const Plan& plan) {
  float* const d = static_cast<float*>(p.workspace);
  const int64_t d_floats = p.tokens * p.rank;
  return {d, d == nullptr ? nullptr : d + plan.column_blocks * d_floats, d_floats, p.columns * p.rank};
}

/// Block: kSlices * 64 columns, every gridDim.y-th run of 16 tokens, last tokens first, because those are in L2 if dy
/// was just written. A warp has 64 of the columns and 16 ranks. It keeps the sums of dB in registers over all runs and
/// puts the sums of d into shared memory after each run. The block's warps add these up one phase later, so that no
/// warp waits for another one's loads before it has issued its own next loads.
template <class T, int kRank>
__global__ void __launch_bounds__(kWarps * 32, 1)
    gradients_kernel(const __grid_constant__ LoraUpProducts p, const __grid_constant__ Partial out) {
  constexpr int kGroups = kRank / kGroup, kAlike = kSlices<kRank>;
  extern __shared__ float4 shared[];  // [buffer][run of the phase][group][slice][token][rank]
  __shared__ uint64_t barrier_storage;
  float* const sums = reinterpret_cast<float*>(shared);
  const uint32_t barrier = hopper::shared_address(&barrier_storage);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = warp % kGroups, slice = warp / kGroups;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (kAlike * kWarpColumns) + slice * kWarpColumns;
  const bool has[2] = {column < p.columns, column + 32 < p.columns};  // per half of the 64 columns
  const int step = static_cast<int>(gridDim.y),
            last_run = static_cast<int>(p.tokens / kRows) - 1 - static_cast<int>(blockIdx.y);
  const int runs = last_run / step + 1;  // of this block; run i is run last_run - i * step of the tokens
  if (threadIdx.x == 0) hopper::barrier_init(barrier, kWarps * 32);
  __syncthreads();

  // This thread's columns are 8t to 8t + 7 of each half, which are four words; its tokens are g and g + 8; its ranks,
  // like those of its results, are 4t to 4t + 3.
  struct Stage {
    Words<4> dy[2][2];  // [half of the columns][token]
    uint2 t[2];
  };
  Stage stage[kStages] = {};
  const int64_t first_row = static_cast<int64_t>(last_run) * kRows + g, back = static_cast<int64_t>(step) * kRows;
  const T* dy = static_cast<const T*>(p.dy) + first_row * p.stride + column + 8 * t;
  const T* t_row = static_cast<const T*>(p.t) + first_row * kRank + group * kGroup + 4 * t;
  const auto load_next = [&](Stage& to) {
#pragma unroll
    for (int token = 0; token < 2; ++token) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        // If there are several groups, all but the first find this in L1.
        if (has[h])
          to.dy[h][token] = kGroups == 1 ? load_words(dy + 32 * h) : as_words(load_shared_read<T, 8>(dy + 32 * h));
      to.t[token] = __ldg(reinterpret_cast<const uint2*>(t_row));
      dy += 8 * p.stride;
      t_row += 8 * kRank;
    }
    dy -= (back + kRows) * p.stride;
    t_row -= (back + kRows) * kRank;
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s)
    if (s < runs) load_next(stage[s]);

  // The row of B, and of its gradient, that this thread reads and writes for word 2m + w of a half.
  const auto b_row = [&](int h, int m, int w) { return column + 32 * h + 8 * (g / 2) + 4 * m + 2 * w + g % 2; };
  // B for the k of words 2m and 2m + 1; column g of tile j is rank 4 (g / 2) + 2j + g % 2.
  uint32_t b[2][2][2][2] = {};  // [half][m][tile][word]
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (has[h])
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const uint2 words = __ldg(reinterpret_cast<const uint2*>(static_cast<const T*>(p.b) + b_row(h, m, w) * kRank +
                                                                   group * kGroup + 4 * t));
          b[h][m][0][w] = transposed(words.x);
          b[h][m][1][w] = transposed(words.y);
        }

  // Adds d over this block's columns for the phase that begins with run `first`.
  const auto add_up = [&](int first, int buffer) {
#pragma unroll 1
    for (int i = 0; i < kGroups; ++i) {
      const int at = i * kWarps * 32 + static_cast<int>(threadIdx.x), e = at % kRunSums, of = at / kRunSums % kGroups,
                run = at / (kRunSums * kGroups);
      if (first + run >= runs) continue;
      const float* const from = sums + ((buffer * kStages + run) * kGroups + of) * kAlike * kRunSums + e;
      float total = 0;
#pragma unroll
      for (int s = 0; s < kAlike; ++s) total += from[s * kRunSums];
      const int64_t token = static_cast<int64_t>(last_run - (first + run) * step) * kRows + e / kGroup;
      out.d[blockIdx.x * out.d_floats + token * kRank + of * kGroup + e % kGroup] = total;
    }
  };

  float db[2][2][2][4] = {};  // [half][m][tile]: its rows are columns of dy
  int buffer = 0, last = 0;
  uint32_t parity = 1;
  for (int first = 0; first < runs; first += kStages) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int run = first + s;
      if (run >= runs) break;
      const auto& x = stage[s].dy;
      const uint32_t tokens[2][2] = {{transposed(stage[s].t[0].x), transposed(stage[s].t[1].x)},
                                     {transposed(stage[s].t[0].y), transposed(stage[s].t[1].y)}};
      float d[2][4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint32_t upper[2] = {x[h][0].word[2 * m], x[h][0].word[2 * m + 1]},
                         lower[2] = {x[h][1].word[2 * m], x[h][1].word[2 * m + 1]};
          const uint32_t a[4] = {transposed(upper[0]), transposed(upper[1]), transposed(lower[0]),
                                 transposed(lower[1])};
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            multiply<T>(d[j], upper[0], lower[0], upper[1], lower[1], b[h][m][j][0], b[h][m][j][1]);
            multiply<T>(db[h][m][j], a[0], a[1], a[2], a[3], tokens[j][0], tokens[j][1]);
          }
        }
      if (run + kStages < runs) load_next(stage[s]);
      float4* const to = shared + (((buffer * kStages + s) * kGroups + group) * kAlike + slice) * (kRunSums / 4) + lane;
#pragma unroll
      for (int token = 0; token < 2; ++token)
        to[32 * token] = {d[0][2 * token], d[0][2 * token + 1], d[1][2 * token], d[1][2 * token + 1]};
    }
    if (first > 0) {
      hopper::barrier_wait(barrier, parity);
      add_up(first - kStages, last);
    }
    // When a thread has seen all arrivals of one phase, all threads have added up the phase two before, so its buffer
    // is free. Each thread arrives for itself: if one arrived for its warp, racecheck would miss what the warp wrote
    // before.
    hopper::barrier_arrive(barrier);
    last = buffer;
    buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
    parity ^= 1;
  }
  hopper::barrier_wait(barrier, parity);
  add_up((runs - 1) / kStages * kStages, last);
  allow_next_kernel();

#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (has[h])
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          *reinterpret_cast<float4*>(out.db + blockIdx.y * out.db_floats + b_row(h, m, w) * kRank + group * kGroup +
                                     4 * t) = {db[h][m][0][2 * w], db[h][m][0][2 * w + 1], db[h][m][1][2 * w],
                                               db[h][m][1][2 * w + 1]};
        }
}

constexpr int kSumWarps = 4;

/// Block: 128 adjacent results; a warp takes every kSumWarps-th partial sum of each.
template <class T>
__global__ void __launch_bounds__(kSumWarps * 32)
    partial_sums_kernel(const Partial in, T* const d, T* const db, const int d_parts, const int db_parts,
                        const float scale) {
  __shared__ float4 of_warp[kSumWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t position = static_cast<int64_t>(blockIdx.x) * 128 + 4 * lane;
  const bool first = position < in.d_floats;  // uniform over a block: the sizes of d and dB are multiples of 256
  const int64_t at = first ? position : position - in.d_floats, step = first ? in.d_floats : in.db_floats;
  const float* const from = (first ? in.d : in.db) + at;
  const int parts = first ? d_parts : db_parts;
  float4 sum = {};
  await_kernel_before();
#pragma unroll 4
  for (int i = warp; i < parts; i += kSumWarps) {
    const float4 v = *reinterpret_cast<const float4*>(from + i * step);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int w = 1; w < kSumWarps; ++w) {
    const float4 v = of_warp[w][lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const float values[4] = {sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
  store_whole((first ? d : db) + at, from_floats<T, 4>(values));
}

}  // namespace

size_t lora_up_gradients_workspace(const LoraUpProducts& p) {
  if (!lora_up_fits(p)) return 0;
  const Plan plan = plan_of(p);
  return sizeof(float) * static_cast<size_t>(p.rank) *
         static_cast<size_t>(plan.column_blocks * p.tokens + plan.parts * p.columns);
}

cudaError_t lora_up_gradients(const LoraUpProducts& p, cudaStream_t stream) {
  if (!lora_up_fits(p) || p.b == nullptr || p.t == nullptr || p.dy == nullptr || p.d == nullptr || p.db == nullptr ||
      p.workspace == nullptr || reinterpret_cast<uintptr_t>(p.workspace) % 256 != 0)
    return cudaErrorInvalidValue;
  const Plan plan = plan_of(p);
  const Partial partial = partial_of(p, plan);
  return with_rank(p.element, p.rank, [&](auto zero, auto rank) {
    using T = decltype(zero);
    const auto kernel = gradients_kernel<T, rank()>;
    if (const cudaError_t refused = allow_shared_memory(kernel, kShared); refused != cudaSuccess) return refused;
    kernel<<<dim3(static_cast<unsigned>(plan.column_blocks), static_cast<unsigned>(plan.parts)), kWarps * 32, kShared,
             stream>>>(p, partial);
    if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) return failed;
    return launch_behind(partial_sums_kernel<T>,
                         dim3(static_cast<unsigned>((partial.d_floats + partial.db_floats) / 128)), kSumWarps * 32, 0,
                         stream, partial, static_cast<T*>(p.d), static_cast<T*>(p.db),
                         static_cast<int>(plan.column_blocks), static_cast<int>(plan.parts), p.scale);
  });
}

}  // namespace trireme::kernels
