#pragma once
// The formulas of gelu.h in fp64 on the host, starting from z.

#include "kernels/gelu/gelu.h"

#include <vector>

namespace trireme::kernels::oracle {

std::vector<double> gelu(const std::vector<double>& z, GeluKind kind);
std::vector<double> gelu_backward(const std::vector<double>& dy, const std::vector<double>& z, GeluKind kind);

}  // namespace trireme::kernels::oracle
