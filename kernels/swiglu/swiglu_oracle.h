#pragma once
// The formulas of swiglu.h in fp64 on the host.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

std::vector<double> swiglu(const std::vector<double>& gate_up, int64_t tokens, int64_t f);
std::vector<double> swiglu_backward(const std::vector<double>& dy, const std::vector<double>& gate_up, int64_t tokens,
                                    int64_t f);

}  // namespace trireme::kernels::oracle
