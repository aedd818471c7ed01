#pragma once
// Private to ops/: the launch of kernels/nf4.

#include "trireme/ops/matmul/nf4.h"

namespace trireme::launch {

void nf4_dequantize_(const at::Tensor& target, const at::Tensor& codes, const Nf4Scales& scales);

}  // namespace trireme::launch
