#pragma once
// Warpgroup matrix multiply-accumulate, m64 nN k16, E4M3 k32, with fp32 accumulators in registers (PTX ISA,
// wgmma.mma_async).
//
// Accumulator d[4 j + r]: row 16 warp + lane / 4 + 8 (r / 2), column 8 j + 2 (lane % 4) + r % 2. An A operand in
// registers has the same layout with two neighbouring columns in one register: a[0], a[1] rows +0 and +8 of columns
// 0-7, a[2], a[3] of 8-15. Of E4M3 codes four neighbouring columns share a register: a[0], a[1] columns 4 (lane % 4) +
// 0 … 3, a[2], a[3] 16 more. Sums of E4M3 products keep 14 bits, also those that the accumulators held before.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace trireme::kernels::hopper {

/// Orders earlier ordinary register writes before the wgmma instructions that read those registers.
__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of registers that a product writes across this point.
template <int kCount>
__device__ inline void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ inline void pin(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// Which dimension of an operand is contiguous in shared memory: that of the sum (K), or the other one.
enum class Major { kK = 0, kMN = 1 };

#define TRIREME_ACC16(d, i)                                                                                   \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]),      \
      "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])

#define TRIREME_SS32(types, majors)                                          \
  asm volatile(                                                              \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"                           \
      "wgmma.mma_async.sync.aligned.m64n32" types                            \
      " {"                                                                   \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
      "}, %16, %17, p, 1, 1" majors ";\n}\n"                                 \
      : TRIREME_ACC16(d, 0)                                                  \
      : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))

#define TRIREME_SS64(types, majors)                                                    \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64" types                                      \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, %32, %33, p, 1, 1" majors ";\n}\n"                                           \
      : TRIREME_ACC16(d, 0), TRIREME_ACC16(d, 16)                                      \
      : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define TRIREME_RS64(types, majors)                                                    \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n64" types                                      \
      " {"                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1" majors ";\n}\n"                          \
      : TRIREME_ACC16(d, 0), TRIREME_ACC16(d, 16)                                      \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(static_cast<int>(kB)))

#define TRIREME_SS128(types, majors)                                                          \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                            \
      "wgmma.mma_async.sync.aligned.m64n128" types                                            \
      " {"                                                                                    \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "      \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "      \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"        \
      "}, %64, %65, p, 1, 1" majors ";\n}\n"                                                  \
      : TRIREME_ACC16(d, 0), TRIREME_ACC16(d, 16), TRIREME_ACC16(d, 32), TRIREME_ACC16(d, 48) \
      : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define TRIREME_RS128(types, majors)                                                          \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                            \
      "wgmma.mma_async.sync.aligned.m64n128" types                                            \
      " {"                                                                                    \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "      \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "      \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"        \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1" majors ";\n}\n"                                 \
      : TRIREME_ACC16(d, 0), TRIREME_ACC16(d, 16), TRIREME_ACC16(d, 32), TRIREME_ACC16(d, 48) \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate), "n"(static_cast<int>(kB)))

/// d (+)= a b with both operands in shared memory.
template <class T, Major kA, Major kB, int kCount>
__device__ inline void mma_ss(float (&d)[kCount], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kCount == 16 || kCount == 32 || kCount == 64);
  constexpr bool kHalf = __is_same(T, __half);
  if constexpr (kCount == 16 && kHalf) TRIREME_SS32("k16.f32.f16.f16", ", %19, %20");
  if constexpr (kCount == 16 && !kHalf) TRIREME_SS32("k16.f32.bf16.bf16", ", %19, %20");
  if constexpr (kCount == 32 && kHalf) TRIREME_SS64("k16.f32.f16.f16", ", %35, %36");
  if constexpr (kCount == 32 && !kHalf) TRIREME_SS64("k16.f32.bf16.bf16", ", %35, %36");
  if constexpr (kCount == 64 && kHalf) TRIREME_SS128("k16.f32.f16.f16", ", %67, %68");
  if constexpr (kCount == 64 && !kHalf) TRIREME_SS128("k16.f32.bf16.bf16", ", %67, %68");
}

