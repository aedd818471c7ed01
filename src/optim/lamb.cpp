#include "shard_kernels.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

namespace {

class Lamb final : public Optimizer {
 public:
  Lamb(const OptimizerSection& options, std::vector<TrainedShard>& shards, Communicator& world)
      : options_(options), shards_(shards), world_(world) {
    at::NoGradGuard no_grad;
    for (TrainedShard& shard : shards_) {
      exp_avg_.push_back(at::zeros_like(shard.master));
      exp_avg_sq_.push_back(at::zeros_like(shard.master));
      tables_.push_back(shard_kernels::kernels_serve(shard)
                            ? shard_kernels::make_tables(shard, options_.decay_norms, num_tensors_)
                            : shard_kernels::Tables());
      first_tensor_.push_back(num_tensors_);
      num_tensors_ += shard.num_tensors;
    }
    if (shards_.empty()) return;
    step_ = at::zeros({}, shards_[0].master.options());
    if (options_.trust_ratio == OptimizerSection::TrustRatio::kDecayed) adapted_ = find_adapted();
  }

  void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) override {
    if (shards_.empty()) return;
    at::NoGradGuard no_grad;
    step_.add_(1 - skip);
    std::vector<shard_kernels::Step> steps;  // of the shards that the kernels serve
    for (size_t s = 0; s < shards_.size(); ++s)
      if (tables_[s].defined())
        steps.push_back({shards_[s], tables_[s], exp_avg_[s], exp_avg_sq_[s], step_, multiplier, skip, lr});
    const bool composes = steps.size() < shards_.size();
    at::Tensor keep, correction1, correction2, ratio;  // of the composition
    if (composes) {
      keep = skip.to(at::kBool).logical_not();
      correction1 = 1 - at::pow(at::scalar_tensor(options_.betas[0], step_.options()), step_);
      correction2 = (1 - at::pow(at::scalar_tensor(options_.betas[1], step_.options()), step_)).sqrt();
    }

    // Phase 1: moments and updates, and the squares of weights and updates per checkpoint tensor, each element counted
    // once over the world.
    std::vector<std::vector<at::Tensor>> updates(shards_.size());
    at::Tensor squares = at::zeros({2, num_tensors_}, shards_[0].master.options().dtype(at::kDouble));
    if (!steps.empty()) shard_kernels::lamb_moments(steps, options_, squares);
    for (size_t s = 0; s < shards_.size(); ++s) {
      if (tables_[s].defined()) continue;
      const TrainedShard& shard = shards_[s];
      const at::Tensor gradient = at::where(keep, shard.gradient.to(at::kFloat) * multiplier, 0);
      exp_avg_[s].copy_(at::where(keep, exp_avg_[s].lerp(gradient, 1 - options_.betas[0]), exp_avg_[s]));
      exp_avg_sq_[s].copy_(
          at::where(keep, exp_avg_sq_[s].lerp(gradient.square(), 1 - options_.betas[1]), exp_avg_sq_[s]));
      for (const ShardRange& range : shard.ranges) {
        const int64_t count = range.end - range.begin;
        const at::Tensor weight = shard.master.narrow(0, range.begin, count);
        at::Tensor update = exp_avg_[s].narrow(0, range.begin, count) / correction1 /
                            (exp_avg_sq_[s].narrow(0, range.begin, count).sqrt() / correction2 + options_.eps);
        if (range.decay || options_.decay_norms) update.add_(weight, options_.weight_decay);
        const int tensor = first_tensor_[s] + range.tensor;
        squares[0][tensor].add_(weight.to(at::kDouble).square().sum() / shard.copies);
        squares[1][tensor].add_(update.to(at::kDouble).square().sum() / shard.copies);
        updates[s].push_back(std::move(update));
      }
    }
    if (world_.size() > 1) world_.all_reduce(squares)->wait();

    // A norm of 0 gives trust ratio 1, here and in the kernels, so it is set for tensors without adaptation.
    if (adapted_.defined()) squares[0].mul_(adapted_);

    // Phase 2: the step of each tensor is lr * |w| / |update| times the update.
    if (composes) {
      const at::Tensor norms = squares.sqrt();
      ratio = at::where((norms[0] > 0).logical_and(norms[1] > 0), norms[0] / norms[1], 1.0).to(at::kFloat);
    }
    if (!steps.empty()) shard_kernels::lamb_apply(steps, options_, squares);
    for (size_t s = 0; s < shards_.size(); ++s) {
      if (tables_[s].defined()) continue;
      TrainedShard& shard = shards_[s];
      for (size_t r = 0; r < shard.ranges.size(); ++r) {
        const ShardRange& range = shard.ranges[r];
        at::Tensor weight = shard.master.narrow(0, range.begin, range.end - range.begin);
        weight.sub_(at::where(keep, updates[s][r] * (ratio[first_tensor_[s] + range.tensor] * lr), 0));
      }
      shard.update_compute();
    }
  }

  std::vector<StateTensor> state() override { return moment_state(shards_, step_, exp_avg_, exp_avg_sq_); }

 private:
  /// Per checkpoint tensor with elements on this rank: 1 if the trust ratio scales its step, otherwise 0.
  at::Tensor find_adapted() const {
    std::vector<double> adapted(static_cast<size_t>(num_tensors_), 1.0);
    for (size_t s = 0; s < shards_.size(); ++s)
      for (const ShardRange& range : shards_[s].ranges)
        adapted[static_cast<size_t>(first_tensor_[s] + range.tensor)] = range.decay || options_.decay_norms ? 1.0 : 0.0;
    return at::tensor(adapted, at::kDouble).to(shards_[0].master.device());
  }

  OptimizerSection options_;
  std::vector<TrainedShard>& shards_;
  Communicator& world_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<shard_kernels::Tables> tables_;  // undefined where the composition is used
  std::vector<int> first_tensor_;
  int num_tensors_ = 0;
  at::Tensor step_, adapted_;
};

}  // namespace

const OptimizerTraits& lamb_optimizer() {
  static const OptimizerTraits traits{.moments = 2,
                                      .make = [](const OptimizerSection& options, std::vector<TrainedShard>& shards,
                                                 Communicator& world) -> std::unique_ptr<Optimizer> {
                                        return std::make_unique<Lamb>(options, shards, world);
                                      }};
  return traits;
}

}  // namespace trireme
