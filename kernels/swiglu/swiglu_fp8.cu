#include "kernels/fp8/fp8.cuh"
#include "kernels/row_prefetch.cuh"
#include "kernels/swiglu/swiglu.cuh"
#include "kernels/swiglu/swiglu.h"

namespace trireme::kernels {

namespace {

// Packs of each half of a row for a thread: few for short rows, so that several blocks share a
// multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kWidth = 8,
              kStages = 1;

using Codes = Vec<uint16_t, kWidth / 2>;

__device__ inline float settle_half(const SwigluCodes& saved, float top, int64_t row, int half) {
  const float inverse = row_inverse_scale(top, saved.format);
  if (threadIdx.x == 0) saved.inverse[2 * row + half] = inverse;
  return 1.0f / inverse;
}

template <class T, int kPacks, bool kSaves>
__global__ void __launch_bounds__(kMaxThreads) forward_kernel(const SwigluForward a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][3 * 32];
  using Pack = Vec<T, kWidth>;
  RowCursor cursor(a.tokens, static_cast<int>(a.f / kWidth));
  char* free = shared;
  const T* gate_up = static_cast<const T*>(a.gate_up);
  RowPrefetch<kPacks, 16, kStages> gates(free, gate_up, 4 * a.f), ups(free, gate_up + a.f, 4 * a.f);
  start_inputs<kStages>(cursor, gates, ups);
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
      if (a.y != nullptr)
        store(static_cast<T*>(a.y) + cursor.row * a.f + cursor.index(p) * kWidth, y[p]);
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
      scale =
          settle_scale(a.fp8, row_amax(top_y.get(), blockDim.x, scratch[cursor.turn]), cursor.row);
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      const int column = cursor.index(p) * kWidth;
      float v[kWidth];
      if (!kSaves || a.fp8.data != nullptr) {
        to_floats(packed(y[p]), v);
        store_fp8(a.fp8.data + cursor.row * a.f + column, v, scale, a.fp8.format);
      }
      if constexpr (kSaves) {
        uint8_t* saved = a.saved.data + cursor.row * 2 * a.f + column;
        to_floats(packed(gate[p]), v);
        store_fp8(saved, v, gate_scale, a.saved.format);
        to_floats(packed(up[p]), v);
        store_fp8(saved + a.f, v, up_scale, a.saved.format);
      }
    }
  }
}

/// Takes gate_up from what forward left: the same type, or codes.
template <class T, int kPacks, bool kFromCodes>
__global__ void __launch_bounds__(kMaxThreads) backward_kernel(const SwigluBackward a) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scratch[2][32];
  using Pack = Vec<T, kWidth>;
  using Half = std::conditional_t<kFromCodes, Codes, Pack>;
  RowCursor cursor(a.tokens, static_cast<int>(a.f / kWidth));
  char* free = shared;
  const char* gate_up = kFromCodes ? reinterpret_cast<const char*>(a.saved.data)
                                   : static_cast<const char*>(a.gate_up);
  constexpr int kSize = sizeof(Half) / kWidth;
  RowPrefetch<kPacks, 16, kStages> gradients(free, a.dy, 2 * a.f);
  RowPrefetch<kPacks, sizeof(Half), kStages> gates(free, gate_up, 2 * a.f * kSize),
      ups(free, gate_up + a.f * kSize, 2 * a.f * kSize);
  start_inputs<kStages>(cursor, gradients, gates, ups);
  for (; cursor.active(); cursor.advance()) {
    start_row<kStages>();
    float gate_inverse = 1.0f, up_inverse = 1.0f;
    if constexpr (kFromCodes)
      gate_inverse = a.saved.inverse[2 * cursor.row],
      up_inverse = a.saved.inverse[2 * cursor.row + 1];
    Pack d_gate[kPacks], d_up[kPacks];
    Amax<T> top;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      float d[kWidth], g[kWidth], u[kWidth];
      to_floats(gradients.template take<Pack>(p, cursor), d);
      if constexpr (kFromCodes) {
        from_fp8(gates.template take<Half>(p, cursor), gate_inverse, a.saved.format, g);
        from_fp8(ups.template take<Half>(p, cursor), up_inverse, a.saved.format, u);
      } else {
        to_floats(gates.template take<Half>(p, cursor), g);
        to_floats(ups.template take<Half>(p, cursor), u);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) swiglu_gradient<T>(d[i], g[i], u[i]);
      d_gate[p] = packed(from_floats<T>(g));
      d_up[p] = packed(from_floats<T>(u));
      top.add(d_gate[p]);
      top.add(d_up[p]);
      if (a.d_gate_up == nullptr) continue;
      T* out = static_cast<T*>(a.d_gate_up) + cursor.row * 2 * a.f + cursor.index(p) * kWidth;
      store(out, d_gate[p]);
      store(out + a.f, d_up[p]);
    }
    end_row();
    if (a.fp8.data == nullptr) continue;
    const float scale =
        settle_scale(a.fp8, row_amax(top.get(), blockDim.x, scratch[cursor.turn]), cursor.row);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!cursor.holds(p)) continue;
      uint8_t* out = a.fp8.data + cursor.row * 2 * a.f + cursor.index(p) * kWidth;
      float v[kWidth];
      to_floats(packed(d_gate[p]), v);
      store_fp8(out, v, scale, a.fp8.format);
      to_floats(packed(d_up[p]), v);
      store_fp8(out + a.f, v, scale, a.fp8.format);
    }
  }
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
      store_fp8(a.fp8.data + row * a.f + c, value, scale, a.fp8.format);
    }
  }
  if (a.saved.data == nullptr) return;
  for (int half = 0; half < 2; ++half) {
    const float scale = settle_half(a.saved, top[1 + half], row, half);
    for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
      const float value[1] = {to_float(gate_up[half * a.f + c])};
      store_fp8(a.saved.data + (2 * row + half) * a.f + c, value, scale, a.saved.format);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kScalarThreads) backward_scalar_kernel(const SwigluBackward a) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  const auto input = [&](int half, int64_t c) {
    const int64_t at = (2 * row + half) * a.f + c;
    if (a.saved.data != nullptr)
      return from_fp8(a.saved.data[at], a.saved.format) * a.saved.inverse[2 * row + half];
    return to_float(static_cast<const T*>(a.gate_up)[at]);
  };
  const auto gradient = [&](int64_t c, T& d_gate, T& d_up) {
    float g = input(0, c), u = input(1, c);
    swiglu_gradient<T>(to_float(static_cast<const T*>(a.dy)[row * a.f + c]), g, u);
    d_gate = from_float<T>(g), d_up = from_float<T>(u);
  };
  T* plain = static_cast<T*>(a.d_gate_up);
  float top = 0.0f;
  for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
    T d_gate, d_up;
    gradient(c, d_gate, d_up);
    top = amax_of(top, amax_of(to_float(d_gate), to_float(d_up)));
    if (plain != nullptr) plain[2 * row * a.f + c] = d_gate, plain[(2 * row + 1) * a.f + c] = d_up;
  }
  if (a.fp8.data == nullptr) return;
  const float scale = settle_scale(a.fp8, row_amax(top, kScalarThreads, scratch), row);
  for (int64_t c = threadIdx.x; c < a.f; c += kScalarThreads) {
    T d_gate, d_up;
    // The plain gradient may have taken the place of gate_up.
    if (plain != nullptr)
      d_gate = plain[2 * row * a.f + c], d_up = plain[(2 * row + 1) * a.f + c];
    else
      gradient(c, d_gate, d_up);
    const float gate_value[1] = {to_float(d_gate)}, up_value[1] = {to_float(d_up)};
    store_fp8(a.fp8.data + 2 * row * a.f + c, gate_value, scale, a.fp8.format);
    store_fp8(a.fp8.data + (2 * row + 1) * a.f + c, up_value, scale, a.fp8.format);
  }
}

