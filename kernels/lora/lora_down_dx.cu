#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

constexpr int kWarps = 8;
constexpr int kColumns = kWarps * 32;  // of a block
constexpr int kRows = 16;              // of a run

/// Block: 256 columns, every gridDim.y-th run of 32 rows. A warp has 32 of the columns and keeps their part of A in
/// registers.
template <class T, int kRank, int kCount, bool kAdds>
__global__ void __launch_bounds__(kWarps * 32, 2) down_dx_kernel(const __grid_constant__ LoraProducts p) {
  await_kernel_before();
  constexpr int kSteps = kRank / 16, kTiles = kRows / 16;
  // Runs whose dx is in flight to each warp.
  constexpr int kStages = kCount == 3 ? 2 : 3;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t columns = p.columns, column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x / 32 * 32;
  if (column >= columns) return;
  const uint32_t bias = keep_bias(p.threshold), row_words = static_cast<uint32_t>(columns >> 1);
  // Column g of the product's tile j is column 8 (g / 2) + 2j + g % 2 of the 32, so that a thread's results of the four
  // tiles are adjacent: columns 8t to 8t + 7. Its k are ranks 4t to 4t + 3.
  uint32_t b[kCount][kSteps][4][2];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned short* from = static_cast<const unsigned short*>(p.a[i]) +
                                       (s * 16 + 4 * t + 2 * half) * columns + column + 8 * (g / 2) + 2 * j + g % 2;
          b[i][s][j][half] = static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[columns]) << 16;
        }
  T* const dx = static_cast<T*>(p.dx) + g * columns + column + 8 * t;
  const int tokens = static_cast<int>(p.tokens), sample_tokens = static_cast<int>(p.sample_tokens),
            first_token = static_cast<int>(p.first_token);
  const int step = static_cast<int>(gridDim.y) * kRows, begin = static_cast<int>(blockIdx.y) * kRows;
  const bool once = streams(p.tokens * columns * 2);
  Words<4> stage[kStages][2 * kTiles];
  const auto load = [&](Words<4>(&to)[2 * kTiles], int row) {
#pragma unroll
    for (int r = 0; r < (kAdds ? 2 * kTiles : 0); ++r)
      to[r] = load_words(dx + static_cast<int64_t>(row + 8 * r) * columns);
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s)
    if (begin + s * step < tokens) load(stage[s], begin + s * step);
  int sample_begin = 0, sample_end = 0;
  Mask mask[kCount];
  for (int first = begin; first < tokens; first += kStages * step) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int row = first + s * step;
      if (row >= tokens) break;
      if (row >= sample_end) {
        const int sample = (row + first_token) / sample_tokens;
        sample_begin = sample * sample_tokens - first_token;
        sample_end = sample_begin + sample_tokens;
#pragma unroll
        for (int i = 0; i < kCount; ++i) mask[i] = Mask(p, i, sample);
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        float sum[2][8];  // rows g and g + 8
        const uint32_t word = word_of(p, row - sample_begin + m * 16 + g, column + 8 * t);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          uint2 d[kSteps][2];
#pragma unroll
          for (int k = 0; k < kSteps; ++k)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              d[k][half] = __ldg(reinterpret_cast<const uint2*>(
                  static_cast<const T*>(p.d[i]) + (row + m * 16 + g + 8 * half) * kRank + k * 16 + 4 * t));
          const Mask::Start start[2] = {mask[i].start(word), mask[i].start(word + 8 * row_words)};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            float c[4];
            multiply_first<T>(c, d[0][0].x, d[0][1].x, d[0][0].y, d[0][1].y, b[i][0][j][0], b[i][0][j][1]);
#pragma unroll
            for (int k = 1; k < kSteps; ++k)
              multiply<T>(c, d[k][0].x, d[k][1].x, d[k][0].y, d[k][1].y, b[i][k][j][0], b[i][k][j][1]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const uint32_t kept = mask[i].keep(start[half], j, bias);
              const float first = kept & 0x8000u ? c[2 * half] : 0.0f,
                          second = static_cast<int32_t>(kept) < 0 ? c[2 * half + 1] : 0.0f;
              sum[half][2 * j] = i == 0 ? first : sum[half][2 * j] + first;
              sum[half][2 * j + 1] = i == 0 ? second : sum[half][2 * j + 1] + second;
            }
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float values[8] = {};
          if constexpr (kAdds) to_floats(__builtin_bit_cast(Vec<T, 8>, stage[s][2 * m + half]), values);
#pragma unroll
          for (int e = 0; e < 8; ++e) values[e] = fmaf(sum[half][e], p.scale, values[e]);
          store_whole(dx + static_cast<int64_t>(row + m * 16 + 8 * half) * columns, from_floats<T, 8>(values), once);
        }
      }
      if (row + kStages * step < tokens) load(stage[s], row + kStages * step);
    }
  }
}

}  // namespace

cudaError_t lora_down_dx(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.dx == nullptr) return cudaErrorInvalidValue;
  return with_constants(p, [&](auto zero, auto rank, auto count) {
    using T = decltype(zero);
    const auto kernel = p.adds ? down_dx_kernel<T, rank(), count(), true> : down_dx_kernel<T, rank(), count(), false>;
    const dim3 grid = strip_grid(kernel, kWarps * 32, p.columns, kColumns, p.tokens / kRows);
    return launch_behind(kernel, grid, kWarps * 32, 0, stream, p);
  });
}

}  // namespace trireme::kernels
