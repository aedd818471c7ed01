#pragma once
// Private to ops/.

#include <ATen/core/Tensor.h>

namespace trireme {

/// [..., n] as [rows, n].
inline at::Tensor flatten_tokens(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace trireme
