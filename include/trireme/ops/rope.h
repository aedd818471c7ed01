#pragma once
// Rotary position embedding (Su et al. 2021) in the rotate-half convention of Hugging Face's Llama.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace trireme {

/// The inverse frequencies and their scaling. Formulas and names: transformers, modeling_rope_utils.
struct RopeFrequencies {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongrope } scaling = Scaling::kNone;
  double theta = 10000.0;
  double factor = 1.0, low_freq_factor = 1.0, high_freq_factor = 4.0;  // the last two: kLlama3
  /// kLlama3, kYarn, kLongrope: original_max_position_embeddings. kDynamic: the longest sequence that is not stretched.
  int64_t original_max_position = 8192;
  double part = 1.0;          // of a head's elements, its first ones, that rotate: partial_rotary_factor
  bool factor_stated = true;  // false: `factor` is the ratio of max_position_embeddings to original_max_position
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0;  // kYarn; mscale 0: absent
  bool truncate = true;                                                  // kYarn
  /// kYarn and kLongrope: cos and sin are multiplied by it; absent: by a function of the factor.
  std::optional<double> attention_factor{};
  /// kLongrope: a divisor of each frequency, for sequences of up to original_max_position tokens and for longer ones.
  std::vector<double> short_factor{}, long_factor{};

  /// Elements of a head that rotate.
  int64_t rotated(int64_t head_dim) const { return static_cast<int64_t>(static_cast<double>(head_dim) * part); }
  /// Whether the frequencies depend on the length of the sequence.
  bool by_length() const { return scaling == Scaling::kDynamic || scaling == Scaling::kLongrope; }
};

/// inv_freq [rotated / 2], fp32, on the CPU, for a sequence of `length` tokens. An odd number of elements that rotate
/// is an internal error.
at::Tensor rope_inverse_frequencies(const RopeFrequencies& rope, int64_t head_dim, int64_t length = 0);
/// The factor of cos and sin.
double rope_attention_factor(const RopeFrequencies& rope);

/// cos and sin [T, rotated / 2] in `dtype`; angles are computed in fp32. positions_T: int64, restarts with every
/// sequence. `boundaries`: 0 … T, of the sequences: frequencies that depend on the length take each sequence's own,
/// where transformers takes the longest of a batch.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(const RopeFrequencies& rope, int64_t head_dim, const at::Tensor& positions_T,
                     const std::vector<int32_t>& boundaries, at::ScalarType dtype);

/// Splits the output of a fused qkv projection, [T, (N + 2K) * H] laid out q | k | v, and rotates q and k:
///   out1 = x1 cos - x2 sin, out2 = x2 cos + x1 sin   (x1, x2: halves of the elements of a head that rotate)
/// Returns q [T, N, H], k [T, K, H], v [T, K, H], views of one buffer. Rotates in place: the caller must not use qkv
/// afterwards, and the operation that produced qkv must not need its output in backward. Backward writes one [T, (N +
/// 2K) * H] gradient. A qkv that is not contiguous, or has another width, is an internal error.
std::array<at::Tensor, 3> rope_split_qkv_(const at::Tensor& qkv, const RopeTable& table, int64_t num_heads,
                                          int64_t num_kv_heads, int64_t head_dim);

}  // namespace trireme
