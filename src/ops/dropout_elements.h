#pragma once
// Private to ops/: dropout of a part of each sample, given by its first element: what apply_dropout() is made of, and
// how tests reach elements beyond 2^33.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::dropout_elements {

/// x [B, E] holds the elements first, …, first + E - 1 of the samples ids [B] (int64, on x's device); first is even.
/// A new tensor, x dropped and scaled. On the CPU, contiguous.
at::Tensor by_loop(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);
/// The same in at:: operations, on any device.
at::Tensor by_tensor_ops(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);

}  // namespace trireme::dropout_elements
