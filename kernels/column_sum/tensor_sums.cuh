#pragma once
// fp32 sums of 16-bit elements, each in its own thread and place, by the tensor cores: one
// instruction for four elements of a thread, where unpacking and adding take eight.

#include "kernels/device.cuh"

namespace trireme::kernels {

/// The unit matrix as a factor: of a product A E + C every thread holds in C just the sums of the
/// elements that it holds of A.
template <class T>
class TensorSums {
 public:
  __device__ TensorSums() {
    constexpr uint32_t kOne = __is_same(T, __half) ? 0x3c00 : 0x3f80;
    const uint32_t row = threadIdx.x % 4 * 2, column = threadIdx.x % 32 / 4;
    unit_ = row == column ? kOne : row + 1 == column ? kOne << 16 : 0;
    asm volatile("" : "+r"(unit_));  // kept: the compiler would make it again for every row
  }
  /// Exact but for the additions, which round towards zero. A whole warp calls it, and all elements
  /// of its packs are finite: an infinity times zero would reach its neighbours' sums.
  __device__ void add(const Words<4>& pack, float (&sums)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const to = sums + 4 * half;
      const uint32_t a = pack.word[2 * half], b = pack.word[2 * half + 1];
      if constexpr (__is_same(T, __half))
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
            : "r"(a), "r"(b), "r"(unit_));
      else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
            : "r"(a), "r"(b), "r"(unit_));
    }
  }

 private:
  uint32_t unit_;
};

/// Elements of any value, one by one.
template <class T>
__device__ inline void add_elements(const Words<4>& pack, float (&sums)[16 / sizeof(T)]) {
  float v[16 / sizeof(T)];
  to_floats(as_pack<T>(pack), v);
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) sums[i] += v[i];
}

}  // namespace trireme::kernels
