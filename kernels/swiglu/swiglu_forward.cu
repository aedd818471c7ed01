#include "kernels/swiglu/swiglu.cuh"

namespace trireme::kernels {

namespace {

using namespace swiglu_rows;

__device__ inline float settle_half(const SwigluCodes& saved, float top, int64_t row, int half) {
  const float inverse = row_inverse_scale(top);
  if (threadIdx.x == 0) saved.inverse[2 * row + half] = inverse;
  return 1.0f / inverse;
}

// Two blocks on a multiprocessor leave kManyPacks packs with maxima 80 registers, which ptxas finds enough for sm_90a
// only: elsewhere it would spill, and the maxima are not found (launch_forward()).
#ifdef TRIREME_SM90A
constexpr int kManyMaximaBlocks = kMaximaBlocksPerSm;
#else
constexpr int kManyMaximaBlocks = 1;
#endif
template <int kPacks, bool kMaxima>
constexpr int kForwardThreads = kMaxima && kPacks == kManyPacks ? kMaximaThreads : kMaxThreads;
template <int kPacks, bool kMaxima>
constexpr int kForwardBlocks = !kMaxima               ? 0
                               : kPacks == kManyPacks ? kManyMaximaBlocks
                                                      : kMaximaBlocksPerSm;

template <class T, int kPacks, bool kSaves, bool kMaxima>
__global__ void __launch_bounds__(kForwardThreads<kPacks, kMaxima>, kForwardBlocks<kPacks, kMaxima>)
    forward_kernel(const SwigluForward a) {
  await_kernel_before();
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][3 * 32];
  using Pack = Vec<T, kWidth>;
  RowCursor cursor(a.tokens, static_cast<int>(a.f / kWidth));
  char* free = shared;
  const T* gate_up = static_cast<const T*>(a.gate_up);
  RowPrefetch<kPacks, kStages> gates(free, gate_up, 4 * a.f), ups(free, gate_up + a.f, 4 * a.f);
  start_inputs<kStages>(cursor, gates, ups);
  ColumnMaxima<T, kPacks, kMaxima> maxima;
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    constexpr int kKept = kSaves ? kPacks : 1;
    Pack y[kPacks], gate[kKept], up[kKept];
    Amax<T> top_y, top_gate, top_up;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      const Pack g = gates.template take<Pack>(p, cursor), u = ups.template take<Pack>(p, cursor);
      if constexpr (kSaves) {
        gate[p] = packed(g), up[p] = packed(u);
        top_gate.add(g);
        top_up.add(u);
      }
      float v[kWidth], w[kWidth];
      to_floats(g, v);
      to_floats(u, w);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = swiglu<T>(v[i], w[i]);
      y[p] = packed(from_floats<T>(v));
      top_y.add(y[p]);
      maxima.add(p, y[p]);
      if (a.y != nullptr) store(static_cast<T*>(a.y) + cursor.row * a.f + cursor.index(p) * kWidth, y[p]);
    }
    end_row();
    float scale, gate_scale = 0.0f, up_scale = 0.0f;
    if constexpr (kSaves) {
      float top[3] = {top_y.get(), top_gate.get(), top_up.get()};
      row_amax(top, blockDim.x, scratch[cursor.turn]);
      gate_scale = settle_half(a.saved, top[1], cursor.row, 0);
      up_scale = settle_half(a.saved, top[2], cursor.row, 1);
      scale = a.fp8.data != nullptr ? settle_scale(a.fp8, top[0], cursor.row) : 0.0f;
    } else {
      scale = settle_scale(a.fp8, row_amax(top_y.get(), blockDim.x, scratch[cursor.turn]), cursor.row);
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      const int column = cursor.index(p) * kWidth;
      float v[kWidth];
      if (!kSaves || a.fp8.data != nullptr) {
        to_floats(packed(y[p]), v);
        store_fp8(a.fp8.data + cursor.row * a.f + column, v, scale);
      }
      if constexpr (kSaves) {
        uint8_t* saved = a.saved.data + cursor.row * 2 * a.f + column;
        to_floats(packed(gate[p]), v);
        store_fp8(saved, v, gate_scale);
        to_floats(packed(up[p]), v);
        store_fp8(saved + a.f, v, up_scale);
      }
    }
  }
  maxima.write(static_cast<T*>(a.maxima.columns) + blockIdx.x * a.f, cursor);
}

