#pragma once
// Rotary position embedding (Su et al. 2021) in the rotate-half convention of Hugging Face's Llama.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

namespace trireme {

/// Scaling of the inverse frequencies. Formulas: transformers, modeling_rope_utils (linear, llama3).
struct RopeFrequencies {
  enum class Scaling { kNone, kLinear, kLlama3 } scaling = Scaling::kNone;
  double theta = 10000.0;
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position = 8192;
};

/// inv_freq [H/2], fp32, on the CPU. An odd head_dim is an internal error.
at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim);

/// cos and sin [T, H/2] in `dtype`; angles are computed in fp32. positions_T: int64, restarts with every sequence.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(const at::Tensor& inverse_frequencies, const at::Tensor& positions_T, at::ScalarType dtype);

/// Splits the output of a fused qkv projection, [T, (N + 2K) * H] laid out q | k | v, and rotates q and k:
///   out1 = x1 cos - x2 sin, out2 = x2 cos + x1 sin   (x1, x2: halves of a head)
/// Returns q [T, N, H], k [T, K, H], v [T, K, H], views of one buffer. Rotates in place: the caller must not use qkv
/// afterwards, and the operation that produced qkv must not need its output in backward. Backward writes one [T, (N +
/// 2K) * H] gradient. A qkv that is not contiguous, or has another width, is an internal error.
std::array<at::Tensor, 3> rope_split_qkv_(const at::Tensor& qkv, const RopeTable& table, int64_t num_heads,
                                          int64_t num_kv_heads, int64_t head_dim);

}  // namespace trireme
