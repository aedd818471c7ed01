#pragma once
// Private to ops/: dropout of a part of each sample, given by its first element. apply_dropout() uses it, and tests
// reach elements beyond 2^33 with it.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::dropout_elements {

/// x [B, E] holds elements first, …, first + E - 1 of the samples ids [B] (int64, on x's device); first is even.
/// Returns a new tensor, x dropped and scaled. For the CPU, contiguous x.
at::Tensor by_loop(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);
/// The same in at:: operations, on any device.
at::Tensor by_tensor_ops(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);

}  // namespace trireme::dropout_elements
