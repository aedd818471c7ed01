#pragma once
// Private to ops/: launches of kernels/dropout. Tensors contiguous, ids checked.

#include "trireme/ops/dropout.h"

namespace trireme::launch {

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout);
at::Tensor add_dropout(const at::Tensor& addend, const at::Tensor& x, const Dropout& dropout);
void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout);

}  // namespace trireme::launch
