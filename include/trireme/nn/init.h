#pragma once
// Random initial weights that do not depend on how a tensor is sharded.

#include "trireme/nn/unit.h"

namespace trireme {

/// Writes elements [begin, begin + target.numel()) of the checkpoint tensor `part` of `spec` into target (flat, any
/// float type). The values depend only on (seed, name of the part, element) and the kind of device.
void draw_initial_values(const ParameterSpec& spec, const ParameterPart& part, uint64_t seed, int64_t begin,
                         const at::Tensor& target);

}  // namespace trireme
