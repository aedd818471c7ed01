#pragma once
// What a configuration says about rotary positions, for readers of configurations that do without LibTorch.

#include <cmath>
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

/// The factor of cos and sin.
inline double rope_attention_factor(const RopeFrequencies& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const double log_factor = std::log(rope.factor);
  if (rope.factor <= 1) return 1;
  if (rope.scaling == RopeFrequencies::Scaling::kLongrope)
    return std::sqrt(1 + log_factor / std::log(static_cast<double>(rope.original_max_position)));
  if (rope.scaling != RopeFrequencies::Scaling::kYarn) return 1;
  const auto scale = [&](double weight) { return 0.1 * weight * log_factor + 1; };
  return rope.mscale > 0 && rope.mscale_all_dim > 0 ? scale(rope.mscale) / scale(rope.mscale_all_dim) : scale(1);
}

}  // namespace trireme
