// Codes and their transpose, a tile at a time.

#include "kernels/column_sum/column_sum.h"
#include "kernels/fp8/fp8_tile.cuh"
#include "kernels/gelu/gelu.cuh"

namespace trireme::kernels {

namespace {

template <class F>
cudaError_t dispatch_16_bit(Element element, const F& f) {
  return element == Element::kF16    ? f(__half{})
         : element == Element::kBF16 ? f(__nv_bfloat16{})
                                     : cudaErrorInvalidValue;
}

template <class T>
__device__ inline Vec<T, 16 / sizeof(T)> plus_bias(const Words<4>& x, const T* bias, int64_t column) {
  const auto z = as_pack<T>(x);
  return bias == nullptr ? z : add(z, load_shared_read<T, 16 / sizeof(T)>(bias + column));
}

template <class T>
struct Activated : tile::OneMatrix<T> {
  using typename tile::OneMatrix<T>::Raw;
  const T* bias;
  GeluKind kind;
  template <class F>
  __device__ void with_form(const F& f) const {
    with_kind(kind, f);
  }
  template <class Form>
  __device__ Vec<T, 16 / sizeof(T)> value(const Raw& raw, int64_t column, Form /*form*/) const {
    float z[16 / sizeof(T)];
    to_floats(plus_bias(raw, bias, column), z);
    gelu<T, Form::value>(z);
    return from_floats<T>(z);
  }
};

template <class T>
struct Gradient {
  using Element = T;
  struct Raw {
    Words<4> dy, x;
  };
  static constexpr bool kCodes = false, kColumnScales = false;
  // With two input matrices, three blocks' tiles fill a multiprocessor's shared memory.
  static constexpr int kBlocksPerSm = 3, kInputs = 2;
  const T* dy;
  const T* x;
  const T* bias;
  GeluKind kind;
  template <class F>
  __device__ void with_form(const F& f) const {
    with_kind(kind, f);
  }
  __device__ const T* from(int input) const { return input == 0 ? dy : x; }
  template <class Slot>
  __device__ Raw take(const Slot& slot) const {
    return {*reinterpret_cast<const Words<4>*>(slot(0)), *reinterpret_cast<const Words<4>*>(slot(1))};
  }
  template <class Form>
  __device__ Vec<T, 16 / sizeof(T)> value(const Raw& raw, int64_t column, Form /*form*/) const {
    float d[16 / sizeof(T)], z[16 / sizeof(T)];
    to_floats(as_pack<T>(raw.dy), d);
    to_floats(plus_bias(raw.x, bias, column), z);
    gelu_gradient<T, Form::value>(d, z);
    return from_floats<T>(d);
  }
};

template <class Source>
cudaError_t run(const Source& source, const Fp8Operands& a, cudaStream_t stream) {
  const tile::Output out{a.data,    a.transposed, a.scale, a.amax,    a.own_amax,
                         a.inverse, a.workspace,  a.rows,  a.columns, a.format};
  if (a.sums == nullptr) return tile::launch<false>(source, out, stream);
  if (const cudaError_t error = tile::launch<true>(source, out, stream); error != cudaSuccess) return error;
  return column_sum(a.workspace, ceil_div(a.rows, tile::kSide), a.columns, a.columns, a.sums, a.element, stream);
}

constexpr int kThreads = 256, kWarps = kThreads / 32, kRowsPerBlock = 128, kUnroll = 4;

/// A warp takes 32 packs of a row, a block kRowsPerBlock rows. top [columns] starts as zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    maxima_kernel(const T* x, float* top, int64_t rows, int64_t columns, int64_t blocks_down) {
  constexpr int kWidth = 16 / sizeof(T);
  __shared__ __align__(16) uint32_t parts[kWarps][4][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = (blockIdx.x / blocks_down * 32 + lane) * kWidth,
                first = blockIdx.x % blocks_down * kRowsPerBlock + warp;
  const bool here = column < columns;
  Words<4> most = {};
#pragma unroll
  for (int pass = 0; pass < kRowsPerBlock / kWarps; pass += kUnroll) {
    Words<4> in[kUnroll] = {};
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int64_t row = first + (pass + k) * kWarps;
      if (here && row < rows) in[k] = load_words(x + row * columns + column);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
#pragma unroll
      for (int w = 0; w < 4; ++w) most.word[w] = larger(most.word[w], in[k].word[w]);
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) parts[warp][w][lane] = most.word[w];
  __syncthreads();
  if (warp != 0 || !here) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other)
#pragma unroll
    for (int w = 0; w < 4; ++w) most.word[w] = larger(most.word[w], parts[other][w][lane]);
  float value[kWidth];
  to_floats(as_pack<T>(most), value);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) raise_amax(top + column + i, value[i]);
}

