#include "shard_kernels.h"
#include "trireme/optim/optimizer.h"

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

/// bf16 of fp32 values, rounded as kernels/optimizer/adamw.cu rounds moments: `shift` 0 uses the lower 16 random bits,
/// 16 the upper 16.
at::Tensor round_stochastically(const at::Tensor& values, const at::Tensor& random, int64_t shift) {
  const at::Tensor bits = values.view(at::kInt).to(at::kLong).bitwise_and(0xFFFFFFFF);
  const at::Tensor up = bits.add(random.bitwise_right_shift(shift).bitwise_and(0xFFFF)).bitwise_right_shift(16);
  // As a signed 16-bit pattern.
  const at::Tensor pattern = at::where(up.ge(0x8000), up - 0x10000, up).to(at::kShort).view(at::kBFloat16);
  return at::where(values.isfinite(), pattern, values.to(at::kBFloat16));
}

/// moment_bits() of kernels/optimizer/adamw.cu for `count` elements: int64 with 32 bits each.
at::Tensor random_bits(int64_t first, int64_t count, const at::Tensor& step) {
  constexpr int64_t kMask = 0xFFFFFFFF;
  // Products of two 32-bit numbers modulo 2^32, from halves so that nothing overflows.
  const auto times = [](const at::Tensor& a, int64_t b) {
    return (a * (b & 0xFFFF) + ((a * (b >> 16)).bitwise_and(0xFFFF)).bitwise_left_shift(16)).bitwise_and(kMask);
  };
  const at::Tensor element = at::arange(first, first + count, at::TensorOptions(step.device()).dtype(at::kLong));
  at::Tensor h = times(element.bitwise_and(kMask), 0x9E3779B1)
                     .bitwise_xor(times(element.bitwise_right_shift(32), 0x85EBCA77))
                     .bitwise_xor(times(step.to(at::kLong), 0xC2B2AE3D));
  h = times(h.bitwise_xor(h.bitwise_right_shift(16)), 0x7FEB352D);
  h = times(h.bitwise_xor(h.bitwise_right_shift(15)), 0x846CA68B);
  return h.bitwise_xor(h.bitwise_right_shift(16));
}

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerSection& options, std::vector<TrainedShard>& shards) : options_(options), shards_(shards) {
    at::NoGradGuard no_grad;
    for (size_t s = 0; s < shards_.size(); ++s) {
      TrainedShard& shard = shards_[s];
      const auto type = shard.master.options().dtype(
          options_.moments == OptimizerSection::Moments::kBf16 ? at::kBFloat16 : at::kFloat);
      exp_avg_.push_back(at::zeros(shard.master.sizes(), type));
      exp_avg_sq_.push_back(at::zeros(shard.master.sizes(), type));
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
      if (tables_[s].defined()) {
        shard_kernels::adamw({shards_[s], tables_[s], exp_avg_[s], exp_avg_sq_[s], step_, multiplier, skip, lr},
                             options_);
        shards_[s].amax_known = shards_[s].amax.defined();
      }
    const at::Tensor divisor = multiplier.reciprocal();  // the fused step divides gradients by grad_scale
    for (const bool decay : {true, false}) {
      std::vector<at::Tensor> masters, gradients, firsts, seconds, steps;
      for (const Group& group : groups_) {
        if (group.decay != decay) continue;
        masters.push_back(group.master);
        gradients.push_back(
            shards_[group.shard].gradient.narrow(0, group.begin, group.end - group.begin).to(at::kFloat));
        firsts.push_back(group.exp_avg.to(at::kFloat));
        seconds.push_back(group.exp_avg_sq.to(at::kFloat));
        steps.push_back(step_);
      }
      if (masters.empty()) continue;
      at::_fused_adamw_(masters, gradients, firsts, seconds, {}, steps, lr, options_.betas[0], options_.betas[1],
                        decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                        divisor, skip);
      store_moments(decay, firsts, seconds);
    }
    for (size_t s = 0; s < shards_.size(); ++s)
      if (!tables_[s].defined()) shards_[s].update_compute();
  }

  std::vector<StateTensor> state() override { return moment_state(shards_, step_, exp_avg_, exp_avg_sq_); }

 private:
  /// Rounds the moments of the groups with this weight decay where they are not fp32, whose tensors were updated in
  /// place.
  void store_moments(bool decay, const std::vector<at::Tensor>& firsts, const std::vector<at::Tensor>& seconds) {
    size_t next = 0;
    for (Group& group : groups_) {
      if (group.decay != decay) continue;
      const size_t i = next++;
      if (group.exp_avg.scalar_type() == at::kFloat) continue;
      const at::Tensor random =
          random_bits(shards_[group.shard].first_element + group.begin, group.end - group.begin, step_);
      group.exp_avg.copy_(round_stochastically(firsts[i], random, 0));
      group.exp_avg_sq.copy_(round_stochastically(seconds[i], random, 16));
    }
  }

  OptimizerSection options_;
  std::vector<TrainedShard>& shards_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<shard_kernels::Tables> tables_;  // of the shards that our kernels update
  std::vector<Group> groups_;                  // of the other shards
  at::Tensor step_;
};

}  // namespace

const OptimizerTraits& adamw_optimizer() {
  static const OptimizerTraits traits{
      .moments = 2,
      .bf16_moments = true,
      .make = [](const OptimizerSection& options, std::vector<TrainedShard>& shards,
                 Communicator&) -> std::unique_ptr<Optimizer> { return std::make_unique<AdamW>(options, shards); }};
  return traits;
}

}  // namespace trireme
