#pragma once
// Private to ops/: dropout of parts of a sample, its hash on the host, and the launches of kernels/dropout.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// Rows of an activation [rows, D] that begin at the same place of their samples: rows begin, …, begin + samples * rows
/// - 1 are `rows` rows of each of the samples first_sample, …, from row first_row of a sample on.
struct DropoutPart {
  int64_t begin = 0, samples = 1, rows = 0, first_sample = 0, first_row = 0;
};
/// The activation's parts: one for whole samples; for a slice the end of its first sample, whole samples, and the
/// beginning of its last one.
std::vector<DropoutPart> dropout_parts(const at::Tensor& x, const Dropout& dropout);

/// Dropout of a part of each sample, given by its first element. apply_dropout() uses it, and tests reach elements
/// beyond 2^33 with it.
namespace dropout_elements {

/// x [B, E] holds elements first, …, first + E - 1 of the samples ids [B] (int64, on x's device); first is even.
/// Returns a new tensor, x dropped and scaled. For the CPU, contiguous x.
at::Tensor by_loop(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);
/// The same dropout in at:: operations, on any device.
at::Tensor by_tensor_ops(const at::Tensor& x_BE, const at::Tensor& ids_B, const DropoutKey& key, int64_t first);

}  // namespace dropout_elements

/// The 32-bit mixing function of the mask on the CPU, equal to kernels/dropout/dropout_hash.cuh.
constexpr uint32_t kDropoutMixFirst = 0x21f0aaad, kDropoutMixSecond = 0x735a2d97;

inline uint32_t dropout_mix(uint32_t x) {
  x ^= x >> 16;
  x *= kDropoutMixFirst;
  x ^= x >> 15;
  x *= kDropoutMixSecond;
  return x ^ x >> 15;
}

/// Tensors contiguous, ids checked.
namespace launch {

at::Tensor dropout(const at::Tensor& x, const Dropout& dropout);
at::Tensor add_dropout(const at::Tensor& addend, const at::Tensor& x, const Dropout& dropout);
void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout);

}  // namespace launch

}  // namespace trireme
