#pragma once
#include <ATen/core/Tensor.h>

namespace trireme {

/// silu(gate) * up for gate_up [.., 2F] laid out gate | up; result [.., F]. Backward saves gate_up only.
///   d_up = dy * silu(gate);  d_gate = dy * up * s * (1 + gate * (1 - s)),  s = sigmoid(gate)
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace trireme
