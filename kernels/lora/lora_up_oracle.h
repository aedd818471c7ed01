#pragma once
// The formulas of lora_up.h in fp64. t [tokens, rank], b [columns, rank], y and dy [tokens, columns], all contiguous.

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

using Values = std::vector<double>;

/// y += scale * t b^T.
void lora_up(Values& y, const Values& t, const Values& b, int64_t tokens, int64_t columns, int64_t rank, double scale);
/// scale * dy b: [tokens, rank].
Values lora_up_d(const Values& dy, const Values& b, int64_t tokens, int64_t columns, int64_t rank, double scale);
/// scale * dy^T t: [columns, rank].
Values lora_up_db(const Values& dy, const Values& t, int64_t tokens, int64_t columns, int64_t rank, double scale);

}  // namespace trireme::kernels::oracle
