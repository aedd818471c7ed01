#pragma once
// Optimizers over local shards. All scalars that depend on the gradients stay on the device, so that a step needs no
// synchronisation with the host.

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
  /// Updates the master weights and the compute copy of every shard once, with learning rate `lr`. `multiplier`: fp32
  /// device scalar by which gradients are multiplied (clipping, normalisation, loss scale). `skip`: fp32 device scalar;
  /// 1 leaves weights, moments and step count unchanged, 0 applies the update.
  virtual void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) = 0;
  /// What a checkpoint must contain in addition to the masters: pairs of a name ("exp_avg.0", …) and the tensor itself
  /// (not a copy).
  virtual std::vector<std::pair<std::string, at::Tensor>> state() = 0;
};

/// An optimizer over `shards`, which must outlive it. adamw: Loshchilov & Hutter 2019, as torch.optim.AdamW computes
/// it. lamb: You et al. 2020 with bias correction and a trust ratio |w| / |update| per checkpoint tensor. The ratio is
/// 1 if either norm is 0 and, unless trust_ratio is all, for tensors without weight decay (as in apex' FusedLAMB and
/// the MLPerf submissions). Norms cover all ranks that share a tensor. Empty shards and other options are internal
/// errors; the configuration rejects them earlier.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                          Communicator& world);

/// This rank's part of the squared L2 norm of all gradients: fp64 device scalar. The sum over the ranks is the global
/// square.
at::Tensor local_gradient_square(const std::vector<TrainedShard>& shards);

/// Learning rate of step t (from 0): lr (t + 1) / (w + 1) in the w warm-up steps. After them, with f = min(1, (t - w) /
/// (max_steps - w)): constant lr; linear min_lr + (lr - min_lr) (1 - f); cosine min_lr + (lr - min_lr) (1 + cos(pi f))
/// / 2.
double learning_rate(const ScheduleSection& schedule, double lr, int64_t max_steps, int64_t step);

}  // namespace trireme
