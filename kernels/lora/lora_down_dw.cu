#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

constexpr int kColumns = 64;  // of a block
constexpr int kTokens = 16;   // of a product
constexpr int kStages = 2;    // products whose tokens are on their way to each warp

/// Of the warp's 8 x 8 elements, two in each thread, the transpose.
__device__ inline uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// Block: 64 columns; a warp every kWarps-th run of 16 tokens. Sums of the warps meet in shared
/// memory, in their order.
template <class T, int kRank, int kCount, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, kRank* kCount == 16 ? 16 / kWarps : 1)
    down_dw_kernel(const __grid_constant__ LoraProducts p) {
  extern __shared__ float partial[];  // [warp][16 ranks][64 columns]
  constexpr int kTiles = kRank / 16;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t columns = p.columns, column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const uint32_t bias = keep_bias(p.threshold), row_words = static_cast<uint32_t>(columns >> 1);
  // This thread's tokens of a run are 2t, 2t + 1, 2t + 8, 2t + 9; its columns 8g to 8g + 7.
  const T* const x = static_cast<const T*>(p.x) + column + 8 * g;
  float sum[kCount][kTiles][8][4] = {};
  struct Stage {
    Words<4> x[4];
    uint2 d[kCount][kTiles][2];  // tokens g and g + 8, ranks 4t to 4t + 3
  };
  Stage stage[kStages];
  const auto load = [&](Stage& to, int token) {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      to.x[r] = load_words(x + static_cast<int64_t>(token + 2 * t + r % 2 + r / 2 * 8) * columns);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.d[i][m][half] = __ldg(reinterpret_cast<const uint2*>(
              static_cast<const T*>(p.d[i]) + (token + g + 8 * half) * kRank + m * 16 + 4 * t));
  };
  constexpr int kStep = kWarps * kTokens;
  const int tokens = static_cast<int>(p.tokens), sample_tokens = static_cast<int>(p.sample_tokens);
#pragma unroll
  for (int s = 0; s < kStages; ++s)
    if (warp * kTokens + s * kStep < tokens) load(stage[s], warp * kTokens + s * kStep);
  int sample_begin = 0, sample_end = 0;
  Mask mask[kCount];
  for (int first = warp * kTokens; first < tokens; first += kStages * kStep) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int token = first + s * kStep;
      if (token >= tokens) break;
      if (token >= sample_end) {
        const int sample = token / sample_tokens;
        sample_begin = sample * sample_tokens;
        sample_end = sample_begin + sample_tokens;
#pragma unroll
        for (int i = 0; i < kCount; ++i) mask[i] = Mask(p, i, sample);
      }
      Words<4> x_scaled[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) x_scaled[r] = scaled<T>(stage[s].x[r], p.scale);
      const uint32_t word = word_of(p, token - sample_begin + 2 * t, column + 8 * g);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        // Rank of row g: 4 (g / 2) + g % 2; of row g + 8: two more.
        uint32_t a[kTiles][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          a[m][0] = transposed(stage[s].d[i][m][0].x);
          a[m][1] = transposed(stage[s].d[i][m][0].y);
          a[m][2] = transposed(stage[s].d[i][m][1].x);
          a[m][3] = transposed(stage[s].d[i][m][1].y);
        }
        uint32_t start[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          start[r] = mask[i].start(word + static_cast<uint32_t>(r % 2 + r / 2 * 8) * row_words);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t v[4];
#pragma unroll
          for (int r = 0; r < 4; ++r)
            v[r] = x_scaled[r].word[w] & word_mask(mask[i].keep(start[r], w, bias));
          // Columns 8g + 2w and 8g + 2w + 1, the tokens side by side.
          const uint32_t b00 = __byte_perm(v[0], v[1], 0x5410),
                         b01 = __byte_perm(v[2], v[3], 0x5410),
                         b10 = __byte_perm(v[0], v[1], 0x7632),
                         b11 = __byte_perm(v[2], v[3], 0x7632);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            multiply<T>(sum[i][m][2 * w], a[m][0], a[m][1], a[m][2], a[m][3], b00, b01);
            multiply<T>(sum[i][m][2 * w + 1], a[m][0], a[m][1], a[m][2], a[m][3], b10, b11);
          }
        }
      }
      if (token + kStages * kStep < tokens) load(stage[s], token + kStages * kStep);
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (i + m > 0) __syncthreads();
      float* const mine = partial + warp * 16 * kColumns;
#pragma unroll
      for (int e = 0; e < 8; ++e)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* const to = mine + (4 * (g / 2) + g % 2 + 2 * half) * kColumns + 16 * t + e;
          to[0] = sum[i][m][e][2 * half];
          to[8] = sum[i][m][e][2 * half + 1];
        }
      __syncthreads();
      for (int e = 2 * threadIdx.x; e < 16 * kColumns; e += 2 * kWarps * 32) {
        float total[2] = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float2 v = *reinterpret_cast<const float2*>(partial + w * 16 * kColumns + e);
          total[0] += v.x, total[1] += v.y;
        }
        *reinterpret_cast<Vec<T, 2>*>(static_cast<T*>(p.da[i]) + (m * 16 + e / kColumns) * columns +
                                      column + e % kColumns) = from_floats<T, 2>(total);
      }
    }
}

}  // namespace

cudaError_t lora_down_dw(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.x == nullptr) return cudaErrorInvalidValue;
  return with_constants(p, [&](auto zero, auto rank, auto count) {
    using T = decltype(zero);
    // Sums in registers leave room for this many warps.
    constexpr int kWarps = rank() * count() <= 16 ? 16 : 8;
    const auto kernel = down_dw_kernel<T, rank(), count(), kWarps>;
    constexpr size_t kShared = sizeof(float) * kWarps * 16 * kColumns;
    if (const cudaError_t refused = allow_shared_memory(kernel, kShared); refused != cudaSuccess)
      return refused;
    kernel<<<static_cast<unsigned>(p.columns / kColumns), kWarps * 32, kShared, stream>>>(p);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
