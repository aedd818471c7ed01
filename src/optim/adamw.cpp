#include "optimizers.h"

#include "shard_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

namespace {

/// Adjacent ranges with the same weight decay, merged across the padding between them (which stays zero).
struct Group {
  at::Tensor master, exp_avg, exp_avg_sq;
  int64_t begin, end;
  bool decay;
  size_t shard;
};

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerSection& options, std::vector<TrainedShard>& shards) : options_(options), shards_(shards) {
    at::NoGradGuard no_grad;
    for (size_t s = 0; s < shards_.size(); ++s) {
      TrainedShard& shard = shards_[s];
      exp_avg_.push_back(at::zeros_like(shard.master));
      exp_avg_sq_.push_back(at::zeros_like(shard.master));
      tables_.emplace_back();
      if (shard_kernels::kernels_serve(shard)) {
        tables_.back() = shard_kernels::make_tables(shard, options_.decay_norms);
        continue;
      }
      for (const ShardRange& range : shard.ranges) {
        const bool decay = range.decay || options_.decay_norms;
        if (!groups_.empty() && groups_.back().shard == s && groups_.back().decay == decay) {
          groups_.back().end = range.end;
        } else {
          groups_.push_back({{}, {}, {}, range.begin, range.end, decay, s});
        }
      }
    }
    for (Group& group : groups_) {
      const int64_t count = group.end - group.begin;
      group.master = shards_[group.shard].master.narrow(0, group.begin, count);
      group.exp_avg = exp_avg_[group.shard].narrow(0, group.begin, count);
      group.exp_avg_sq = exp_avg_sq_[group.shard].narrow(0, group.begin, count);
    }
    if (!shards_.empty()) step_ = at::zeros({}, shards_[0].master.options());
  }

  void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) override {
    at::NoGradGuard no_grad;
    step_.add_(1 - skip);
    for (size_t s = 0; s < shards_.size(); ++s)
      if (tables_[s].defined())
        shard_kernels::adamw({shards_[s], tables_[s], exp_avg_[s], exp_avg_sq_[s], step_, multiplier, skip, lr},
                             options_);
    const at::Tensor divisor = multiplier.reciprocal();  // the fused step divides gradients by grad_scale
    for (const bool decay : {true, false}) {
      std::vector<at::Tensor> masters, gradients, firsts, seconds, steps;
      for (const Group& group : groups_) {
        if (group.decay != decay) continue;
        masters.push_back(group.master);
        gradients.push_back(
            shards_[group.shard].gradient.narrow(0, group.begin, group.end - group.begin).to(at::kFloat));
        firsts.push_back(group.exp_avg);
        seconds.push_back(group.exp_avg_sq);
        steps.push_back(step_);
      }
      if (masters.empty()) continue;
      at::_fused_adamw_(masters, gradients, firsts, seconds, {}, steps, lr, options_.betas[0], options_.betas[1],
                        decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                        divisor, skip);
    }
    for (size_t s = 0; s < shards_.size(); ++s)
      if (!tables_[s].defined() && !shards_[s].compute.is_same(shards_[s].master))
        shards_[s].compute.copy_(shards_[s].master);
  }

  std::vector<std::pair<std::string, at::Tensor>> state() override {
    std::vector<std::pair<std::string, at::Tensor>> state = {{"step", step_}};
    for (size_t s = 0; s < shards_.size(); ++s) {
      state.emplace_back("exp_avg." + shards_[s].name, exp_avg_[s]);
      state.emplace_back("exp_avg_sq." + shards_[s].name, exp_avg_sq_[s]);
    }
    return state;
  }

 private:
  OptimizerSection options_;
  std::vector<TrainedShard>& shards_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<shard_kernels::Tables> tables_;  // of the shards that our kernels update
  std::vector<Group> groups_;                  // of the other shards
  at::Tensor step_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const OptimizerSection& options, std::vector<TrainedShard>& shards) {
  return std::make_unique<AdamW>(options, shards);
}

}  // namespace trireme
