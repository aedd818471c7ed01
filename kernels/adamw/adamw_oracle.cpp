#include "kernels/adamw/adamw_oracle.h"

#include <cmath>

namespace trireme::kernels::oracle {

void adamw(AdamWState& state, const std::vector<double>& gradient, const std::vector<bool>& decays, double multiplier,
           double step, double lr, double beta1, double beta2, double eps, double weight_decay) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * multiplier;
    double &p = state.master[i], &m = state.exp_avg[i], &v = state.exp_avg_sq[i];
    if (decays[i]) p *= 1 - lr * weight_decay;
    m += (1 - beta1) * (g - m);
    v = beta2 * v + (1 - beta2) * g * g;
    p -= lr / (1 - std::pow(beta1, step)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(beta2, step)) + eps);
  }
}

}  // namespace trireme::kernels::oracle
