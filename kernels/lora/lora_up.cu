#include "kernels/lora/lora.h"

#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

constexpr int kWarps = 4;
constexpr int kHalves = 2;                       // a warp has kHalves * 32 columns, which are whole 128-byte lines
constexpr int kColumns = kWarps * kHalves * 32;  // of a block
constexpr int kRows = 16;                        // of a run
template <int kRank, bool kAdds>
constexpr int kBlockRows = (kRank == 16 && kAdds ? 2 : 4) * kRows;

/// Block: 256 columns, two or four runs of 16 rows. A warp has 64 of the columns and keeps their part of B in
/// registers. Many small blocks, so that some load while others store. Last rows first: if y was just written, these
/// are still in L2.
template <class T, int kRank, bool kAdds>
__global__ void __launch_bounds__(kWarps * 32, kRank == 64 ? 2 : 4)
    up_kernel(const __grid_constant__ LoraUpProducts p) {
  await_kernel_before();
  constexpr int kSteps = kRank / 16;
  constexpr int kStages = !kAdds        ? 3
                          : kRank == 16 ? 2
                          : kRank == 32 ? 1
                                        : 3;  // runs whose y and t are in flight to each warp
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const unsigned column_blocks = static_cast<unsigned>((p.columns + kColumns - 1) / kColumns);
  const int64_t column =
      static_cast<int64_t>(blockIdx.x % column_blocks) * kColumns + threadIdx.x / 32 * (32 * kHalves);
  if (column >= p.columns) return;
  const bool both = column + 32 < p.columns;
  // Column g of the product's tile j is column 8 (g / 2) + 2j + g % 2 of a half, so that a thread's results of the four
  // tiles are adjacent: columns 8t to 8t + 7. Its k are ranks 4t to 4t + 3.
  uint2 b[kHalves][kSteps][4] = {};
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
    if (h == 0 || both)
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          b[h][s][j] = __ldg(reinterpret_cast<const uint2*>(
              static_cast<const T*>(p.b) + (column + 32 * h + 8 * (g / 2) + 2 * j + g % 2) * kRank + s * 16 + 4 * t));
  T* const y = static_cast<T*>(p.y) + g * p.stride + column + 8 * t;
  const int begin = static_cast<int>((gridDim.x - 1 - blockIdx.x) / column_blocks) * kBlockRows<kRank, kAdds>,
            end = min(begin + kBlockRows<kRank, kAdds>, static_cast<int>(p.tokens));
  const bool once = streams(p.tokens * p.columns * 2);
  struct Stage {
    Words<4> y[kAdds ? kHalves : 1][2];  // rows g and g + 8
    uint2 t[kSteps][2];
  };
  Stage stage[kStages] = {};
  const auto load = [&](Stage& to, int row) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int h = 0; h < (kAdds ? kHalves : 0); ++h)
        if (h == 0 || both) to.y[h][r] = load_words(y + static_cast<int64_t>(row + 8 * r) * p.stride + 32 * h);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        to.t[s][r] = __ldg(reinterpret_cast<const uint2*>(
            static_cast<const T*>(p.t) + static_cast<int64_t>(row + g + 8 * r) * kRank + s * 16 + 4 * t));
    }
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s)
    if (begin + s * kRows < end) load(stage[s], begin + s * kRows);
  for (int first = begin; first < end; first += kStages * kRows) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int row = first + s * kRows;
      if (row >= end) break;
      const auto& a = stage[s].t;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        float sum[2][8];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float c[4];
          multiply_first<T>(c, a[0][0].x, a[0][1].x, a[0][0].y, a[0][1].y, b[h][0][j].x, b[h][0][j].y);
#pragma unroll
          for (int k = 1; k < kSteps; ++k)
            multiply<T>(c, a[k][0].x, a[k][1].x, a[k][0].y, a[k][1].y, b[h][k][j].x, b[h][k][j].y);
#pragma unroll
          for (int r = 0; r < 2; ++r) sum[r][2 * j] = c[2 * r], sum[r][2 * j + 1] = c[2 * r + 1];
        }
        if (h == 0 || both)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float values[8] = {};
            if constexpr (kAdds) to_floats(__builtin_bit_cast(Vec<T, 8>, stage[s].y[h][r]), values);
#pragma unroll
            for (int e = 0; e < 8; ++e) values[e] = fmaf(sum[r][e], p.scale, values[e]);
            store_whole(y + static_cast<int64_t>(row + 8 * r) * p.stride + 32 * h, from_floats<T, 8>(values), once);
          }
      }
      if (row + kStages * kRows < end) load(stage[s], row + kStages * kRows);
    }
  }
}

}  // namespace

bool lora_up_fits(const LoraUpProducts& p) {
  return p.element != Element::kF32 && (p.rank == 16 || p.rank == 32 || p.rank == 64) && p.tokens > 0 &&
         p.tokens <= (1 << 24) && p.tokens % kRows == 0 && p.columns > 0 && p.columns <= (1 << 20) &&
         p.columns % 32 == 0 && p.stride >= p.columns && p.stride % 8 == 0 &&
         aligned16(p.b, p.t, p.y, p.dy, p.d, p.db, p.workspace);
}

cudaError_t lora_up(const LoraUpProducts& p, cudaStream_t stream) {
  if (!lora_up_fits(p) || p.y == nullptr || p.b == nullptr || p.t == nullptr) return cudaErrorInvalidValue;
  return with_rank(p.element, p.rank, [&](auto zero, auto rank) {
    using T = decltype(zero);
    const auto kernel = p.adds ? up_kernel<T, rank(), true> : up_kernel<T, rank(), false>;
    const int64_t block_rows = p.adds ? kBlockRows<rank(), true> : kBlockRows<rank(), false>,
                  blocks = ceil_div(p.columns, kColumns) * ceil_div(p.tokens, block_rows);
    return launch_behind(kernel, dim3(static_cast<unsigned>(blocks)), kWarps * 32, 0, stream, p);
  });
}

}  // namespace trireme::kernels
