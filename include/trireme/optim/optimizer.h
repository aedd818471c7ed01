#pragma once
// Optimizers over local shards. All scalars that depend on the gradients live on the device, so that a step needs no
// host round trip.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/nn/trained_shard.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of every shard's master weights and compute copy.
  /// `multiplier`: fp32 device scalar applied to the gradients (clipping, normalisation, loss scale).
  /// `skip`: fp32 device scalar; 1 leaves weights, moments and step count untouched, 0 applies.
  virtual void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) = 0;
  /// Everything a checkpoint must keep besides the masters: "exp_avg.0", …, with the tensors themselves (not copies).
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

/// adamw: Loshchilov & Hutter 2019 as torch.optim.AdamW computes it.
/// lamb: You et al. 2020, bias correction on, trust ratio |w| / |update| per checkpoint tensor (1 where either norm is
/// 0, and without weight decay unless trust_ratio is all, as apex' FusedLAMB and the MLPerf submissions do); norms span
/// the ranks that share a tensor.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                          Communicator& world);

/// This rank's share of the squared L2 norm of all gradients: fp64 device scalar whose sum over the world is the global
/// square.
at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards);

/// Learning rate of step t (from 0). Formulas: CONTRACT "schedule"; held at min_lr after max_steps.
double learning_rate(const ScheduleSection& schedule, double lr, int64_t max_steps, int64_t step);

}  // namespace trireme
