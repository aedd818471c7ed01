#include "kernels/lora/lora_tile.cuh"

namespace trireme::kernels {

namespace {

using namespace lora;

/// Warps that divide the columns of the same rows among them.
constexpr int kSlices = 8;

/// Block: kGroups groups of kSlices warps. A group has kRowTiles * 16 rows, a warp of it every kSlices-th block of 32
/// columns. The sums of the slices are added in shared memory in a fixed order.
template <class T, int kRank, int kCount, int kRowTiles, int kGroups>
__global__ void __launch_bounds__(kGroups* kSlices * 32) down_kernel(const __grid_constant__ LoraProducts p) {
  await_kernel_before();
  extern __shared__ float partial[];  // [slice][row of the block][rank]
  // Blocks of 32 columns in flight to each warp.
  constexpr int kStages = kRank * kCount == 16 ? 3 : 2;
  constexpr int kGroupRows = kRowTiles * 16, kRows = kGroups * kGroupRows, kColumns = kRank / 8;
  const int warp = threadIdx.x / 32, slice = warp % kSlices, group = warp / kSlices;
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int64_t block_row = static_cast<int64_t>(blockIdx.x) * kRows, row = block_row + group * kGroupRows;
  float sum[kCount][kRowTiles][kColumns][4] = {};
  if (row < p.tokens) {
    const int64_t token = row + p.first_token, sample = token / p.sample_tokens;
    Mask mask[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) mask[i] = Mask(p, i, sample);
    const int columns = static_cast<int>(p.columns);
    const uint32_t bias = keep_bias(p.threshold), row_words = static_cast<uint32_t>(columns >> 1);
    const int blocks = columns / 32, a_offset = g * columns + 8 * t;
    const T* const x = static_cast<const T*>(p.x) + (row + g) * columns + 8 * t;
    const uint32_t word = word_of(p, token - sample * p.sample_tokens + g, 8 * t);
    Words<4> stage[kStages][2 * kRowTiles];
    const auto load = [&](Words<4>(&to)[2 * kRowTiles], int block) {
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r) to[r] = load_words(x + r * 8 * columns + block * 32);
    };
#pragma unroll
    for (int s = 0; s < kStages; ++s)
      if (slice + s * kSlices < blocks) load(stage[s], slice + s * kSlices);
    for (int first = slice; first < blocks; first += kStages * kSlices) {
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        const int block = first + s * kSlices;
        if (block >= blocks) break;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          Words<4> a[kColumns];
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
            a[n] = __builtin_bit_cast(Words<4>, load_shared_read<T, 8>(static_cast<const T*>(p.a[i]) + a_offset +
                                                                       n * 8 * columns + block * 32));
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            const uint32_t at = word + block * 16 + m * 16 * row_words;
            const Mask::Start upper = mask[i].start(at), lower = mask[i].start(at + 8 * row_words);
            uint32_t up[4], low[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
              up[w] = stage[s][2 * m].word[w] & word_mask(mask[i].keep(upper, w, bias));
              low[w] = stage[s][2 * m + 1].word[w] & word_mask(mask[i].keep(lower, w, bias));
            }
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
              multiply<T>(sum[i][m][n], up[0], low[0], up[1], low[1], a[n].word[0], a[n].word[1]);
              multiply<T>(sum[i][m][n], up[2], low[2], up[3], low[3], a[n].word[2], a[n].word[3]);
            }
          }
        }
        if (block + kStages * kSlices < blocks) load(stage[s], block + kStages * kSlices);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i > 0) __syncthreads();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(partial + (slice * kRows + group * kGroupRows + m * 16 + half * 8 + g) * kRank +
                                     n * 8 + 2 * t) = {sum[i][m][n][2 * half], sum[i][m][n][2 * half + 1]};
    __syncthreads();
    T* const out = static_cast<T*>(p.t[i]) + block_row * kRank;
    for (int e = 2 * threadIdx.x; e < kRows * kRank; e += 2 * kGroups * kSlices * 32) {
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
  if (p.element == Element::kF32 || p.tokens < 1 || p.tokens > (1 << 24) || p.columns < 64 || p.columns > (1 << 20) ||
      p.columns % 64 != 0)
    return false;
  if (p.rank == 16 ? p.count < 1 || p.count > kMaxLoraAdapters : (p.rank != 32 && p.rank != 64) || p.count != 1)
    return false;
  if (p.sample_ids == nullptr || p.sample_tokens < 1 || p.sample_tokens % kKeyRows != 0 || p.tokens % kKeyRows != 0 ||
      p.first_token < 0 || p.first_token % kKeyRows != 0 || p.sample_tokens > kDropoutElements32 / p.columns ||
      p.threshold > 0x8000u || !aligned16(p.x, p.dx))
    return false;
  for (int i = 0; i < p.count; ++i)
    if (!aligned16(p.a[i], p.t[i], p.d[i], p.da[i])) return false;
  return true;
}

cudaError_t lora_down(const LoraProducts& p, cudaStream_t stream) {
  if (!lora_fits(p) || p.x == nullptr) return cudaErrorInvalidValue;
  return with_constants(p, [&](auto zero, auto rank, auto count) {
    using T = decltype(zero);
    const auto launch = [&](auto row_tiles, auto groups) {
      constexpr int kRows = row_tiles() * groups() * 16;
      return launch_behind(down_kernel<T, rank(), count(), row_tiles(), groups()>,
                           dim3(static_cast<unsigned>(ceil_div(p.tokens, kRows))), groups() * kSlices * 32,
                           sizeof(float) * kSlices * kRows * rank(), stream, p);
    };
    using std::integral_constant;
    constexpr integral_constant<int, 1> one;
    constexpr integral_constant<int, 2> two;
    // Two groups share their reads of A. With three adapters the sums leave no registers for two row tiles. If there
    // are few rows, smaller blocks use more multiprocessors.
    if constexpr (rank() == 64) {
      return launch(one, one);
    } else {
      const int64_t enough = multiprocessors() * 3 / 4;
      if (ceil_div(p.tokens, 64) >= enough) {
        if constexpr (count() == 3)
          return launch(one, two);
        else if constexpr (rank() == 16)
          return launch(two, two);
      }
      return ceil_div(p.tokens, 32) >= enough ? launch(two, one) : launch(one, one);
    }
  });
}

}  // namespace trireme::kernels