/// Any width, type and alignment; reads its row twice.
template <class T>
__global__ void __launch_bounds__(kScalarThreads) forward_scalar_kernel(const SwigluForward a) {
  __shared__ float scratch[3 * 32];
  const int64_t row = blockIdx.x;
  const T* gate_up = static_cast<const T*>(a.gate_up) + row * 2 * a.f;
  const auto activated = [&](int64_t c) {
    return from_float<T>(swiglu<T>(to_float(gate_up[c]), to_float(gate_up[a.f + c])));
  };
  float top[3] = {};
  for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
    const T y = activated(c);
    if (a.y != nullptr) static_cast<T*>(a.y)[row * a.f + c] = y;
    top[0] = amax_of(top[0], to_float(y));
    top[1] = amax_of(top[1], to_float(gate_up[c]));
    top[2] = amax_of(top[2], to_float(gate_up[a.f + c]));
  }
  row_amax(top, kScalarThreads, scratch);
  if (a.fp8.data != nullptr) {
    const float scale = settle_scale(a.fp8, top[0], row);
    for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
      const float value[1] = {to_float(activated(c))};
      store_fp8(a.fp8.data + row * a.f + c, value, scale);
    }
  }
  if (a.saved.data == nullptr) return;
  for (int half = 0; half < 2; ++half) {
    const float scale = settle_half(a.saved, top[1 + half], row, half);
    for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
      const float value[1] = {to_float(gate_up[half * a.f + c])};
      store_fp8(a.saved.data + (2 * row + half) * a.f + c, value, scale);
    }
  }
}

template <class T, bool kSaves>
cudaError_t launch_forward(const SwigluForward& a, cudaStream_t stream) {
  const int64_t packs = a.f / kWidth;
  const bool few = packs <= kFewPacks * kMaxThreads;
  if (!kSaves && a.maxima.columns != nullptr && packs > kFewPacks * kLeastMaximaThreads &&
      (few || (packs <= kManyPacks * kMaximaThreads && runs_sm90a())))
    return few ? launch_maxima(forward_kernel<T, kFewPacks, false, true>, a, kFewPacks, 32, stream)
               : launch_maxima(forward_kernel<T, kManyPacks, false, true>, a, kManyPacks, 32, stream);
  if (few)
    return launch_rows(forward_kernel<T, kFewPacks, kSaves, false>, a, a.tokens, row_geometry(packs, kFewPacks),
                       kFewPacks * 32, stream);
  return launch_rows(forward_kernel<T, kManyPacks, kSaves, false>, a, a.tokens, row_geometry(packs, kManyPacks),
                     kManyPacks * 32, stream);
}

template <class T, GateKind kGate, int kWidth, bool kAmax>
__global__ void __launch_bounds__(kPlainThreads) swiglu_kernel(const T* gate_up, T* y, int64_t f, float* amax) {
  const int64_t token = blockIdx.y,
                first = (static_cast<int64_t>(blockIdx.x) * kUnroll * kPlainThreads + threadIdx.x) * kWidth;
  const T* row = gate_up + token * 2 * f;
  Vec<T, kWidth> gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kPlainThreads * kWidth;
    if (column >= f) continue;
    gate[k] = load_stream<T, kWidth>(row + column);
    up[k] = load_stream<T, kWidth>(row + f + column);
  }
  BlockAmax<T, kWidth> top;
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t column = first + k * kPlainThreads * kWidth;
    if (column >= f) continue;
    float g[kWidth], u[kWidth];
    to_floats(gate[k], g);
    to_floats(up[k], u);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = swiglu<T, kGate>(g[i], u[i]);
    const Vec<T, kWidth> value = from_floats<T>(g);
    store(y + token * f + column, value);
    if constexpr (kAmax) top.add(value);
  }
  if constexpr (kAmax) top.raise(amax);
}

cudaError_t plain(const SwigluForward& a, cudaStream_t stream) {
  return launch_plain(
      a, aligned16(a.gate_up, a.y), stream, [&](auto zero, auto gate, auto width, auto amax, dim3 grid, int64_t begin) {
        using T = decltype(zero);
        swiglu_kernel<T, decltype(gate)::value, decltype(width)::value, decltype(amax)::value>
            <<<grid, kPlainThreads, 0, stream>>>(static_cast<const T*>(a.gate_up) + begin * 2 * a.f,
                                                 static_cast<T*>(a.y) + begin * a.f, a.f, a.maxima.amax);
      });
}

}  // namespace

cudaError_t swiglu_forward(const SwigluForward& a, cudaStream_t stream) {
  if (a.maxima.found != nullptr) *a.maxima.found = {};
  if (a.tokens == 0 || a.f == 0) return cudaSuccess;
  if (a.fp8.data == nullptr && a.saved.data == nullptr)
    return a.y == nullptr ? cudaErrorInvalidValue : plain(a, stream);
  if (a.gate != GateKind::kSilu) return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (suits_packs<T>(a.f, a.gate_up, a.y, a.fp8.data, a.saved.data) && fits_rows(a.f, 2))
        return a.saved.data != nullptr ? launch_forward<T, true>(a, stream) : launch_forward<T, false>(a, stream);
    }
    forward_scalar_kernel<T><<<static_cast<unsigned>(a.tokens), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