/// Overwrites the maxima with the factors of the codes.
__global__ void __launch_bounds__(kThreads) scales_kernel(float* top, float* inverse, int64_t columns) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  const float value = row_inverse_scale(top[column]);
  inverse[column] = value;
  top[column] = 1.0f / value;
}

template <class T>
struct ScaledColumns : tile::Plain<T> {
  static constexpr bool kColumnScales = true;
  const float* factor;
  __device__ void scale_columns(float (&v)[16 / sizeof(T)], int64_t column) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(16 / sizeof(T)); i += 4) {
      const float4 by = __ldg(reinterpret_cast<const float4*>(factor + column + i));
      v[i] *= by.x, v[i + 1] *= by.y, v[i + 2] *= by.z, v[i + 3] *= by.w;
    }
  }
};

template <class T>
cudaError_t run_columns(const Fp8Columns& a, cudaStream_t stream) {
  const T* x = static_cast<const T*>(a.x);
  const T* searched = a.maxima != nullptr ? static_cast<const T*>(a.maxima) : x;
  const int64_t rows = a.maxima != nullptr ? a.maxima_rows : a.rows;
  if (const cudaError_t error = cudaMemsetAsync(a.workspace, 0, static_cast<size_t>(a.columns) * sizeof(float), stream);
      error != cudaSuccess)
    return error;
  const int64_t down = ceil_div(rows, kRowsPerBlock), across = ceil_div(a.columns, 32 * 16 / sizeof(T));
  maxima_kernel<T>
      <<<static_cast<unsigned>(down * across), kThreads, 0, stream>>>(searched, a.workspace, rows, a.columns, down);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  scales_kernel<<<static_cast<unsigned>(ceil_div(a.columns, kThreads)), kThreads, 0, stream>>>(a.workspace, a.inverse,
                                                                                               a.columns);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  tile::Output out;
  out.transposed = a.transposed;
  out.rows = a.rows;
  out.columns = a.columns;
  ScaledColumns<T> source;
  source.x = x;
  source.factor = a.workspace;
  return tile::launch</*kSums=*/false>(source, out, stream);
}

}  // namespace

int64_t column_maxima_rows(int64_t rows, int64_t columns) {
  const int64_t blocks = int64_t{maxima_blocks_per_sm(columns)} * multiprocessors();
  return rows < blocks ? rows : blocks;
}

int64_t fp8_operands_workspace(int64_t rows, int64_t columns) { return ceil_div(rows, tile::kSide) * columns; }

cudaError_t fp8_operands(const Fp8Operands& a, cudaStream_t stream) {
  if ((a.scale == nullptr) == (a.own_amax == nullptr) || (a.own_amax != nullptr && a.inverse == nullptr))
    return cudaErrorInvalidValue;
  const bool gradient = a.values == OperandValues::kGeluGradient;
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.rows == 0 || a.columns == 0 ||
      !aligned16(a.x, a.dy, a.bias, a.data, a.transposed) || a.transposed == nullptr || (a.dy != nullptr) != gradient ||
      (a.sums != nullptr && a.workspace == nullptr))
    return cudaErrorInvalidValue;
  return dispatch_16_bit(a.element, [&](auto zero) {
    using T = decltype(zero);
    const auto typed = [](const void* p) { return static_cast<const T*>(p); };
    switch (a.values) {
      case OperandValues::kPlain: return run(tile::Plain<T>{typed(a.x)}, a, stream);
      case OperandValues::kGelu: return run(Activated<T>{typed(a.x), typed(a.bias), a.gelu}, a, stream);
      case OperandValues::kGeluGradient:
        return run(Gradient<T>{typed(a.dy), typed(a.x), typed(a.bias), a.gelu}, a, stream);
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t fp8_columns(const Fp8Columns& a, cudaStream_t stream) {
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.rows == 0 || a.columns == 0 || a.transposed == nullptr ||
      a.inverse == nullptr || a.workspace == nullptr || !aligned16(a.x, a.transposed, a.workspace, a.maxima) ||
      (a.maxima != nullptr && a.maxima_rows < 1))
    return cudaErrorInvalidValue;
  return dispatch_16_bit(a.element, [&](auto zero) { return run_columns<decltype(zero)>(a, stream); });
}

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  if (rows % 16 != 0 || columns % 16 != 0 || !aligned16(in, out)) return cudaErrorInvalidValue;
  tile::Output to;
  to.transposed = out, to.rows = rows, to.columns = columns;
  return tile::launch</*kSums=*/false>(tile::Plain<uint8_t>{in}, to, stream);
}

}  // namespace trireme::kernels
