#include "shard_kernels.h"
#include "trireme/nn/host_state.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace trireme {

namespace {

/// Adjacent ranges with the same weight decay, merged across the padding between them (which stays zero).
struct Group {
  int64_t begin, end;
  bool decay;
  size_t shard;
};
std::vector<Group> make_groups(const std::vector<TrainedShard>& shards, bool decay_norms,
                               const std::function<bool(size_t)>& select) {
  std::vector<Group> groups;
  for (size_t s = 0; s < shards.size(); ++s) {
    if (!select(s)) continue;
    for (const ShardRange& range : shards[s].ranges) {
      const bool decay = range.decay || decay_norms;
      if (!groups.empty() && groups.back().shard == s && groups.back().decay == decay)
        groups.back().end = range.end;
      else
        groups.push_back({range.begin, range.end, decay, s});
    }
  }
  return groups;
}

/// Elements [begin, begin + count) of a shard as a shard of their own, without its gradient.
TrainedShard part_of(const TrainedShard& shard, int64_t begin, int64_t count) {
  TrainedShard part = shard;
  part.gradient = at::Tensor();
  part.master = shard.master.narrow(0, begin, count);
  if (shard.compute.defined())
    part.compute = shard.has_compute_copy() ? shard.compute.narrow(0, begin, count) : part.master;
  part.first_element += begin;
  part.ranges.clear();
  for (ShardRange range : shard.ranges) {
    range.begin = std::max<int64_t>(range.begin - begin, 0);
    range.end = std::min(range.end - begin, count);
    if (range.begin < range.end) part.ranges.push_back(range);
  }
  return part;
}

constexpr int64_t kRounded = int64_t{1} << 22;  // elements

/// bf16 of fp32 values, rounded as kernels/optimizer/adamw.cu rounds: `shift` 0 uses the lower 16 random bits,
/// 16 the upper 16.
at::Tensor round_stochastically(const at::Tensor& values, const at::Tensor& random, int64_t shift) {
  const at::Tensor bits = values.view(at::kInt).to(at::kLong).bitwise_and(0xFFFFFFFF);
  const at::Tensor up = bits.add(random.bitwise_right_shift(shift).bitwise_and(0xFFFF)).bitwise_right_shift(16);
  // As a signed 16-bit pattern.
  const at::Tensor pattern = at::where(up.ge(0x8000), up - 0x10000, up).to(at::kShort).view(at::kBFloat16);
  return at::where(values.isfinite(), pattern, values.to(at::kBFloat16));
}

/// rounding_bits() of kernels/optimizer/adamw.cu for `count` elements: int64 with 32 bits each.
at::Tensor random_bits(int64_t first, int64_t count, const at::Tensor& step, uint32_t key) {
  constexpr int64_t kMask = 0xFFFFFFFF;
  // Products of two 32-bit numbers modulo 2^32, from halves so that nothing overflows.
  const auto times = [](const at::Tensor& a, int64_t b) {
    return (a * (b & 0xFFFF) + ((a * (b >> 16)).bitwise_and(0xFFFF)).bitwise_left_shift(16)).bitwise_and(kMask);
  };
  const at::Tensor element = at::arange(first, first + count, at::TensorOptions(step.device()).dtype(at::kLong));
  at::Tensor h = times(element.bitwise_and(kMask), 0x9E3779B1)
                     .bitwise_xor(times(element.bitwise_right_shift(32), 0x85EBCA77))
                     .bitwise_xor(times(step.to(at::kLong), 0xC2B2AE3D))
                     .bitwise_xor(static_cast<int64_t>(key));
  h = times(h.bitwise_xor(h.bitwise_right_shift(16)), 0x7FEB352D);
  h = times(h.bitwise_xor(h.bitwise_right_shift(15)), 0x846CA68B);
  return h.bitwise_xor(h.bitwise_right_shift(16));
}

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerSection& options, std::vector<TrainedShard>& shards) : options_(options), shards_(shards) {
    at::NoGradGuard no_grad;
    const at::ScalarType type = options_.moments == OptimizerSection::Moments::kBf16 ? at::kBFloat16 : at::kFloat;
    for (TrainedShard& shard : shards_) {
      const int64_t count = shard.master.numel();
      for (std::vector<at::Tensor>* moments : {&exp_avg_, &exp_avg_sq_})
        moments->push_back(shard.host != nullptr ? shard.host->zeros(count, type)
                                                 : at::zeros({count}, shard.master.options().dtype(type)));
      tables_.emplace_back();
      if (shard.host != nullptr)
        divide(tables_.size() - 1);
      else if (shard_kernels::kernels_serve(shard))
        tables_.back() = shard_kernels::make_tables(shard, options_.decay_norms);
    }
    groups_ = make_groups(shards_, options_.decay_norms,
                          [&](size_t s) { return shards_[s].host == nullptr && !tables_[s].defined(); });
    if (!shards_.empty()) step_ = at::zeros({}, at::TensorOptions(shards_[0].device()).dtype(at::kFloat));
  }

  void step(double lr, const at::Tensor& multiplier, const at::Tensor& skip) override {
    at::NoGradGuard no_grad;
    step_.add_(1 - skip);
    if (!parts_.empty()) step_parts(lr, multiplier, skip);
    for (size_t s = 0; s < shards_.size(); ++s)
      if (tables_[s].defined()) {
        shard_kernels::adamw({shards_[s], tables_[s], exp_avg_[s], exp_avg_sq_[s], step_, multiplier, skip, lr},
                             options_);
        shards_[s].amax_known = shards_[s].amax.defined();
      }
    compose(shards_, groups_, exp_avg_, exp_avg_sq_, lr, multiplier, skip);
    for (size_t s = 0; s < shards_.size(); ++s)
      if (!tables_[s].defined() && shards_[s].host == nullptr) shards_[s].update_compute();
  }

  std::vector<StateTensor> state() override { return moment_state(shards_, step_, exp_avg_, exp_avg_sq_); }

 private:
  /// Elements of a shard whose state is on the host, which go through the device together.
  struct Part {
    TrainedShard shard;  // a part of shards_[of] that begins with its element `begin`
    size_t of;
    int64_t begin;
    shard_kernels::Tables tables;
  };

  /// Makes the parts of a shard and of its moments.
  void divide(size_t of) {
    const TrainedShard& shard = shards_[of];
    const int64_t most = shard.host->piece_elements();
    for (int64_t begin = 0; begin < shard.master.numel(); begin += most) {
      const int64_t count = std::min(most, shard.master.numel() - begin);
      Part part{part_of(shard, begin, count), of, begin, {}};
      if (part.shard.ranges.empty()) continue;  // padding
      if (shard_kernels::kernels_serve(part.shard))
        part.tables = shard_kernels::make_tables(part.shard, options_.decay_norms);
      host_.push_back({exp_avg_[of].narrow(0, begin, count), exp_avg_sq_[of].narrow(0, begin, count)});
      if (shard.has_compute_copy() || !shard.compute.defined()) host_.back().push_back(part.shard.master);
      parts_.push_back(std::move(part));
    }
  }

  void step_parts(double lr, const at::Tensor& multiplier, const at::Tensor& skip) {
    for (TrainedShard& shard : shards_)
      if (shard.host != nullptr && shard.amax.defined()) shard.amax.zero_();
    at::Tensor masters;  // of the shard that is under way, if it is asked for
    shards_[parts_.front().of].host->pass(host_, [&](size_t i, const HostState::Piece& here) {
      const Part& part = parts_[i];
      update(part, here, lr, multiplier, skip);
      const TrainedShard& shard = shards_[part.of];
      if (!shard.updated) return;
      if (!masters.defined()) masters = at::zeros({shard.master.numel()}, here[2].options());
      masters.narrow(0, part.begin, here[2].numel()).copy_(here[2]);
      if (i + 1 < parts_.size() && parts_[i + 1].of == part.of) return;
      shard.updated(std::exchange(masters, at::Tensor()));
    });
  }

  /// `here`: the part's moments and, if they are on the host, masters.
  void update(const Part& part, const HostState::Piece& here, double lr, const at::Tensor& multiplier,
              const at::Tensor& skip) {
    std::vector<TrainedShard> shard = {part.shard};
    if (here.size() > 2) shard[0].master = here[2];
    shard[0].gradient = shards_[part.of].gradient.narrow(0, part.begin, part.shard.master.numel());
    if (part.tables.defined()) {
      shard_kernels::adamw({shard[0], part.tables, here[0], here[1], step_, multiplier, skip, lr}, options_,
                           /*clears_amax=*/false);
      shards_[part.of].amax_known = shard[0].amax.defined();
      return;
    }
    const auto groups = make_groups(shard, options_.decay_norms, [](size_t) { return true; });
    compose(shard, groups, {here[0]}, {here[1]}, lr, multiplier, skip);
    shard[0].update_compute();
  }

  /// LibTorch's AdamW for the groups of these shards, whose moments are `firsts` and `seconds`.
  void compose(const std::vector<TrainedShard>& shards, const std::vector<Group>& groups,
               const std::vector<at::Tensor>& firsts, const std::vector<at::Tensor>& seconds, double lr,
               const at::Tensor& multiplier, const at::Tensor& skip) const {
    if (groups.empty()) return;
    const at::Tensor divisor = multiplier.reciprocal();  // the fused step divides gradients by grad_scale
    for (const bool decay : {true, false}) {
      std::vector<at::Tensor> masters, gradients, exp_avg, exp_avg_sq, steps;
      for (const Group& group : groups) {
        if (group.decay != decay) continue;
        const auto of_group = [&](const at::Tensor& all) {
          return all.narrow(0, group.begin, group.end - group.begin);
        };
        masters.push_back(of_group(shards[group.shard].master).to(at::kFloat));
        gradients.push_back(of_group(shards[group.shard].gradient).to(at::kFloat));
        exp_avg.push_back(of_group(firsts[group.shard]).to(at::kFloat));
        exp_avg_sq.push_back(of_group(seconds[group.shard]).to(at::kFloat));
        steps.push_back(step_);
      }
      if (masters.empty()) continue;
      at::_fused_adamw_(masters, gradients, exp_avg, exp_avg_sq, {}, steps, lr, options_.betas[0], options_.betas[1],
                        decay ? options_.weight_decay : 0.0, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                        divisor, skip);
      // fp32 moments and masters were updated in place.
      size_t next = 0;
      for (const Group& group : groups) {
        if (group.decay != decay) continue;
        const size_t i = next++;
        const TrainedShard& shard = shards[group.shard];
        const at::Tensor &first = firsts[group.shard], &second = seconds[group.shard];
        // In parts, because the bits are integers of 64 bits.
        for (int64_t begin = group.begin; begin < group.end; begin += kRounded) {
          const int64_t count = std::min(kRounded, group.end - begin), from = begin - group.begin;
          const auto random = [&](uint32_t key) { return random_bits(shard.first_element + begin, count, step_, key); };
          const auto write = [&](const at::Tensor& to, const at::Tensor& values, const at::Tensor& bits,
                                 int64_t shift) {
            to.narrow(0, begin, count).copy_(round_stochastically(values.narrow(0, from, count), bits, shift));
          };
          if (shard.master.scalar_type() != at::kFloat) write(shard.master, masters[i], random(shard.rounding_key), 0);
          if (first.scalar_type() == at::kFloat) continue;
          const at::Tensor of_moments = random(0);
          write(first, exp_avg[i], of_moments, 0);
          write(second, exp_avg_sq[i], of_moments, 16);
        }
      }
    }
  }

  OptimizerSection options_;
  std::vector<TrainedShard>& shards_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<shard_kernels::Tables> tables_;  // of the shards that our kernels update
  std::vector<Group> groups_;                  // of the other shards whose state is on the device
  std::vector<Part> parts_;                    // of the shards whose state is on the host,
  std::vector<HostState::Piece> host_;         // and their moments and, beside a compute copy or codes, masters
  at::Tensor step_;
};

}  // namespace

const OptimizerTraits& adamw_optimizer() {
  static const OptimizerTraits traits{
      .moments = 2,
      .bf16_moments = true,
      .streams = true,
      .bf16_masters = true,
      .make = [](const OptimizerSection& options, std::vector<TrainedShard>& shards,
                 Communicator&) -> std::unique_ptr<Optimizer> { return std::make_unique<AdamW>(options, shards); }};
  return traits;
}

}  // namespace trireme
