// GELU's slope depends only on a code and its row's scale, so it comes from a table of the row's 256 codes, computed
// one row ahead.

#include "kernels/column_sum/block_sums.cuh"
#include "kernels/fp8/cluster_amax.cuh"
#include "kernels/fp8/fp8.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/gelu/gelu_backward_codes.h"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kPacks = 4, kWidth = 8, kBlocksPerSm = 8, kMostThreads = 512, kLeastThreads = 64,
              kResidentThreads = 640,  // limits registers so that five blocks of a 4,096-column row are resident
    kTableBytes = 1024;                // fp32 slopes of 256 codes

/// A row whose base addresses already include the thread's own offset: its packs are 32 packs apart.
struct StridedPacks {
  static __device__ int index(int p) { return 32 * p; }
  static __device__ bool holds(int /*p*/) { return true; }
};

/// Computes the slopes for all 256 codes of a row; the row's threads share the work.
__device__ inline void tabulate_slopes(const GeluCodes& saved, GeluKind kind, float inverse, float* slopes) {
  with_kind(kind, [&](auto constant) {
    for (unsigned code = threadIdx.x; code < 128; code += blockDim.x) {
      const GeluSlope<decltype(constant)::value> slope(from_fp8(static_cast<uint8_t>(code), saved.format) * inverse);
      slopes[code] = slope.positive(), slopes[code + 128] = slope.negative();
    }
  });
}

/// Multiplies d by the slopes of its codes. `slopes`: shared memory address of the row's table, a multiple of 1,024.
__device__ inline void multiply_slopes(float (&d)[kWidth], const Words<2>& codes, uint32_t slopes) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t word = codes.word[i / 4];
    const int byte = i % 4;
    const uint32_t offset = (byte == 0 ? word << 2 : word >> (8 * byte - 2)) & 0x3fcu;
    float slope;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(slope) : "r"(slopes | offset));
    d[i] *= slope;
  }
}