template <class T, bool kSaves>
cudaError_t launch_forward(const SwigluForward& a, cudaStream_t stream) {
  const int64_t packs = a.f / kWidth;
  if (packs <= kFewPacks * kMaxThreads)
    return launch_rows(forward_kernel<T, kFewPacks, kSaves>, a, a.tokens,
                       row_geometry(packs, kFewPacks), kFewPacks * 32, stream);
  return launch_rows(forward_kernel<T, kManyPacks, kSaves>, a, a.tokens,
                     row_geometry(packs, kManyPacks), kManyPacks * 32, stream);
}

template <class T, bool kFromCodes>
cudaError_t launch_backward(const SwigluBackward& a, cudaStream_t stream) {
  constexpr int kBytes = kFromCodes ? 32 : 48;
  const int64_t packs = a.f / kWidth;
  if (packs <= kFewPacks * kMaxThreads)
    return launch_rows(backward_kernel<T, kFewPacks, kFromCodes>, a, a.tokens,
                       row_geometry(packs, kFewPacks), kFewPacks * kBytes, stream);
  return launch_rows(backward_kernel<T, kManyPacks, kFromCodes>, a, a.tokens,
                     row_geometry(packs, kManyPacks), kManyPacks * kBytes, stream);
}

template <class T, class... P>
bool suits_packs(int64_t f, P... pointers) {
  return sizeof(T) == 2 && f % kWidth == 0 && f / kWidth <= kManyPacks * kMaxThreads &&
         aligned16(pointers...);
}

}  // namespace

cudaError_t swiglu_forward(const SwigluForward& a, cudaStream_t stream) {
  if (a.tokens == 0 || a.f == 0) return cudaSuccess;
  if (a.fp8.data == nullptr && a.saved.data == nullptr)
    return a.y == nullptr ? cudaErrorInvalidValue
                          : swiglu_forward(a.gate_up, a.y, a.tokens, a.f, a.element, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (suits_packs<T>(a.f, a.gate_up, a.y, a.fp8.data, a.saved.data))
        return a.saved.data != nullptr ? launch_forward<T, true>(a, stream)
                                       : launch_forward<T, false>(a, stream);
    }
    forward_scalar_kernel<T><<<static_cast<unsigned>(a.tokens), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

cudaError_t swiglu_backward(const SwigluBackward& a, cudaStream_t stream) {
  if (a.tokens == 0 || a.f == 0) return cudaSuccess;
  if ((a.gate_up == nullptr) == (a.saved.data == nullptr) ||
      (a.d_gate_up == nullptr && a.fp8.data == nullptr))
    return cudaErrorInvalidValue;
  if (a.gate_up != nullptr && a.fp8.data == nullptr)
    return swiglu_backward(a.dy, a.gate_up, a.d_gate_up, a.tokens, a.f, a.element, stream);
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (suits_packs<T>(a.f, a.dy, a.gate_up, a.saved.data, a.d_gate_up, a.fp8.data))
        return a.saved.data != nullptr ? launch_backward<T, true>(a, stream)
                                       : launch_backward<T, false>(a, stream);
    }
    backward_scalar_kernel<T><<<static_cast<unsigned>(a.tokens), kScalarThreads, 0, stream>>>(a);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
