#pragma once
// The formulas of rms_norm.h in fp64 on the host, no rounding in between.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct RmsNorm {
  std::vector<double> y, rstd;
};
RmsNorm rms_norm(const std::vector<double>& x, const std::vector<double>& weight, int64_t rows, int64_t columns,
                 double eps);

struct RmsNormGradients {
  std::vector<double> dx, dw;
};
/// d_residual may be empty.
RmsNormGradients rms_norm_backward(const std::vector<double>& dy, const std::vector<double>& x,
                                   const std::vector<double>& weight, const std::vector<double>& d_residual,
                                   int64_t rows, int64_t columns, double eps);

}  // namespace trireme::kernels::oracle
