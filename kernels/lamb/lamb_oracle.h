#pragma once
// The formulas of lamb.h in fp64 on the host.

#include "kernels/shard_chunks.h"

#include <vector>

namespace trireme::kernels::oracle {

struct LambState {
  std::vector<double> master, exp_avg, exp_avg_sq;
};
struct LambOptions {
  double multiplier, step, lr, beta1, beta2, eps, weight_decay;
};
/// One step on `state` for the elements of `pieces`; squares [2, num_tensors] gets |p|^2 and |u|^2 of this shard.
void lamb(LambState& state, const std::vector<double>& gradient, const std::vector<ShardPiece>& pieces, int num_tensors,
          const LambOptions& options, std::vector<double>& squares);

}  // namespace trireme::kernels::oracle
