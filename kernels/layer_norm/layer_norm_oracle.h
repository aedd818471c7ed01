#pragma once
// The formulas of layer_norm.h in fp64 on the host, starting from s; the operations before s have roundings of their
// own.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct LayerNorm {
  std::vector<double> y, mean, rstd;
};
LayerNorm layer_norm(const std::vector<double>& s, const std::vector<double>& gamma, const std::vector<double>& beta,
                     int64_t rows, int64_t columns, double eps);

struct LayerNormGradients {
  std::vector<double> ds, d_gamma, d_beta;
};
/// d_sum may be empty.
LayerNormGradients layer_norm_backward(const std::vector<double>& dy, const std::vector<double>& s,
                                       const std::vector<double>& gamma, const std::vector<double>& d_sum, int64_t rows,
                                       int64_t columns, double eps);

/// Dropout's factor for an element of a sample, 0 or 65536 / (65536 - threshold), from the specification in
/// include/trireme/ops/dropout.h.
double dropout_factor(int64_t sample, uint64_t element, uint32_t t0, uint32_t t1, uint32_t threshold);

}  // namespace trireme::kernels::oracle
