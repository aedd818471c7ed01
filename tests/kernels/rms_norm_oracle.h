#pragma once
// The formulas of rms_norm.h in fp64 on the host, no rounding in between.

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct RmsNorm {
  std::vector<double> y, rstd;
};

inline RmsNorm rms_norm(const std::vector<double>& x, const std::vector<double>& weight, int64_t rows, int64_t columns,
                        double eps) {
  RmsNorm result;
  result.y.resize(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double square = 0;
    for (int64_t c = 0; c < columns; ++c) square += x[r * columns + c] * x[r * columns + c];
    const double rstd = 1 / std::sqrt(square / static_cast<double>(columns) + eps);
    result.rstd.push_back(rstd);
    for (int64_t c = 0; c < columns; ++c) result.y[r * columns + c] = x[r * columns + c] * rstd * weight[c];
  }
  return result;
}

struct RmsNormGradients {
  std::vector<double> dx, dw;
};

/// d_residual may be empty.
inline RmsNormGradients rms_norm_backward(const std::vector<double>& dy, const std::vector<double>& x,
                                          const std::vector<double>& weight, const std::vector<double>& d_residual,
                                          int64_t rows, int64_t columns, double eps) {
  RmsNormGradients result;
  result.dx.resize(x.size());
  result.dw.assign(static_cast<size_t>(columns), 0.0);
  const std::vector<double> rstd = rms_norm(x, weight, rows, columns, eps).rstd;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      mean += dy[i] * weight[c] * x[i] * rstd[r] / static_cast<double>(columns);
      result.dw[c] += dy[i] * x[i] * rstd[r];
    }
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      result.dx[i] = rstd[r] * (dy[i] * weight[c] - x[i] * rstd[r] * mean) + (d_residual.empty() ? 0.0 : d_residual[i]);
    }
  }
  return result;
}

}  // namespace trireme::kernels::oracle
