#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

/// Block: kGroups groups of kSlices warps; a group has kRowTiles * 16 rows, a warp every kSlices-th
/// block of 32 columns. Sums of the slices meet in shared memory, in their order.
template <int kRowTiles_, int kGroups_, int kSlices_, int kHalves_ = 1>
struct Layout {
  static constexpr int kRowTiles = kRowTiles_, kGroups = kGroups_, kSlices = kSlices_,
                       kHalves = kHalves_, kBlockColumns = 32 * kHalves;  // that a warp takes at a time
  static constexpr int kGroupRows = kRowTiles * 16, kRows = kGroups * kGroupRows,
                       kThreads = kGroups * kSlices * 32, kPacks = 2 * kRowTiles * kHalves;
  static constexpr int kStages = 3;  // blocks of columns that are on their way to each warp
  static constexpr size_t kRing = sizeof(int4) * kStages * kPacks * kThreads;
  static constexpr size_t shared(int rank) {
    const size_t sums = sizeof(float) * kSlices * kRows * static_cast<size_t>(rank);
    return kRing > sums ? kRing : sums;
  }
};

template <class T, int kRank, int kCount, class L>
__global__ void __launch_bounds__(L::kThreads)
    down_kernel(const __grid_constant__ LoraProducts p) {
  extern __shared__ int4 shared[];  // [stage][pack][thread], then sums [slice][row of the block][rank]
  constexpr int kRows = L::kRows, kGroupRows = L::kGroupRows, kRowTiles = L::kRowTiles,
                kSlices = L::kSlices, kStages = L::kStages, kHalves = L::kHalves,
                kBlockColumns = L::kBlockColumns, kColumns = kRank / 8;
  const int warp = threadIdx.x / 32, slice = warp % kSlices, group = warp / kSlices;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t block_row = static_cast<int64_t>(blockIdx.x) * kRows,
                row = block_row + group * kGroupRows;
  float sum[kCount][kRowTiles][kColumns][4] = {};
  if (row < p.tokens) {
    const int64_t sample = row / p.sample_tokens;
    Mask mask[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) mask[i] = Mask(p, i, sample);
    const int columns = static_cast<int>(p.columns);
    const uint32_t bias = keep_bias(p.threshold), row_words = static_cast<uint32_t>(columns >> 1);
    const int blocks = columns / kBlockColumns, a_offset = g * columns + 8 * t;
    const T* const x = static_cast<const T*>(p.x) + (row + g) * columns + 8 * t;
    const uint32_t word = word_of(p, row - sample * p.sample_tokens + g, 8 * t);
    // Each thread copies the packs that it takes itself: nobody waits for others.
    int4* const ring = shared + threadIdx.x;
    const auto ask = [&](int stage, int block) {
      if (block < blocks)
#pragma unroll
        for (int r = 0; r < L::kPacks; ++r)
          copy_async16(ring + (stage * L::kPacks + r) * L::kThreads,
                       x + r / kHalves * 8 * columns + block * kBlockColumns + r % kHalves * 32);
      copy_async_commit();
    };
#pragma unroll
    for (int s = 0; s < kStages; ++s) ask(s, slice + s * kSlices);
    int stage = 0;
#pragma unroll 1
    for (int block = slice; block < blocks; block += kSlices) {
      Words<4> a[kCount][kHalves][kColumns];
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
            a[i][h][n] = as_words(load_shared_read<T, 8>(static_cast<const T*>(p.a[i]) + a_offset +
                                                         n * 8 * columns + block * kBlockColumns + 32 * h));
      copy_async_wait<kStages - 1>();
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int4* const from = ring + (stage * L::kPacks + 2 * m * kHalves + h) * L::kThreads;
        const Words<4> upper = __builtin_bit_cast(Words<4>, from[0]),
                       lower = __builtin_bit_cast(Words<4>, from[kHalves * L::kThreads]);
        const uint32_t at = word + static_cast<uint32_t>(block * (kBlockColumns / 2)) + h * 16 +
                          m * 16 * row_words;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const Mask::Start start[2] = {mask[i].start(at), mask[i].start(at + 8 * row_words)};
          uint32_t up[4], low[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            up[w] = upper.word[w] & word_mask(mask[i].keep(start[0], w, bias));
            low[w] = lower.word[w] & word_mask(mask[i].keep(start[1], w, bias));
          }
#pragma unroll
          for (int n = 0; n < kColumns; ++n) {
            multiply<T>(sum[i][m][n], up[0], low[0], up[1], low[1], a[i][h][n].word[0],
                        a[i][h][n].word[1]);
            multiply<T>(sum[i][m][n], up[2], low[2], up[3], low[3], a[i][h][n].word[2],
                        a[i][h][n].word[3]);
          }
        }
      }
      ask(stage, block + kStages * kSlices);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    copy_async_wait<0>();
  }
  float* const partial = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(
              partial + (slice * kRows + group * kGroupRows + m * 16 + half * 8 + g) * kRank +
              n * 8 + 2 * t) = {sum[i][m][n][2 * half], sum[i][m][n][2 * half + 1]};
    __syncthreads();
    T* const out = static_cast<T*>(p.t[i]) + block_row * kRank;
    for (int e = 2 * threadIdx.x; e < kRows * kRank; e += 2 * L::kThreads) {
      if (block_row + e / kRank >= p.tokens) break;
      float total[2] = {};
#pragma unroll
      for (int s = 0; s < kSlices; ++s) {
        const float2 v = *reinterpret_cast<const float2*>(partial + s * kRows * kRank + e);
        total[0] += v.x, total[1] += v.y;
      }
      total[0] *= p.scale, total[1] *= p.scale;
      *reinterpret_cast<Vec<T, 2>*>(out + e) = from_floats<T, 2>(total);
    }
  }
}

}  // namespace

