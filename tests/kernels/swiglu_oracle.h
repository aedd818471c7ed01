#pragma once
// The formulas of swiglu.h in fp64 on the host.

#include "kernels/swiglu/swiglu.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

/// The gate's activation at g divided by g, and the activation's derivative.
struct Gate {
  double share, slope;
  Gate(double g, GateKind kind) {
    const double a = std::sqrt(2 / M_PI), z = kind == GateKind::kSilu ? g : 2 * a * (g + 0.044715 * g * g * g);
    const double dz = kind == GateKind::kSilu ? 1 : 2 * a * (1 + 3 * 0.044715 * g * g);
    share = 1 / (1 + std::exp(-z));
    slope = share + g * share * (1 - share) * dz;
  }
};

inline std::vector<double> swiglu(const std::vector<double>& gate_up, int64_t tokens, int64_t f,
                                  GateKind kind = GateKind::kSilu) {
  std::vector<double> y;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < f; ++c) {
      const double g = gate_up[t * 2 * f + c];
      y.push_back(g * Gate(g, kind).share * gate_up[t * 2 * f + f + c]);
    }
  return y;
}

inline std::vector<double> swiglu_backward(const std::vector<double>& dy, const std::vector<double>& gate_up,
                                           int64_t tokens, int64_t f, GateKind kind = GateKind::kSilu) {
  std::vector<double> gradient(gate_up.size());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < f; ++c) {
      const double g = gate_up[t * 2 * f + c], u = gate_up[t * 2 * f + f + c], d = dy[t * f + c];
      const Gate gate(g, kind);
      gradient[t * 2 * f + c] = d * u * gate.slope;
      gradient[t * 2 * f + f + c] = d * g * gate.share;
    }
  return gradient;
}

}  // namespace trireme::kernels::oracle
