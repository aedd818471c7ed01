#pragma once
// Private to ops/: launches of kernels/rope.

#include "attention_node.h"
#include "trireme/ops/rope.h"

namespace trireme::launch {

/// Rotates the first `rotated` heads of [T, n, H] in place.
void rope_rotate(const at::Tensor& heads_TnH, const RopeTable& table, int64_t rotated);
/// d_qkv [T, N + 2K, H] from gradients with any strides.
at::Tensor rope_merge(const Heads& d, const RopeTable& table);

}  // namespace trireme::launch
