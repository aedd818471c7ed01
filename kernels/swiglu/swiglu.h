#pragma once
// SwiGLU (Shazeer 2020) on the fused output of the gate and up projections.
//
//   forward   y[t, f] = silu(g) * u                       g = gate_up[t, f], u = gate_up[t, F + f]
//   backward  dg = dy * u * (s + g * s * (1 - s)),  du = dy * g * s,  s = 1 / (1 + exp(-g))
//
// or, without FP8, GeGLU: the tanh form of GELU (kernels/gelu) of g in the place of silu(g).
//
// gate_up, d_gate_up: [tokens, 2F]; y, dy: [tokens, F]; device, one element type; d_gate_up may be gate_up. Arithmetic
// is fp32 with one rounding at the end. Any F and alignment; fast with 16-byte aligned rows. No allocation, no
// synchronisation, deterministic.
//
// FP8: for 16-bit types with F a multiple of 8 up to 28,672 a row is kept in registers or shared memory, so that each
// input is read once; otherwise inputs are read twice.

#include "kernels/element.h"
#include "kernels/fp8/fp8.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class GateKind { kSilu, kGeluTanh };

/// FP8 codes [tokens, 2F] of gate_up, inverse scales fp32 [tokens, 2]: one for the gate half and one for the up half of
/// a row.
struct SwigluCodes {
  uint8_t* data = nullptr;  // null: none
  float* inverse = nullptr;
  // Always E4M3. Known at run time only: with a constant, ptxas spills registers of the fp16 backward.
  Fp8Format format = Fp8Format::kE4M3;
};

// Maxima of the plain result: kernels that read and write no codes find amax; kernels that read no codes and write
// those of rows find column maxima of 16-bit rows whose width leaves the registers for them.

struct SwigluForward {
  const void* gate_up = nullptr;
  void* y = nullptr;    // null: not written
  Fp8Output fp8{};      // FP8 codes of y
  SwigluCodes saved{};  // FP8 codes of gate_up, saved for backward
  WantedMaxima maxima{};
  GateKind gate = GateKind::kSilu;
  int64_t tokens = 0, f = 0;
  Element element = Element::kBF16;
};
cudaError_t swiglu_forward(const SwigluForward& arguments, cudaStream_t stream);

struct SwigluBackward {
  const void* dy = nullptr;
  const void* gate_up = nullptr;  // if null, `saved` is used
  SwigluCodes saved{};
  void* d_gate_up = nullptr;  // null: not written; may be gate_up
  Fp8Output fp8{};            // FP8 codes of d_gate_up; one scale for the whole row of 2F
  WantedMaxima maxima{};
  GateKind gate = GateKind::kSilu;
  int64_t tokens = 0, f = 0;
  Element element = Element::kBF16;
};
cudaError_t swiglu_backward(const SwigluBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
