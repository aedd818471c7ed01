#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

constexpr int kColumns = 64;  // of a block
constexpr int kTokens = 16;   // of a product
enum class Dx { kNone, kAdded, kWritten };
constexpr int kStages = 2;  // products whose tokens are in flight to each warp

/// sum += x * scale if the sign bit of `bits` is set: a predicated instruction instead of a select.
__device__ inline void add_if_negative(float& sum, uint32_t bits, float x, float scale) {
  asm("{\n.reg .pred negative;\nsetp.lt.s32 negative, %1, 0;\n@negative fma.rn.f32 %0, %2, %3, %0;\n}"
      : "+f"(sum)
      : "r"(bits), "f"(x), "f"(scale));
}

/// Block: 64 columns; a warp takes every kWarps-th run of 16 tokens. The warps' sums are added in shared memory in a
/// fixed order. Unless kForm is kNone, it also computes dx with the same masks.
template <class T, int kRank, int kCount, int kWarps, Dx kForm>
__global__ void __launch_bounds__(kWarps * 32, kRank* kCount == 16 && kForm == Dx::kNone ? 16 / kWarps : 1)
    down_dw_kernel(const __grid_constant__ LoraProducts p) {
  await_kernel_before();
  constexpr bool kDx = kForm != Dx::kNone, kAdds = kForm == Dx::kAdded;
  static_assert(!kDx || (kRank == 16 && kCount == 1));
  extern __shared__ float partial[];  // [warp][16 ranks][64 columns]
  constexpr int kTiles = kRank / 16;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t columns = p.columns, column = static_cast<int64_t>(blockIdx.x) * kColumns;
  const uint32_t bias = keep_bias(p.threshold), row_words = static_cast<uint32_t>(columns >> 1);
  // This thread's tokens of a run are 2t, 2t + 1, 2t + 8, 2t + 9; its columns 8g to 8g + 7.
  const T* const x = static_cast<const T*>(p.x) + column + 8 * g;
  T* const dx = kDx ? static_cast<T*>(p.dx) + column + 8 * g : nullptr;
  const float scale = p.scale;
  const bool once = kDx && streams(p.tokens * columns * 2);
  float sum[kCount][kTiles][8][4] = {};
  // A transposed for the product d A: rows of tile w's product are columns 8g + 2w and 8g + 2w + 1, its k are ranks 4t
  // to 4t + 3, its columns are tokens. This thread's results then belong to the elements of x that it holds.
  uint32_t a_turned[4][4];
  if constexpr (kDx) {
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        uint32_t row[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          row[r] = __ldg(reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.a[0]) +
                                                           (4 * t + 2 * pair + r) * columns + column + 8 * g + 2 * w));
        a_turned[w][2 * pair] = __byte_perm(row[0], row[1], 0x5410);
        a_turned[w][2 * pair + 1] = __byte_perm(row[0], row[1], 0x7632);
      }
  }
  struct Stage {
    Words<4> x[4];
    Words<4> dx[kDx ? 4 : 1];    // for kWritten uninitialised until its product
    uint2 d[kCount][kTiles][2];  // tokens g and g + 8, ranks 4t to 4t + 3
  };
  Stage stage[kStages];
  // Last tokens first: if x was just written, these are still in L2.
  const auto place = [&](int turn) { return static_cast<int>(p.tokens) - kTokens - turn; };
  const auto load = [&](Stage& to, int turn) {
    const int token = place(turn);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      to.x[r] = load_words(x + static_cast<int64_t>(token + 2 * t + r % 2 + r / 2 * 8) * columns);
    if constexpr (kAdds)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        to.dx[r] = load_words(dx + static_cast<int64_t>(token + 2 * t + r % 2 + r / 2 * 8) * columns);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to.d[i][m][half] = __ldg(reinterpret_cast<const uint2*>(static_cast<const T*>(p.d[i]) +
                                                                  (token + g + 8 * half) * kRank + m * 16 + 4 * t));
  };
  constexpr int kStep = kWarps * kTokens;
  const int tokens = static_cast<int>(p.tokens), sample_tokens = static_cast<int>(p.sample_tokens),
            first_token = static_cast<int>(p.first_token);
