#pragma once
// The formulas of layer_norm.h in fp64 on the host, starting from s; the operations before s have roundings of their
// own.

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct LayerNorm {
  std::vector<double> y, mean, rstd;
};

inline LayerNorm layer_norm(const std::vector<double>& s, const std::vector<double>& gamma,
                            const std::vector<double>& beta, int64_t rows, int64_t columns, double eps) {
  LayerNorm result;
  result.y.resize(s.size());
  const double count = static_cast<double>(columns);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = s.data() + r * columns;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < columns; ++c) mean += row[c] / count;
    for (int64_t c = 0; c < columns; ++c) variance += (row[c] - mean) * (row[c] - mean) / count;
    const double rstd = 1 / std::sqrt(variance + eps);
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
    for (int64_t c = 0; c < columns; ++c) result.y[r * columns + c] = (row[c] - mean) * rstd * gamma[c] + beta[c];
  }
  return result;
}

struct LayerNormGradients {
  std::vector<double> ds, d_gamma, d_beta;
};

/// d_sum may be empty.
inline LayerNormGradients layer_norm_backward(const std::vector<double>& dy, const std::vector<double>& s,
                                              const std::vector<double>& gamma, const std::vector<double>& d_sum,
                                              int64_t rows, int64_t columns, double eps) {
  LayerNormGradients result;
  result.ds.resize(s.size());
  result.d_gamma.assign(static_cast<size_t>(columns), 0.0);
  result.d_beta.assign(static_cast<size_t>(columns), 0.0);
  const LayerNorm forward = layer_norm(s, gamma, gamma, rows, columns, eps);
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = forward.mean[r], rstd = forward.rstd[r];
    double mean_g = 0, mean_gn = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      const double n = (s[i] - mean) * rstd, g = dy[i] * gamma[c];
      mean_g += g / static_cast<double>(columns);
      mean_gn += g * n / static_cast<double>(columns);
      result.d_gamma[c] += dy[i] * n;
      result.d_beta[c] += dy[i];
    }
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = r * columns + c;
      const double n = (s[i] - mean) * rstd;
      result.ds[i] = rstd * (dy[i] * gamma[c] - mean_g - n * mean_gn) + (d_sum.empty() ? 0.0 : d_sum[i]);
    }
  }
  return result;
}

inline uint32_t dropout_mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return x ^ (x >> 15);
}

/// Dropout's factor for an element of a sample, 0 or 65536 / (65536 - threshold), from the specification in
/// include/trireme/ops/dropout.h.
inline double dropout_factor(int64_t sample, uint64_t element, uint32_t t0, uint32_t t1, uint32_t threshold) {
  const uint32_t low = static_cast<uint32_t>(sample), high = static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32);
  const uint32_t k0 = dropout_mixed(dropout_mixed(low ^ t0) ^ high ^ t1), k1 = dropout_mixed(k0 + 0x9e3779b9u);
  const uint32_t upper = static_cast<uint32_t>(element >> 33),
                 h = dropout_mixed(dropout_mixed(static_cast<uint32_t>(element >> 1) ^ k0) ^ k1 ^ upper * 0x9e3779b9u),
                 u = element % 2 == 0 ? h & 0xffff : h >> 16;
  return u >= threshold ? 65536.0 / (65536.0 - threshold) : 0.0;
}

}  // namespace trireme::kernels::oracle
