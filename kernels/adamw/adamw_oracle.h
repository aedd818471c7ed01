#pragma once
// The formulas of adamw.h in fp64 on the host.

#include <vector>

namespace trireme::kernels::oracle {

struct AdamWState {
  std::vector<double> master, exp_avg, exp_avg_sq;
};
/// Updates `state`; decays[i]: element i has weight decay.
void adamw(AdamWState& state, const std::vector<double>& gradient, const std::vector<bool>& decays, double multiplier,
           double step, double lr, double beta1, double beta2, double eps, double weight_decay);

}  // namespace trireme::kernels::oracle
