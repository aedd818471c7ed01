#pragma once
// Rotary position embedding (Su et al. 2021) in the rotate-half convention of Hugging Face's Llama.

#include "trireme/ops/rope_frequencies.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace trireme {

/// inv_freq [rotated / 2], fp32, on the CPU, for a sequence of `length` tokens. An odd number of elements that rotate
/// is an internal error.
at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim, int64_t length = 0);

/// cos and sin [T, rotated / 2] in `dtype`; angles are computed in fp32. positions_T: int64, restarts with every
/// sequence. `boundaries`: from 0, of sequences of which positions_T has the tokens first … first + T - 1: frequencies
/// that depend on the length take each sequence's own, where transformers takes the longest of a batch.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(const RopeFrequencies& rope, int64_t head_dim, const at::Tensor& positions_T,
                     const std::vector<int32_t>& boundaries, at::ScalarType dtype, int64_t first = 0);

/// Splits the output of a fused qkv projection, [T, (N + 2K) * H] laid out q | k | v, and rotates q and k:
///   out1 = x1 cos - x2 sin, out2 = x2 cos + x1 sin   (x1, x2: halves of the elements of a head that rotate)
/// Returns q [T, N, H], k [T, K, H], v [T, K, H], views of one buffer. Rotates in place: the caller must not use qkv
/// afterwards, and the operation that produced qkv must not need its output in backward. Backward writes one [T, (N +
/// 2K) * H] gradient. A qkv that is not contiguous, or has another width, is an internal error.
std::array<at::Tensor, 3> rope_split_qkv_(const at::Tensor& qkv, const RopeTable& table, int64_t num_heads,
                                          int64_t num_kv_heads, int64_t head_dim);

}  // namespace trireme
