#include "kernels/dropout/dropout.h"

#include "kernels/dropout/dropout_hash.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256;

template <class T, int kWidth>
__global__ void dropout_kernel(const T* x, const T* addend, T* out, const int64_t* __restrict__ ids, int64_t row_size,
                               int64_t first, uint32_t t0, uint32_t t1, uint32_t threshold, float scale) {
  await_kernel_before();
  const int64_t row = blockIdx.y;
  const DropoutHash sample = sample_hash(static_cast<uint64_t>(ids[row]), t0, t1);
  const T* in_row = x + row * row_size;
  const T* addend_row = addend == nullptr ? nullptr : addend + row * row_size;
  T* out_row = out + row * row_size;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t e = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; e < row_size; e += stride) {
    if constexpr (kWidth > 1) {
      Pack<T> value = *reinterpret_cast<const Pack<T>*>(in_row + e), sum;
      if (addend_row != nullptr) sum = *reinterpret_cast<const Pack<T>*>(addend_row + e);
      // The product is rounded to T before it is added, as two separate operations would round.
      value = dropped(value, sample, first + e, threshold, scale);
      if (addend_row != nullptr) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          value.value[i] = from_float<T>(to_float(sum.value[i]) + to_float(value.value[i]));
      }
      *reinterpret_cast<Pack<T>*>(out_row + e) = value;
    } else {
      const int64_t at = first + e;
      const uint32_t h = dropout_draw(sample.of_upper(static_cast<uint32_t>(at >> 33)), static_cast<uint32_t>(at >> 1));
      const bool kept = (at % 2 == 0 ? h & 0xffff : h >> 16) >= threshold;
      T value = from_float<T>(kept ? to_float(in_row[e]) * scale : 0.0f);
      if (addend_row != nullptr) value = from_float<T>(to_float(addend_row[e]) + to_float(value));
      out_row[e] = value;
    }
  }
}

}  // namespace

cudaError_t dropout(const DropoutArguments& a, cudaStream_t stream) {
  if (a.rows == 0 || a.row_size == 0) return cudaSuccess;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const auto launch = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t blocks = ceil_div(a.row_size, kThreads * kWidth);
      return launch_pieces(a.rows, [&](int64_t begin, unsigned rows) {
        const dim3 grid(static_cast<unsigned>(blocks < 65536 ? blocks : 65536), rows);
        return launch_behind(dropout_kernel<T, kWidth>, grid, kThreads, 0, stream,
                             static_cast<const T*>(a.x) + begin * a.row_size,
                             a.addend == nullptr ? nullptr : static_cast<const T*>(a.addend) + begin * a.row_size,
                             static_cast<T*>(a.out) + begin * a.row_size, a.ids + begin, a.row_size, a.first, a.t0,
                             a.t1, a.threshold, a.scale);
      });
    };
    if (a.row_size % kPack == 0 && a.first % kPack == 0 && aligned16(a.x, a.addend, a.out))
      return launch(std::integral_constant<int, kPack>{});
    return launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace trireme::kernels
