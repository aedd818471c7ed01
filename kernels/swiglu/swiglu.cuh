#pragma once
// The arithmetic of swiglu.h on the device, and what its forward and backward share.

#include "kernels/fp8/fp8.cuh"
#include "kernels/gelu/gelu.cuh"
#include "kernels/row_prefetch.cuh"
#include "kernels/swiglu/swiglu.h"

namespace trireme::kernels {

/// For 16-bit types the fast exponential's error of about 1e-6 is below their rounding error; for fp32 it is not. An
/// exact division would be a function call that makes its caller spill registers.
template <class T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 2)
    return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x));
  else
    return __fdividef(1.0f, 1.0f + expf(-x));
}

template <class T, GateKind kGate = GateKind::kSilu>
__device__ inline float swiglu(float g, float u) {
  if constexpr (kGate == GateKind::kSilu) {
    return g * sigmoid<T>(g) * u;
  } else {
    float share, slope;
    gelu_share<T, GeluKind::kTanh>(g, share, slope);
    return g * share * u;
  }
}

/// Replaces g and u by dg and du.
template <class T, GateKind kGate = GateKind::kSilu>
__device__ inline void swiglu_gradient(float d, float& g, float& u) {
  if constexpr (kGate == GateKind::kSilu) {
    const float s = sigmoid<T>(g), ds = d * s, dg = ds * u * fmaf(g, 1.0f - s, 1.0f);
    u = ds * g;
    g = dg;
  } else {
    float share, slope;
    gelu_share<T, GeluKind::kTanh>(g, share, slope);
    const float dg = d * u * fmaf(g, slope, share);
    u = d * g * share;
    g = dg;
  }
}

namespace swiglu_rows {

// Packs of each half of a row per thread: few for short rows, so that several blocks share a multiprocessor.
constexpr int kFewPacks = 4, kManyPacks = 7, kMaxThreads = 512, kScalarThreads = 256, kWidth = 8, kStages = 1;

using Codes = Vec<uint16_t, kWidth / 2>;

template <class T, class... P>
bool suits_packs(int64_t f, P... pointers) {
  return sizeof(T) == 2 && f % kWidth == 0 && f / kWidth <= kManyPacks * kMaxThreads && aligned16(pointers...);
}

/// Whether launch_rows() over rows of `f` columns finds the shared memory for `inputs` packs at a time of each
/// thread's.
inline bool fits_rows(int64_t f, int inputs) {
  const int packs = f / kWidth <= kFewPacks * kMaxThreads ? kFewPacks : kManyPacks;
  const RowGeometry g = row_geometry(f / kWidth, packs);
  return fits_shared_memory(static_cast<size_t>(inputs * packs * g.threads * g.rows) * 16);
}

constexpr int kPlainThreads = 256, kUnroll = 2;

template <GateKind kGate>
using Gate = std::integral_constant<GateKind, kGate>;

/// Launches the kernels without FP8: run(zero of the element type, gate, width, grid, first token).
template <class F>
cudaError_t launch_plain(int64_t tokens, int64_t f, Element element, GateKind gate, bool aligned, const F& run) {
  if (tokens == 0 || f == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = 16 / sizeof(T);
    const bool packed = aligned && f % kPack == 0;
    const unsigned blocks = static_cast<unsigned>(ceil_div(f, kPlainThreads * kUnroll * (packed ? kPack : 1)));
    return launch_pieces(tokens, [&](int64_t begin, unsigned count) {
      const dim3 grid(blocks, count);
      const auto with_gate = [&](auto kind) {
        if (packed)
          run(zero, kind, std::integral_constant<int, kPack>{}, grid, begin);
        else
          run(zero, kind, std::integral_constant<int, 1>{}, grid, begin);
      };
      if (gate == GateKind::kSilu)
        with_gate(Gate<GateKind::kSilu>{});
      else
        with_gate(Gate<GateKind::kGeluTanh>{});
      return cudaGetLastError();
    });
  });
}

}  // namespace swiglu_rows

}  // namespace trireme::kernels
