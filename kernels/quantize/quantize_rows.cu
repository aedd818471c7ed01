#include "kernels/fp8/fp8.cuh"
#include "kernels/quantize/quantize.h"
#include "kernels/row_prefetch.cuh"

namespace trireme::kernels {

namespace {

constexpr int kScalarThreads = 256;

struct Arguments {
  const void* x;
  uint8_t* data;
  float* inverse;
  int64_t rows, columns;
};

template <class T, int kPacks, int kMaxThreads, int kStages>
__global__ void __launch_bounds__(kMaxThreads) rows_kernel(const Arguments a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][32];
  constexpr int kWidth = 16 / sizeof(T);
  RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  char* free = shared;
  RowPrefetch<kPacks, 16, kStages> input(free, a.x, a.columns * static_cast<int64_t>(sizeof(T)));
  start_inputs<kStages>(cursor, input);
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    Vec<T, kWidth> x[kPacks];
    Amax<T> amax;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      x[p] = packed(input.template take<Vec<T, kWidth>>(p, cursor));
      amax.add(x[p]);
    }
    end_row();
    const float inverse = row_inverse_scale(row_amax(amax.get(), blockDim.x, scratch[cursor.turn])),
                factor = 1.0f / inverse;
    if (threadIdx.x == 0) a.inverse[cursor.row] = inverse;
    uint8_t* row = a.data + cursor.row * a.columns;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float v[kWidth];
      to_floats(packed(x[p]), v);
      store_fp8(row + cursor.index(p) * kWidth, v, factor);
    }
  }
}

/// Any width and alignment; reads the row twice.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const Arguments a) {
  __shared__ float scratch[32];
  const int64_t base = blockIdx.x * a.columns;
  const T* x = static_cast<const T*>(a.x) + base;
  float amax = 0.0f;
  for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) amax = amax_of(amax, to_float(x[c]));
  const float inverse = row_inverse_scale(row_amax(amax, kScalarThreads, scratch)), factor = 1.0f / inverse;
  if (threadIdx.x == 0) a.inverse[blockIdx.x] = inverse;
  for (int64_t c = threadIdx.x; c < a.columns; c += kScalarThreads) {
    const float value[1] = {to_float(x[c])};
    store_fp8(a.data + base + c, value, factor);
  }
}

}  // namespace

cudaError_t quantize_rows(const void* x, uint8_t* data, float* inverse, int64_t rows, int64_t columns, Element element,
                          cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const Arguments a{x, data, inverse, rows, columns};
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = columns / kWidth;
    if (columns % kWidth == 0 && aligned16(x, data)) {
      if (packs <= 4 * 512)
        return launch_rows(rows_kernel<T, 4, 512, 2>, a, rows, row_geometry(packs, 4), 2 * 4 * 16, stream);
      if (packs <= 8 * 1024)
        return launch_rows(rows_kernel<T, 8, 1024, 1>, a, rows, row_geometry(packs, 8), 8 * 16, stream);
    }
    scalar_kernel<T><<<static_cast<unsigned>(rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
