#pragma once
// Shared by the LoRA kernels: masks are drawn directly in the register layout of a tensor-core product, so that x goes
// from global memory to the product without passing through shared memory.
//
// A product may sum over k in any order. So each thread assigns eight adjacent elements (16 bytes) of a row to the k,
// or to the n, that the instruction gives it: four words of two elements.

#include "kernels/device.cuh"
#include "kernels/dropout/dropout_hash.cuh"
#include "kernels/launch.h"
#include "kernels/lora/lora.h"

#include <cstdint>
#include <type_traits>

namespace trireme::kernels::lora {

/// Rows that share one hash key; the tokens of a sample are a multiple.
constexpr int kKeyRows = 32;

/// Which elements of a sample an adapter keeps. The draws are those of dropout_draw(), rearranged: words w, w ^ 1, w ^
/// 2, w ^ 3 with w a multiple of four share their first step.
class Mask {
 public:
  Mask() = default;
  __device__ Mask(const LoraProducts& p, int adapter, int64_t sample)
      : key_(sample_hash(static_cast<uint64_t>(p.sample_ids[sample]), p.t0[adapter], p.t1[adapter])) {}

  struct Start {
    uint32_t x, shifted;
  };
  /// The shared first step of the four words from `word` on.
  __device__ Start start(uint32_t word) const {
    const uint32_t x = word ^ key_.k0;
    return {x, x >> 16};
  }
  /// Bits 15 and 31: whether the first and the second element of word `start ^ i` are kept. `bias`:
  /// keep_bias(threshold).
  __device__ uint32_t keep(Start start, uint32_t i, uint32_t bias) const {
    uint32_t x = (start.x ^ start.shifted ^ i) * 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    x ^= (x >> 15) ^ key_.k1;
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    // Compares both 16-bit halves u of x ^ (x >> 15) at once: u is large enough if its bit 15 is set or adding the bias
    // carries into that bit.
    const uint32_t s = x >> 15;
    uint32_t low, kept;
    asm("lop3.b32 %0, %1, %2, 0x7fff7fff, 0x28;" : "=r"(low) : "r"(x), "r"(s));  // (x ^ s) & …
    asm("lop3.b32 %0, %1, %2, %3, 0xf6;" : "=r"(kept) : "r"(low + bias), "r"(x), "r"(s));
    return kept;  // low + bias | (x ^ s)
  }

 private:
  DropoutHash key_;
};

/// The bias of keep(); threshold <= 2^15.
__device__ inline uint32_t keep_bias(uint32_t threshold) { return (0x8000u - threshold) * 0x10001u; }
/// A mask with 16 ones for each kept element of a word.
__device__ inline uint32_t word_mask(uint32_t kept) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, %1, 0xbb99;"
      : "=r"(mask)
      : "r"(kept));  // selectors 9 and b replicate the sign bit of bytes 1 and 3
  return mask;
}

/// Index of the word that holds (position, column); column is even.
__device__ inline uint32_t word_of(const LoraProducts& p, int64_t position, int64_t column) {
  return static_cast<uint32_t>(position) * static_cast<uint32_t>(p.columns >> 1) + static_cast<uint32_t>(column >> 1);
}

/// Transposes 8 x 8 elements of a warp, two in each thread.
__device__ inline uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// c[16, 8] += a[16, 16] b[16, 8] (PTX mma.m16n8k16). With g = lane / 4 and t = lane % 4: a = (row g, k 2t), (row g +
/// 8, k 2t), (row g, k 2t + 8), (row g + 8, k 2t + 8); b = (k 2t, column g), (k 2t + 8, column g); each also with the
/// next k; c = (row g, columns 2t and 2t + 1), (row g + 8, the same columns).
template <class T>
__device__ inline void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
  if constexpr (__is_same(T, __half))
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// c = a b; c needs no initialisation.
template <class T>
__device__ inline void multiply_first(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                      uint32_t b1) {
  if constexpr (__is_same(T, __half))
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}

/// Number of blocks along the rows: at least eight runs per block if there are enough rows, and among those numbers the
/// one with the fullest last wave.
inline int64_t row_parts(int64_t column_blocks, int64_t runs, int64_t slots) {
  const int64_t most = runs / 8 > 1 ? runs / 8 : 1;
  int64_t best = 1;
  double best_full = 0;
  for (int64_t parts = 1; parts <= most && parts <= 1024; ++parts) {
    const int64_t blocks = parts * column_blocks;
    // The runs may not divide evenly among the blocks; that counts too.
    const double full = static_cast<double>(blocks) / static_cast<double>(ceil_div(blocks, slots) * slots) *
                        static_cast<double>(runs) / static_cast<double>(ceil_div(runs, parts) * parts);
    if (full > best_full + 0.005) best = parts, best_full = full;
  }
  return best;
}

/// Launches a kernel whose blocks take `block_columns` columns and every gridDim.y-th run of rows.
template <class Kernel>
dim3 strip_grid(Kernel kernel, int threads, int64_t columns, int block_columns, int64_t runs) {
  const int64_t column_blocks = ceil_div(columns, block_columns),
                slots = resident_blocks(kernel, threads, 0, 32, int64_t{1} << 31);
  return dim3(static_cast<unsigned>(column_blocks), static_cast<unsigned>(row_parts(column_blocks, runs, slots)));
}

/// Calls f(T{}, rank) with compile-time constants.
template <class F>
cudaError_t with_rank(Element element, int rank, const F& f) {
  using std::integral_constant;
  const auto with_type = [&](auto zero) {
    if (rank == 64) return f(zero, integral_constant<int, 64>{});
    return rank == 32 ? f(zero, integral_constant<int, 32>{}) : f(zero, integral_constant<int, 16>{});
  };
  return element == Element::kF16 ? with_type(__half{}) : with_type(__nv_bfloat16{});
}

/// Calls f(T{}, rank, count) with compile-time constants.
template <class F>
cudaError_t with_constants(const LoraProducts& p, const F& f) {
  const auto with_shape = [&](auto zero) {
    using std::integral_constant;
    if (p.rank == 64) return f(zero, integral_constant<int, 64>{}, integral_constant<int, 1>{});
    if (p.rank == 32) return f(zero, integral_constant<int, 32>{}, integral_constant<int, 1>{});
    if (p.count == 1) return f(zero, integral_constant<int, 16>{}, integral_constant<int, 1>{});
    if (p.count == 2) return f(zero, integral_constant<int, 16>{}, integral_constant<int, 2>{});
    return f(zero, integral_constant<int, 16>{}, integral_constant<int, 3>{});
  };
  return p.element == Element::kF16 ? with_shape(__half{}) : with_shape(__nv_bfloat16{});
}

}  // namespace trireme::kernels::lora
