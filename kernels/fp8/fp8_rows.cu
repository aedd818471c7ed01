// Codes in the layout of the matrix: a scale per row, or one that is known beforehand; and the scale from the amax.

#include "kernels/fp8/fp8.cuh"
#include "kernels/row_prefetch.cuh"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kScalarThreads = 256, kThreads = 256, kUnroll = 4, kBlocksPerSm = 16;

struct RowsArguments {
  const void* x;
  uint8_t* data;
  float* inverse;
  int64_t rows, columns;
  void* maxima;  // a row for each block
};

/// Fewest threads of a row whose column maxima are found: shorter rows need more blocks than may write maxima.
constexpr int kLeastMaximaThreads = 96;

template <class T, int kPacks, int kMaxThreads, int kStages, bool kMaxima = false>
__global__ void __launch_bounds__(kMaxThreads, kMaxima ? 2 : 0) rows_kernel(const RowsArguments a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][32];
  constexpr int kWidth = 16 / sizeof(T);
  RowCursor cursor(a.rows, static_cast<int>(a.columns / kWidth));
  char* free = shared;
  RowPrefetch<kPacks, kStages> input(free, a.x, a.columns * static_cast<int64_t>(sizeof(T)));
  start_inputs<kStages>(cursor, input);
  ColumnMaxima<T, kPacks, kMaxima> maxima;
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    Vec<T, kWidth> x[kPacks];
    Amax<T> amax;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      x[p] = packed(input.template take<Vec<T, kWidth>>(p, cursor));
      amax.add(x[p]);
      maxima.add(p, x[p]);
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
  maxima.write(static_cast<T*>(a.maxima) + blockIdx.x * a.columns, cursor);
}

/// Any width and alignment; reads the row twice.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) scalar_kernel(const RowsArguments a) {
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

/// Values that are read once, 16 bytes at a time: their codes are written, or their largest magnitude raises *amax.
struct Values {
  const void* x;
  uint8_t* data;
  const float* scale;
  float* amax;
  int64_t packs;
};

template <class T, int kWidth, bool kCodes>
__global__ void __launch_bounds__(kThreads) values_kernel(const Values a) {
  const T* x = static_cast<const T*>(a.x);
  const float scale = kCodes ? *a.scale : 1.0f;
  std::conditional_t<kWidth == 1, Amax<float>, Amax<T>> top;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; first < a.packs;
       first += kUnroll * step) {
    Vec<T, kWidth> in[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * step < a.packs) in[k] = load_stream<T, kWidth>(x + (first + k * step) * kWidth);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (first + k * step >= a.packs) continue;
      float v[kWidth];
      to_floats(in[k], v);
      if constexpr (kCodes)
        store_fp8(a.data + (first + k * step) * kWidth, v, scale);
      else if constexpr (kWidth == 1)
        top.add(Vec<float, 1>{{v[0]}});
      else
        top.add(in[k]);
    }
  }
  if constexpr (!kCodes) raise_amax_by_warp(a.amax, top.get());
}

template <class T, int kWidth, bool kCodes>
cudaError_t launch(const Values& a, cudaStream_t stream) {
  if (a.packs == 0) return cudaSuccess;
  const int64_t blocks = ceil_div(a.packs, kThreads), most = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  values_kernel<T, kWidth, kCodes><<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class T, bool kCodes>
cudaError_t launch(Values a, int64_t count, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  a.packs = aligned16(a.x, a.data) ? count / kWidth : 0;
  if (const cudaError_t error = launch<T, kWidth, kCodes>(a, stream); error != cudaSuccess) return error;
  const int64_t done = a.packs * kWidth;
  a.x = static_cast<const T*>(a.x) + done;
  if constexpr (kCodes) a.data += done;
  a.packs = count - done;
  return launch<T, 1, kCodes>(a, stream);
}

}  // namespace

cudaError_t quantize_rows(const void* x, uint8_t* data, float* inverse, int64_t rows, int64_t columns, Element element,
                          cudaStream_t stream, const WantedMaxima& maxima) {
  if (maxima.found != nullptr) *maxima.found = {};
  if (rows == 0 || columns == 0) return cudaSuccess;
  const RowsArguments a{x, data, inverse, rows, columns, maxima.columns};
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = columns / kWidth;
    if (columns % kWidth == 0 && aligned16(x, data)) {
      const RowGeometry few = row_geometry(packs, 4);
      if constexpr (sizeof(T) == 2) {
        if (maxima.columns != nullptr && few.threads >= kLeastMaximaThreads && packs <= 4 * 512)
          return launch_rows(rows_kernel<T, 4, 512, 2, true>, a, rows, few, 2 * 4 * 16, stream,
                             {0, maxima_blocks_per_sm(columns), &maxima.found->column_rows});
      }
      if (packs <= 4 * 512) return launch_rows(rows_kernel<T, 4, 512, 2>, a, rows, few, 2 * 4 * 16, stream);
      const RowGeometry wide = row_geometry(packs, 8);
      if (packs <= 8 * 1024 && fits_shared_memory(size_t{8} * 16 * static_cast<size_t>(wide.threads)))
        return launch_rows(rows_kernel<T, 8, 1024, 1>, a, rows, wide, 8 * 16, stream);
    }
    scalar_kernel<T><<<static_cast<unsigned>(rows), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t quantize_values(const void* x, uint8_t* data, const float* scale, int64_t count, Element element,
                            cudaStream_t stream) {
  return dispatch(element,
                  [&](auto zero) { return launch<decltype(zero), true>({x, data, scale, nullptr, 0}, count, stream); });
}

cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream) {
  return dispatch(
      element, [&](auto zero) { return launch<decltype(zero), false>({x, nullptr, nullptr, amax, 0}, count, stream); });
}

}  // namespace trireme::kernels
