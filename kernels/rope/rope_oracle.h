#pragma once
// The rotation of rope.h in fp64 on the host.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

/// x [tokens, heads, d], cos and sin [tokens, d/2]; the first `rotated` heads of every token are rotated.
std::vector<double> rope(const std::vector<double>& x, const std::vector<double>& cos, const std::vector<double>& sin,
                         int64_t tokens, int heads, int rotated, int d, int direction);

}  // namespace trireme::kernels::oracle
