#pragma once
// The formulas of embedding.h for BERT without dropout in fp64 on the host.

#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct BertEmbeddingRows {
  std::vector<double> sum, y, mean, rstd;
};

/// `sum`, if given, replaces the sum of the lookups by its rounded value.
inline BertEmbeddingRows bert_embedding(const std::vector<double>& word, const std::vector<double>& position,
                                        const std::vector<double>& type, const std::vector<int64_t>& ids,
                                        const std::vector<int64_t>& positions, const std::vector<int64_t>& types,
                                        const std::vector<double>& gamma, const std::vector<double>& beta,
                                        int64_t columns, double eps, const std::vector<double>* sum = nullptr) {
  BertEmbeddingRows result;
  for (size_t row = 0; row < ids.size(); ++row) {
    std::vector<double> s(static_cast<size_t>(columns));
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < columns; ++c) {
      s[c] = sum != nullptr ? (*sum)[row * columns + c]
                            : word[ids[row] * columns + c] + position[positions[row] * columns + c] +
                                  type[types[row] * columns + c];
      mean += s[c] / static_cast<double>(columns);
    }
    for (const double v : s) variance += (v - mean) * (v - mean) / static_cast<double>(columns);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < columns; ++c) {
      result.sum.push_back(s[c]);
      result.y.push_back((s[c] - mean) * rstd * gamma[c] + beta[c]);
    }
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
  }
  return result;
}

}  // namespace trireme::kernels::oracle
