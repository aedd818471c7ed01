#pragma once
// The formulas of lora.h in fp64, for one adapter and a given mask.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

using Values = std::vector<double>;

/// masked [tokens, columns] a [rank, columns]^T: [tokens, rank].
Values lora_down(const Values& masked, const Values& a, int64_t tokens, int64_t columns, int64_t rank);
/// d [tokens, rank]^T masked [tokens, columns]: [rank, columns].
Values lora_down_dw(const Values& masked, const Values& d, int64_t tokens, int64_t columns, int64_t rank);
/// dx += factor * (d a), element by element; factor [tokens, columns] is 0 or the scale.
void lora_down_dx(Values& dx, const Values& factor, const Values& d, const Values& a, int64_t tokens, int64_t columns,
                  int64_t rank);

}  // namespace trireme::kernels::oracle
