#include "kernels/fp8_operands/fp8_operands.h"

#include "kernels/column_sum/column_sum.h"
#include "kernels/gelu/gelu.cuh"
#include "kernels/quantize/tile.cuh"

namespace trireme::kernels {

namespace {

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
  static constexpr int kBlocksPerSm = sizeof(T) == 4 ? 1 : 3, kInputs = sizeof(T) == 4 ? 0 : 2;
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
  __device__ Raw load(int64_t at) const { return {load_words(dy + at), load_words(x + at)}; }
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
  const tile::Output out{a.data, a.transposed, a.scale, a.amax, a.workspace, a.rows, a.columns, a.format};
  if (a.sums == nullptr) return tile::launch<false>(source, out, stream);
  if (const cudaError_t error = tile::launch<true>(source, out, stream); error != cudaSuccess) return error;
  return column_sum(a.workspace, ceil_div(a.rows, tile::kSide), a.columns, a.columns, a.sums, a.element,
                    /*accumulate=*/false, stream);
}

}  // namespace

int64_t fp8_operands_workspace(int64_t rows, int64_t columns) { return ceil_div(rows, tile::kSide) * columns; }

cudaError_t fp8_operands(const Fp8Operands& a, cudaStream_t stream) {
  const bool gradient = a.values == OperandValues::kGeluGradient;
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.rows == 0 || a.columns == 0 ||
      !aligned16(a.x, a.dy, a.bias, a.data, a.transposed) || a.transposed == nullptr || (a.dy != nullptr) != gradient ||
      (a.sums != nullptr && a.workspace == nullptr))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
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

}  // namespace trireme::kernels
