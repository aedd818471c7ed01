#pragma once
// The formulas of gelu.h in fp64 on the host, starting from z.

#include "kernels/gelu/gelu.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace trireme::kernels::oracle {

struct GeluShare {
  double value, slope;
};

inline GeluShare gelu_share(double z, GeluKind kind) {
  if (kind == GeluKind::kErf)
    return {std::erfc(-z / std::numbers::sqrt2) / 2, std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi)};
  const double a = std::sqrt(2 / std::numbers::pi), inner = a * (z + 0.044715 * z * z * z);
  // (1 + tanh(v)) / 2 without cancellation where v is very negative.
  const double p = 1 / (1 + std::exp(-2 * inner));
  return {p, 2 * p * (1 - p) * a * (1 + 3 * 0.044715 * z * z)};
}

inline std::vector<double> gelu(const std::vector<double>& z, GeluKind kind) {
  std::vector<double> y;
  for (const double v : z) y.push_back(v * gelu_share(v, kind).value);
  return y;
}

inline std::vector<double> gelu_backward(const std::vector<double>& dy, const std::vector<double>& z, GeluKind kind) {
  std::vector<double> dx;
  for (size_t i = 0; i < z.size(); ++i) {
    const GeluShare s = gelu_share(z[i], kind);
    dx.push_back(dy[i] * (s.value + z[i] * s.slope));
  }
  return dx;
}

}  // namespace trireme::kernels::oracle
