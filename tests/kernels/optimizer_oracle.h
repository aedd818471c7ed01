#pragma once
// The formulas of optimizer.h in fp64 on the host.

#include "kernels/optimizer/shard_chunks.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct AdamWState {
  std::vector<double> master, exp_avg, exp_avg_sq;
};
/// Updates `state`; decays[i]: element i has weight decay.
inline void adamw(AdamWState& state, const std::vector<double>& gradient, const std::vector<bool>& decays,
                  double multiplier, double step, double lr, double beta1, double beta2, double eps,
                  double weight_decay) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * multiplier;
    double &p = state.master[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    if (decays[i]) p *= 1 - lr * weight_decay;
    m += (1 - beta1) * (g - m);
    v = beta2 * v + (1 - beta2) * g * g;
    p -= lr / (1 - std::pow(beta1, step)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, step)) + eps);
  }
}

/// The random bits of one element in one step: the lower 16 for exp_avg, the upper 16 for exp_avg_sq with key 0; the
/// lower 16 for a bf16 master weight with its key.
inline uint32_t rounding_bits(uint64_t element, uint32_t step, uint32_t key) {
  uint32_t h = static_cast<uint32_t>(element) * 0x9E3779B1u ^ static_cast<uint32_t>(element >> 32) * 0x85EBCA77u ^
               step * 0xC2B2AE3Du ^ key;
  h = (h ^ h >> 16) * 0x7FEB352Du;
  h = (h ^ h >> 15) * 0x846CA68Bu;
  return h ^ h >> 16;
}

/// The bf16 number that a value is rounded to with the lower 16 of these bits.
inline double rounded_to_bf16(double value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value)) + (random & 0xFFFFu);
  return std::bit_cast<float>(bits & 0xFFFF0000u);
}

struct LambState {
  std::vector<double> master, exp_avg, exp_avg_sq;
};
struct LambOptions {
  double multiplier, step, lr, beta1, beta2, eps, weight_decay;
};
/// One step on `state` for the elements of `pieces`; squares [2, num_tensors] gets |p|^2 and |u|^2 of this shard.
inline void lamb(LambState& state, const std::vector<double>& gradient, const std::vector<ShardPiece>& pieces,
                 int num_tensors, const LambOptions& o, std::vector<double>& squares) {
  squares.assign(static_cast<size_t>(2 * num_tensors), 0.0);
  std::vector<double> update(gradient.size());
  for (const ShardPiece& piece : pieces) {
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const double g = gradient[i] * o.multiplier;
      double &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
      m = o.beta1 * m + (1 - o.beta1) * g;
      v = o.beta2 * v + (1 - o.beta2) * g * g;
      const double p = state.master[i], first = m / (1 - std::pow(o.beta1, o.step)),
                   second = v / (1 - std::pow(o.beta2, o.step));
      update[i] = first / (std::sqrt(second) + o.eps) + (piece.decays ? o.weight_decay * p : 0.0);
      squares[piece.tensor] += p * p;
      squares[num_tensors + piece.tensor] += update[i] * update[i];
    }
  }
  for (const ShardPiece& piece : pieces) {
    const double w = std::sqrt(squares[piece.tensor]), u = std::sqrt(squares[num_tensors + piece.tensor]),
                 ratio = w > 0 && u > 0 ? w / u : 1.0;
    for (int64_t i = piece.begin; i < piece.end; ++i) state.master[i] -= o.lr * ratio * update[i];
  }
}

}  // namespace trireme::kernels::oracle
