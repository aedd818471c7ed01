#pragma once
// SwiGLU on the fused output of gate and up projections.
//
//   forward   y[t, f] = silu(g) * u                       g = gate_up[t, f], u = gate_up[t, F + f]
//   backward  dg = dy * u * (s + g * s * (1 - s)),  du = dy * g * s,  s = 1 / (1 + exp(-g))
//
// gate_up, d_gate_up [tokens, 2F], y, dy [tokens, F], device, one element type; d_gate_up may be gate_up. fp32 arithmetic, one rounding
// at the end. Any F and alignment; fast with 16-byte aligned rows. No allocation, no synchronisation, deterministic.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

cudaError_t swiglu_forward(const void* gate_up, void* y, int64_t tokens, int64_t f, Element element, cudaStream_t stream);
cudaError_t swiglu_backward(const void* dy, const void* gate_up, void* d_gate_up, int64_t tokens, int64_t f, Element element,
                            cudaStream_t stream);

}  // namespace trireme::kernels
