#pragma once
// The formulas of cross_entropy.h in fp64 on the host.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct CrossEntropy {
  std::vector<double> loss, d_logits;
};

inline CrossEntropy cross_entropy(const std::vector<double>& logits, const std::vector<int64_t>& targets,
                                  const std::vector<double>& weights, int64_t tokens, int64_t vocab, int64_t stride,
                                  double smoothing = 0, int64_t smoothed_vocab = 0) {
  CrossEntropy result;
  result.d_logits.assign(static_cast<size_t>(tokens * stride), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    if (weights[t] == 0) {
      result.loss.push_back(0);
      continue;
    }
    const double* row = logits.data() + t * stride;
    const double top = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - top);
    const double lse = top + std::log(sum);
    double mean = 0;
    for (int64_t v = 0; v < smoothed_vocab; ++v) mean += row[v] / static_cast<double>(smoothed_vocab);
    result.loss.push_back(weights[t] * (lse - (1 - smoothing) * row[targets[t]] - smoothing * mean));
    for (int64_t v = 0; v < vocab; ++v)
      result.d_logits[t * stride + v] =
          weights[t] * (std::exp(row[v] - lse) - (v == targets[t] ? 1.0 - smoothing : 0.0) -
                        (v < smoothed_vocab ? smoothing / static_cast<double>(smoothed_vocab) : 0.0));
  }
  return result;
}

}  // namespace trireme::kernels::oracle
