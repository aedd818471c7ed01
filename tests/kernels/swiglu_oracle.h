#pragma once
// The formulas of swiglu.h in fp64 on the host.

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

inline std::vector<double> swiglu(const std::vector<double>& gate_up, int64_t tokens, int64_t f) {
  std::vector<double> y;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < f; ++c) {
      const double g = gate_up[t * 2 * f + c];
      y.push_back(g / (1 + std::exp(-g)) * gate_up[t * 2 * f + f + c]);
    }
  return y;
}

inline std::vector<double> swiglu_backward(const std::vector<double>& dy, const std::vector<double>& gate_up,
                                           int64_t tokens, int64_t f) {
  std::vector<double> gradient(gate_up.size());
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < f; ++c) {
      const double g = gate_up[t * 2 * f + c], u = gate_up[t * 2 * f + f + c], d = dy[t * f + c],
                   s = 1 / (1 + std::exp(-g));
      gradient[t * 2 * f + c] = d * u * (s + g * s * (1 - s));
      gradient[t * 2 * f + f + c] = d * g * s;
    }
  return gradient;
}

}  // namespace trireme::kernels::oracle