bool lora_fits(const LoraProducts& p) {
  if (p.element == Element::kF32 || p.tokens < 1 || p.tokens > (1 << 24) || p.columns < 64 ||
      p.columns > (1 << 20) || p.columns % 64 != 0)
    return false;
  if (p.rank == 16 ? p.count < 1 || p.count > kMaxLoraAdapters
                   : (p.rank != 32 && p.rank != 64) || p.count != 1)
    return false;
  if (p.sample_ids == nullptr || p.sample_tokens < 1 || p.sample_tokens % kKeyRows != 0 ||
      p.tokens % p.sample_tokens != 0 || p.threshold > 0x8000u || !aligned16(p.x, p.dx))
    return false;
  for (int i = 0; i < p.count; ++i)
    if (!aligned16(p.a[i], p.t[i], p.d[i], p.da[i])) return false;
  return true;
}

cudaError_t lora_down(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.x == nullptr) return cudaErrorInvalidValue;
  return with_constants(p, [&](auto zero, auto rank, auto count) {
    using T = decltype(zero);
    const auto launch = [&](auto layout) {
      using L = decltype(layout);
      const auto kernel = down_kernel<T, rank(), count(), L>;
      constexpr size_t kShared = L::shared(rank());
      if (const cudaError_t refused = allow_shared_memory(kernel, kShared); refused != cudaSuccess)
        return refused;
      kernel<<<static_cast<unsigned>(ceil_div(p.tokens, L::kRows)), L::kThreads, kShared, stream>>>(p);
      return cudaGetLastError();
    };
    // Two groups share their reads of A; three adapters' sums leave a thread no registers for two
    // row tiles. Where rows are few, smaller blocks reach more multiprocessors.
    if constexpr (rank() == 64) {
      return launch(Layout<1, 1, 8>{});
    } else {
      const int64_t enough = multiprocessors() * 3 / 4;
      if (ceil_div(p.tokens, 64) >= enough) {
        if constexpr (count() == 3)
          return launch(Layout<1, 2, 8>{});
        else if constexpr (count() == 2)
          return launch(Layout<2, 2, 8>{});
        else if constexpr (rank() == 16)
          return launch(Layout<2, 2, 12>{});
      }
      return ceil_div(p.tokens, 32) >= enough ? launch(Layout<2, 1, 8>{}) : launch(Layout<1, 1, 8>{});
    }
  });
}

}  // namespace trireme::kernels
