#include "kernels/lamb/lamb_oracle.h"

#include <cmath>

namespace trireme::kernels::oracle {

void lamb(LambState& state, const std::vector<double>& gradient, const std::vector<ShardPiece>& pieces, int num_tensors,
          const LambOptions& o, std::vector<double>& squares) {
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
