#include "kernels/scale/scale.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4;

/// kWidth elements of the wider type are 16 bytes.
template <class T, class U, int kWidth>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const T* x, const float* factor, U* out, int64_t count, bool adds) {
  const float by = *factor;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x) * kWidth;
  Vec<T, kWidth> vec[kUnroll];
  Vec<U, kWidth> sum[kUnroll] = {};
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    if (first + k * kThreads * kWidth >= count) continue;
    vec[k] = *reinterpret_cast<const Vec<T, kWidth>*>(x + first + k * kThreads * kWidth);
    if (adds) sum[k] = *reinterpret_cast<const Vec<U, kWidth>*>(out + first + k * kThreads * kWidth);
  }
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    if (first + k * kThreads * kWidth >= count) continue;
    float v[kWidth], before[kWidth];
    to_floats(vec[k], v);
    to_floats(sum[k], before);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = adds ? fmaf(v[i], by, before[i]) : v[i] * by;
    store(out + first + k * kThreads * kWidth, from_floats<U>(v));
  }
}

template <class T>
struct RowsArguments {
  const T* x;
  const float* factors;
  T* out;
  int64_t rows, columns;
  const T *bias = nullptr, *addend = nullptr;  // of scale_columns
};

/// blockDim = (threads of a row, rows of a block). kColumns: a factor for each column.
template <class T, int kWidth, bool kColumns>
__global__ void __launch_bounds__(kThreads) scale_rows_kernel(const RowsArguments<T> a) {
  await_kernel_before();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const float by = kColumns ? 1.0f : a.factors[row];
  const T* const x = a.x + row * a.columns;
  T* const out = a.out + row * a.columns;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kWidth;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kWidth; first < a.columns; first += kUnroll * step) {
    Vec<T, kWidth> vec[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * step < a.columns) vec[k] = *reinterpret_cast<const Vec<T, kWidth>*>(x + first + k * step);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (first + k * step >= a.columns) continue;
      float v[kWidth];
      to_floats(vec[k], v);
      if constexpr (kColumns) {
        const int64_t column = first + k * step;
        float more[kWidth] = {};
        if (a.bias != nullptr) to_floats(*reinterpret_cast<const Vec<T, kWidth>*>(a.bias + column), more);
        if (a.addend != nullptr) {
          float other[kWidth];
          to_floats(*reinterpret_cast<const Vec<T, kWidth>*>(a.addend + row * a.columns + column), other);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) more[i] += other[i];
        }
#pragma unroll
        for (int i = 0; i < kWidth; ++i) v[i] = fmaf(v[i], __ldg(a.factors + column + i), more[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) v[i] *= by;
      }
      store(out + first + k * step, from_floats<T>(v));
    }
  }
}

template <class T, int kWidth, bool kColumns>
cudaError_t launch_scale_rows(const RowsArguments<T>& a, cudaStream_t stream) {
  RowGeometry g = row_geometry(ceil_div(a.columns, kWidth), kUnroll);
  if (g.threads > kThreads) g.threads = kThreads;
  return launch_each_row(scale_rows_kernel<T, kWidth, kColumns>, a, a.rows, g, stream);
}

}  // namespace

cudaError_t scale(const void* x, Element x_element, const float* factor, void* out, Element out_element, int64_t count,
                  bool adds, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return dispatch(x_element, [&](auto x_zero) {
    using T = decltype(x_zero);
    return dispatch(out_element, [&](auto out_zero) {
      using U = decltype(out_zero);
      constexpr int kWidth = 16 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));
      const auto launch = [&](auto width) {
        constexpr int kOwn = decltype(width)::value;
        scale_kernel<T, U, kOwn>
            <<<static_cast<unsigned>(ceil_div(count, kThreads * kUnroll * kOwn)), kThreads, 0, stream>>>(
                static_cast<const T*>(x), factor, static_cast<U*>(out), count, adds);
        return cudaGetLastError();
      };
      if (count % kWidth == 0 && aligned16(x, out)) return launch(std::integral_constant<int, kWidth>{});
      return launch(std::integral_constant<int, 1>{});
    });
  });
}

cudaError_t scale_rows(const void* x, const float* factors, void* out, int64_t rows, int64_t columns, Element element,
                       cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const RowsArguments<T> a{static_cast<const T*>(x), factors, static_cast<T*>(out), rows, columns};
    return columns % kPack == 0 && aligned16(x, out) ? launch_scale_rows<T, kPack, false>(a, stream)
                                                     : launch_scale_rows<T, 1, false>(a, stream);
  });
}

cudaError_t scale_columns(const void* x, const float* factors, const void* bias, const void* addend, void* out,
                          int64_t rows, int64_t columns, Element element, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const RowsArguments<T> a{
        static_cast<const T*>(x),     factors, static_cast<T*>(out), rows, columns, static_cast<const T*>(bias),
        static_cast<const T*>(addend)};
    return columns % kPack == 0 && aligned16(x, out, bias, addend) ? launch_scale_rows<T, kPack, true>(a, stream)
                                                                   : launch_scale_rows<T, 1, true>(a, stream);
  });
}

}  // namespace trireme::kernels