/// A block has a whole row, or with kCluster its part of the row.
template <class T, bool kBias, bool kCluster>
__global__ void __launch_bounds__(kResidentThreads) codes_kernel(const GeluBackward a) {
  extern __shared__ __align__(kTableBytes) char shared[];  // two tables, then a row's packs
  __shared__ float scratch[2][32];
  __shared__ uint64_t amaxes[2];
  const int threads = static_cast<int>(blockDim.x), parts = kCluster ? static_cast<int>(cluster_size()) : 1,
            pack = static_cast<int>(threadIdx.x) / 32 * 32 * kPacks + static_cast<int>(threadIdx.x) % 32;
  const int64_t step = gridDim.x / static_cast<unsigned>(parts);
  int64_t row = blockIdx.x / static_cast<unsigned>(parts);
  const int64_t part = (kCluster ? cluster_rank() : 0) * (threads * kPacks * kWidth);  // first column of this block
  char* const gradients = shared + 2 * kTableBytes + pack * 16;
  char* const codes = shared + 2 * kTableBytes + threads * (kPacks * 16) + pack * 8;
  // A thread copies the packs that it reads itself, after it has read those of the previous row.
  const auto fetch = [&](int64_t wanted) {
    if (wanted < a.rows) {
      const int64_t at = wanted * a.columns + part + pack * kWidth;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        copy_async16(gradients + p * 512, static_cast<const T*>(a.dy) + at + p * 256);
        copy_async8(codes + p * 256, a.saved.data + at + p * 256);
      }
    }
    copy_async_commit();
  };
  const auto inverse_of = [&](int64_t wanted) { return wanted < a.rows ? a.saved.inverse[wanted] : 1.0f; };
  const auto table = [&](int turn) { return reinterpret_cast<float*>(shared + turn * kTableBytes); };

  fetch(row);
  // The loop makes this a branch: with a predicate racecheck reports addresses of other threads.
  if (kCluster && threadIdx.x == 0)
    for (auto& amax : amaxes) TransactionBarrier(&amax).init(threads / 32);
  tabulate_slopes(a.saved, a.kind, inverse_of(row), table(0));
  __syncthreads();
  if constexpr (kCluster) cluster_barrier();  // no block may write to a block that has not started

  float sums[1][kBias ? kPacks : 1][kWidth] = {};
  int turn = 0;
  uint32_t parity = 0;
  int64_t first = row * a.columns + part + pack * kWidth;  // index of this thread's first element
  float inverse = inverse_of(row + step);
  for (; row < a.rows; row += step, first += step * a.columns) {
    copy_async_wait<0>();
    const uint32_t slopes = hopper::shared_address(table(turn));
    Words<4> dx[kPacks];
    Amax<T> top;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float d[kWidth];
      to_floats(*reinterpret_cast<const Vec<T, kWidth>*>(gradients + p * 512), d);
      multiply_slopes(d, *reinterpret_cast<const Words<2>*>(codes + p * 256), slopes);
      const Vec<T, kWidth> out = packed(from_floats<T>(d));
      dx[p] = as_words(out);
      top.add(out);
      if constexpr (kBias) add_to(sums[0][p], out);
    }
    fetch(row + step);
    tabulate_slopes(a.saved, a.kind, inverse, table(turn ^ 1));
    inverse = inverse_of(row + 2 * step);
    // Also a barrier: the table of this row may be overwritten, the next one is complete.
    float amax;
    if constexpr (kCluster) {
      // Two slots suffice: a block sends the numbers of the next row only after it has received all numbers of this
      // row, and every warp that sent those has read the numbers of the previous row.
      amax = cluster_amax(top.get(), TransactionBarrier(&amaxes[turn]), parity, scratch[turn]);
      parity ^= static_cast<uint32_t>(turn);
    } else {
      amax = row_amax(top.get(), threads, scratch[turn]);
    }
    turn ^= 1;
    if (a.dx != nullptr) store_row(static_cast<T*>(a.dx) + first, dx, StridedPacks{}, false);
    if (a.fp8.data == nullptr) continue;
    const float scale = settle_scale(a.fp8, amax, row, !kCluster || cluster_rank() == 0);
    store_row_fp8<T>(a.fp8.data + first, dx, StridedPacks{}, scale, a.fp8.format, false);
  }

  if constexpr (kBias)
    leave_sums(
        sums, [&](int p) { return static_cast<int>(part) + (pack + 32 * p) * kWidth; }, [](int) { return true; },
        static_cast<int>(a.columns), static_cast<float*>(nullptr),
        a.workspace + blockIdx.x / static_cast<unsigned>(parts) * a.columns);
}

template <class T, bool kBias>
cudaError_t launch(const GeluBackward& a, int64_t* blocks, cudaStream_t stream) {
  const int row_threads = static_cast<int>(a.columns / (kWidth * kPacks)), parts = blocks_of_whole_row(row_threads),
            threads = row_threads / parts;
  const size_t shared = 2 * kTableBytes + static_cast<size_t>(3 * kPacks * kWidth * threads);
  if (parts > 1)
    return launch_clusters(codes_kernel<T, kBias, true>, a, a.rows, parts, threads, shared, blocks, stream);
  const auto kernel = codes_kernel<T, kBias, false>;
  if (const cudaError_t error = allow_shared_memory(kernel, shared); error != cudaSuccess) return error;
  *blocks = resident_blocks(kernel, threads, shared, kBlocksPerSm, a.rows);
  kernel<<<static_cast<unsigned>(*blocks), threads, shared, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

bool gelu_backward_codes_fits(const GeluBackward& a) {
  const int64_t packs = a.columns / kWidth;
  return a.saved.data != nullptr && a.element != Element::kF32 && a.columns % kWidth == 0 &&
         whole_rows(packs, kPacks) && packs >= kLeastThreads * kPacks && packs <= kMostThreads * kPacks;
}

cudaError_t gelu_backward_codes(const GeluBackward& a, int64_t* blocks, cudaStream_t stream) {
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2)
      return a.d_bias != nullptr ? launch<T, true>(a, blocks, stream) : launch<T, false>(a, blocks, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace trireme::kernels
