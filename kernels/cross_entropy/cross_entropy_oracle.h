#pragma once
// The formulas of cross_entropy.h in fp64 on the host.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct CrossEntropy {
  std::vector<double> loss, d_logits;
};
CrossEntropy cross_entropy(const std::vector<double>& logits, const std::vector<int64_t>& targets,
                           const std::vector<double>& weights, int64_t tokens, int64_t vocab, int64_t stride);

}  // namespace trireme::kernels::oracle
