// bf16 moments of AdamW on the CPU: they follow fp32 moments without bias, and their bits do not depend on how a unit
// is divided.
#include "trireme/comm/communicator.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

OptimizerSection adamw(OptimizerSection::Moments moments) {
  OptimizerSection options;
  options.betas = {0.9, 0.999};
  options.weight_decay = 0.1;
  options.moments = moments;
  return options;
}

at::Tensor random_values(int64_t count, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::empty({count}).normal_(0.0, 1.0, generator);
}

TrainedShard make_shard(const at::Tensor& values, int64_t first_element) {
  TrainedShard shard;
  shard.name = "unit";
  shard.master = shard.compute = values.clone();
  shard.ranges = {{0, values.numel(), 0, true}};
  shard.num_tensors = 1;
  shard.first_element = first_element;
  return shard;
}

/// The optimizer's tensor of this kind for the unit.
at::Tensor state_of(Optimizer& optimizer, StateKind kind, const std::string& unit = "unit") {
  for (const StateTensor& state : optimizer.state())
    if (state.kind == kind && state.shard != nullptr && state.shard->name == unit) return state.tensor;
  ADD_FAILURE() << "no state of " << unit;
  return {};
}

TEST(Bf16Moments, FollowFp32MomentsWithoutBias) {
  // With beta2 = 0.999 a step changes exp_avg_sq by a thousandth of what it lacks, less than half a unit in the last
  // place of bf16 (1/512): rounded to nearest it stands still long before it reaches its value.
  constexpr int64_t kCount = 4096;
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> exact = {make_shard(random_values(kCount, 1), 0)}, rounded = exact;
  rounded[0] = make_shard(exact[0].master, 0);
  const auto fp32 = make_optimizer(adamw(OptimizerSection::Moments::kFp32), exact, *comm),
             bf16 = make_optimizer(adamw(OptimizerSection::Moments::kBf16), rounded, *comm);
  const at::Tensor gradient = at::ones({kCount}) * 0.5;
  for (int step = 0; step < 2000; ++step) {
    exact[0].gradient = rounded[0].gradient = gradient;
    fp32->step(1e-4, at::ones({}), at::zeros({}));
    bf16->step(1e-4, at::ones({}), at::zeros({}));
  }
  const at::Tensor v = state_of(*fp32, StateKind::kSecondMoment), r = state_of(*bf16, StateKind::kSecondMoment);
  ASSERT_EQ(r.scalar_type(), at::kBFloat16);
  const double expected = v.mean().item<double>();
  EXPECT_NEAR(expected, 0.25 * (1 - std::pow(0.999, 2000)), 1e-4);
  EXPECT_NEAR(r.to(at::kDouble).mean().item<double>() / expected, 1, 2e-3);
  EXPECT_GT(r.to(at::kFloat).std().item<double>(), 0) << "every element was rounded the same way";
  EXPECT_NEAR((rounded[0].master - exact[0].master).mean().item<double>(), 0, 2e-4);
}

TEST(Bf16Moments, DoNotDependOnTheDivision) {
  constexpr int64_t kCount = 1000, kCut = 384, kFirst = int64_t{1} << 33;
  const auto comm = make_self_communicator();
  const at::Tensor values = random_values(kCount, 2);
  std::vector<TrainedShard> whole = {make_shard(values, kFirst)},
                            parts = {make_shard(values.narrow(0, 0, kCut), kFirst),
                                     make_shard(values.narrow(0, kCut, kCount - kCut), kFirst + kCut)};
  parts[1].name = "rest";
  const auto one = make_optimizer(adamw(OptimizerSection::Moments::kBf16), whole, *comm),
             two = make_optimizer(adamw(OptimizerSection::Moments::kBf16), parts, *comm);
  for (uint64_t step = 0; step < 20; ++step) {
    const at::Tensor gradient = random_values(kCount, 10 + step);
    whole[0].gradient = gradient;
    parts[0].gradient = gradient.narrow(0, 0, kCut).clone();
    parts[1].gradient = gradient.narrow(0, kCut, kCount - kCut).clone();
    one->step(1e-3, at::ones({}), at::zeros({}));
    two->step(1e-3, at::ones({}), at::zeros({}));
  }
  for (const StateKind moment : {StateKind::kFirstMoment, StateKind::kSecondMoment})
    EXPECT_TRUE(state_of(*one, moment).equal(at::cat({state_of(*two, moment), state_of(*two, moment, "rest")})));
  EXPECT_TRUE(whole[0].master.equal(at::cat({parts[0].master, parts[1].master})));
}

TEST(Bf16Moments, ASkippedStepLeavesThemAndNaNStaysNaN) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> shards = {make_shard(random_values(64, 3), 5)};
  const auto optimizer = make_optimizer(adamw(OptimizerSection::Moments::kBf16), shards, *comm);
  shards[0].gradient = random_values(64, 4);
  optimizer->step(1e-3, at::ones({}), at::zeros({}));
  const at::Tensor before = state_of(*optimizer, StateKind::kFirstMoment).clone();
  shards[0].gradient = random_values(64, 5);
  optimizer->step(1e-3, at::ones({}), at::ones({}));
  EXPECT_TRUE(state_of(*optimizer, StateKind::kFirstMoment).equal(before));
  shards[0].gradient = at::full({64}, std::numeric_limits<float>::quiet_NaN());
  optimizer->step(1e-3, at::ones({}), at::zeros({}));
  EXPECT_TRUE(state_of(*optimizer, StateKind::kFirstMoment).isnan().all().item<bool>());
}

}  // namespace
}  // namespace trireme