#pragma unroll
  for (int s = 0; s < kStages; ++s)
    if (warp * kTokens + s * kStep < tokens) load(stage[s], warp * kTokens + s * kStep);
  int sample_begin = 0, sample_end = 0;
  Mask mask[kCount];
  for (int first = warp * kTokens; first < tokens; first += kStages * kStep) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      const int turn = first + s * kStep, token = place(turn);
      if (turn >= tokens) break;
      if (token < sample_begin || token >= sample_end) {
        const int sample = (token + first_token) / sample_tokens;
        sample_begin = sample * sample_tokens - first_token;
        sample_end = sample_begin + sample_tokens;
#pragma unroll
        for (int i = 0; i < kCount; ++i) mask[i] = Mask(p, i, sample);
      }
      const uint32_t word = word_of(p, token - sample_begin + 2 * t, column + 8 * g);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        // The rank of row g is 4 (g / 2) + g % 2; that of row g + 8 is two more.
        uint32_t a[kTiles][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          a[m][0] = transposed(stage[s].d[i][m][0].x);
          a[m][1] = transposed(stage[s].d[i][m][0].y);
          a[m][2] = transposed(stage[s].d[i][m][1].x);
          a[m][3] = transposed(stage[s].d[i][m][1].y);
        }
        Mask::Start start[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          start[r] = mask[i].start(word + static_cast<uint32_t>(r % 2 + r / 2 * 8) * row_words);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t v[4], kept[4], keeps[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            kept[r] = mask[i].keep(start[r], w, bias);
            keeps[r] = word_mask(kept[r]);
            v[r] = stage[s].x[r].word[w] & keeps[r];
          }
          if constexpr (kDx) {
            float c[2][4];  // tokens 2t and 2t + 1 of each half of the run
#pragma unroll
            for (int half = 0; half < 2; ++half)
              multiply_first<T>(c[half], a_turned[w][0], a_turned[w][1], a_turned[w][2], a_turned[w][3],
                                stage[s].d[0][0][half].x, stage[s].d[0][0][half].y);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              float values[2] = {c[r / 2][r % 2] * scale, c[r / 2][2 + r % 2] * scale};
              uint32_t& dx_word = stage[s].dx[r].word[w];
              if constexpr (kAdds) {
                to_floats(__builtin_bit_cast(Vec<T, 2>, dx_word), values);
                add_if_negative(values[0], kept[r] * 0x10000u, c[r / 2][r % 2], scale);
                add_if_negative(values[1], kept[r], c[r / 2][2 + r % 2], scale);
                dx_word = __builtin_bit_cast(uint32_t, from_floats<T, 2>(values));
              } else {
                dx_word = __builtin_bit_cast(uint32_t, from_floats<T, 2>(values)) & keeps[r];
              }
            }
          }
          // Columns 8g + 2w and 8g + 2w + 1 with adjacent tokens in one word.
          const uint32_t b00 = __byte_perm(v[0], v[1], 0x5410), b01 = __byte_perm(v[2], v[3], 0x5410),
                         b10 = __byte_perm(v[0], v[1], 0x7632), b11 = __byte_perm(v[2], v[3], 0x7632);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            multiply<T>(sum[i][m][2 * w], a[m][0], a[m][1], a[m][2], a[m][3], b00, b01);
            multiply<T>(sum[i][m][2 * w + 1], a[m][0], a[m][1], a[m][2], a[m][3], b10, b11);
          }
        }
      }
      if constexpr (kDx)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          store_whole(dx + static_cast<int64_t>(token + 2 * t + r % 2 + r / 2 * 8) * columns,
                      __builtin_bit_cast(Vec<T, 8>, stage[s].dx[r]), once);
      if (turn + kStages * kStep < tokens) load(stage[s], turn + kStages * kStep);
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
        total[0] *= scale, total[1] *= scale;
        *reinterpret_cast<Vec<T, 2>*>(static_cast<T*>(p.da[i]) + (m * 16 + e / kColumns) * columns + column +
                                      e % kColumns) = from_floats<T, 2>(total);
      }
    }
}

template <int kWarps, Dx kForm, class Type, class Rank, class Count>
cudaError_t launch(const LoraProducts& p, Type, Rank, Count, cudaStream_t stream) {
  const auto kernel = down_dw_kernel<Type, Rank::value, Count::value, kWarps, kForm>;
  constexpr size_t kShared = sizeof(float) * kWarps * 16 * kColumns;
  if (const cudaError_t refused = allow_shared_memory(kernel, kShared); refused != cudaSuccess) return refused;
  return launch_behind(kernel, dim3(static_cast<unsigned>(p.columns / kColumns)), kWarps * 32, kShared, stream, p);
}

}  // namespace

cudaError_t lora_down_dw(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.x == nullptr) return cudaErrorInvalidValue;
  return with_constants(p, [&](auto zero, auto rank, auto count) {
    // With the sums in registers, this is the largest number of warps that fits.
    return launch<(rank() * count() <= 16 ? 16 : 8), Dx::kNone>(p, zero, rank, count, stream);
  });
}

cudaError_t lora_down_gradients(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.x == nullptr || p.dx == nullptr) return cudaErrorInvalidValue;
  if (p.rank == 16 && p.count == 1)
    return with_rank(p.element, 16, [&](auto zero, auto) {
      constexpr std::integral_constant<int, 16> kRank;
      constexpr std::integral_constant<int, 1> kCount;
      return p.adds ? launch<12, Dx::kAdded>(p, zero, kRank, kCount, stream)
                    : launch<12, Dx::kWritten>(p, zero, kRank, kCount, stream);
    });
  const cudaError_t status = lora_down_dw(p, stream);
  return status != cudaSuccess ? status : lora_down_dx(p, stream);
}

}  // namespace trireme::kernels
