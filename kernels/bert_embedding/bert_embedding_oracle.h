#pragma once
// The formulas of bert_embedding.h without dropout in fp64 on the host.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct BertEmbeddingRows {
  std::vector<double> sum, y, mean, rstd;
};
/// `sum`, if given, replaces the sum of the lookups by its rounded value.
BertEmbeddingRows bert_embedding(const std::vector<double>& word, const std::vector<double>& position,
                                 const std::vector<double>& type, const std::vector<int64_t>& ids,
                                 const std::vector<int64_t>& positions, const std::vector<int64_t>& types,
                                 const std::vector<double>& gamma, const std::vector<double>& beta, int64_t columns,
                                 double eps, const std::vector<double>* sum = nullptr);

}  // namespace trireme::kernels::oracle