/// The same of E4M3 codes, which are contiguous in the dimension of the sum.
template <int kCount>
__device__ inline void mma_codes_ss(float (&d)[kCount], uint64_t a, uint64_t b, int accumulate) {
  static_assert(kCount == 64);
  constexpr Major kA = Major::kK, kB = Major::kK;
  TRIREME_SS128("k32.f32.e4m3.e4m3", "");
}
template <int kCount>
__device__ inline void mma_codes_rs(float (&d)[kCount], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                                    int accumulate) {
  static_assert(kCount == 64);
  constexpr Major kB = Major::kK;
  TRIREME_RS128("k32.f32.e4m3.e4m3", "");
}

/// d (+)= a b with a in registers.
template <class T, Major kB, int kCount>
__device__ inline void mma_rs(float (&d)[kCount], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                              int accumulate) {
  static_assert(kCount == 32 || kCount == 64);
  constexpr bool kHalf = __is_same(T, __half);
  if constexpr (kCount == 32 && kHalf) TRIREME_RS64("k16.f32.f16.f16", ", %38");
  if constexpr (kCount == 32 && !kHalf) TRIREME_RS64("k16.f32.bf16.bf16", ", %38");
  if constexpr (kCount == 64 && kHalf) TRIREME_RS128("k16.f32.f16.f16", ", %70");
  if constexpr (kCount == 64 && !kHalf) TRIREME_RS128("k16.f32.bf16.bf16", ", %70");
}

#undef TRIREME_SS32
#undef TRIREME_SS64
#undef TRIREME_SS128
#undef TRIREME_RS64
#undef TRIREME_RS128
#undef TRIREME_ACC16

/// Operand tiles in shared memory are stored as columns of 64 elements: rows of 128 bytes in the 128-byte swizzle, at a
/// multiple of 1,024 bytes. The descriptor (PTX ISA, "matrix descriptor") counts in units of 16 bytes; one group of
/// eight rows takes 1,024 bytes. `column_bytes`: distance between columns, used if the dimension other than the sum's
/// is contiguous and wider than 64.
struct Operand {
  uint32_t low;

  /// The operand at an address `bytes` further.
  __device__ Operand at(uint32_t bytes) const { return {low + (bytes >> 4)}; }
  __device__ operator uint64_t() const { return uint64_t{low} | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62; }
};
/// All threads of a warp pass the same address.
__device__ inline Operand operand(uint32_t address, uint32_t column_bytes = 16) {
  return {__shfl_sync(0xffffffffu, ((address & 0x3ffff) >> 4) | (column_bytes >> 4) << 16, 0)};
}

/// sums = a b^T over kDim columns; a and b are rows of tiles with kRowsA and kRowsB rows, both stored as columns of 64.
template <class T, int kDim, int kRowsA, int kRowsB, int kCount>
__device__ inline void product_of_rows(float (&sums)[kCount], Operand a, Operand b) {
#pragma unroll
  for (int i = 0; i < kDim / 16; ++i)
    mma_ss<T, Major::kK, Major::kK>(sums, a.at((i / 4) * (kRowsA * 128) + (i % 4) * 32),
                                    b.at((i / 4) * (kRowsB * 128) + (i % 4) * 32), i != 0);
}

/// sums (+)= a b with a in registers and b the kRows rows of a tile, kRows * 128 bytes per column.
template <class T, int kRows, int kCount>
__device__ inline void product_with_rows(float (&sums)[kCount], const uint32_t (&a)[kRows / 4], Operand b,
                                         bool accumulate) {
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i)
    mma_rs<T, Major::kMN>(sums, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b.at(i * 2048),
                          i != 0 || accumulate);
}

/// sums = a b^T over 128 columns of E4M3 codes; a and b are rows of 128 bytes.
template <int kCount>
__device__ inline void product_of_code_rows(float (&sums)[kCount], Operand a, Operand b) {
#pragma unroll
  for (int i = 0; i < 4; ++i) mma_codes_ss(sums, a.at(i * 32), b.at(i * 32), i != 0);
}

/// sums (+)= a b with E4M3 codes: a in registers, b as rows of its transpose, 128 bytes each.
template <int kCount, int kWords>
__device__ inline void product_with_code_columns(float (&sums)[kCount], const uint32_t (&a)[kWords], Operand b,
                                                 bool accumulate) {
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i)
    mma_codes_rs(sums, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b.at(i * 32), i != 0 || accumulate);
}

}  // namespace trireme::kernels::hopper
