// bf16 moments and master weights of AdamW on the CPU: they follow those in fp32 without bias, and their bits do not
// depend on how a unit is divided.
#include "optimizer_oracle.h"
#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

TrainedShard make_bf16_shard(const at::Tensor& values, int64_t first_element, uint32_t rounding_key) {
  TrainedShard shard = make_shard(values.to(at::kBFloat16), first_element);
  shard.rounding_key = rounding_key;
  return shard;
}

TEST(Bf16Masters, SmallUpdatesMoveThemOnAverage) {
  // Below 1 the neighbours of bf16 are 2^-8 apart: rounded to nearest, updates of 1e-5 leave a weight of 1 where it is.
  constexpr int64_t kCount = 1 << 15;
  constexpr int kSteps = 100;
  constexpr double kRate = 1e-5, kApart = 1.0 / 256;
  const auto comm = make_self_communicator();
  for (const double sign : {1.0, -1.0}) {
    std::vector<TrainedShard> shards = {make_bf16_shard(at::full({kCount}, sign), 3, 0x1234567)};
    OptimizerSection options = adamw(OptimizerSection::Moments::kFp32);
    options.weight_decay = 0;
    const auto optimizer = make_optimizer(options, shards, *comm);
    for (int step = 0; step < kSteps; ++step) {
      shards[0].gradient = at::full({kCount}, sign * 0.01).to(step % 2 == 0 ? at::kFloat : at::kBFloat16);
      optimizer->step(kRate, at::ones({}), at::zeros({}));
    }
    // A constant gradient's update is the rate. The number of steps towards zero is binomial.
    const double moved = 1 - sign * shards[0].master.to(at::kDouble).mean().item<double>(), expected = kSteps * kRate,
                 deviation = kApart * std::sqrt(kSteps * kRate / kApart / kCount);
    EXPECT_NEAR(moved, expected, 5 * deviation + 2e-6);
    EXPECT_EQ(shards[0].master.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(shards[0].compute.is_same(shards[0].master));
  }
}

TEST(Bf16Masters, TheMeanOfManyDrawsIsTheExactWeight) {
  constexpr int64_t kValues = 96, kDraws = 4096;
  const auto comm = make_self_communicator();
  const at::Tensor values = random_values(kValues, 7).to(at::kBFloat16), gradient = random_values(kValues, 8);
  std::vector<TrainedShard> exact = {make_shard(values.to(at::kFloat), 0)},
                            drawn = {make_bf16_shard(values.repeat({kDraws}), 0, 99)};
  exact[0].gradient = gradient.clone();
  drawn[0].gradient = gradient.repeat({kDraws});
  for (std::vector<TrainedShard>* shards : {&exact, &drawn})
    make_optimizer(adamw(OptimizerSection::Moments::kBf16), *shards, *comm)->step(3e-3, at::ones({}), at::zeros({}));
  const at::Tensor results = drawn[0].master.to(at::kDouble).view({kDraws, kValues}),
                   want = exact[0].master.to(at::kDouble);
  for (int64_t i = 0; i < kValues; ++i) {
    const double x = want[i].item<double>(), apart = std::ldexp(1.0, std::ilogb(x) - 7);
    const at::Tensor of_value = results.select(1, i);
    // Both neighbours, and none other. A weight that is almost a bf16 number may be drawn to one only.
    EXPECT_LT((of_value - x).abs().max().item<double>(), apart) << x;
    const double part = std::abs(x) / apart - std::floor(std::abs(x) / apart);
    EXPECT_NEAR(of_value.mean().item<double>(), x, apart * (5 * std::sqrt(part * (1 - part) / kDraws) + 2e-3)) << x;
  }
  // Over all of them no direction has an advantage.
  EXPECT_NEAR((results - want).mean().item<double>(), 0, 2e-5);
}

TEST(Bf16Masters, DependOnSeedStepAndElementOnly) {
  constexpr int64_t kCount = 1000, kCut = 384, kFirst = int64_t{1} << 33;
  const auto comm = make_self_communicator();
  const at::Tensor values = random_values(kCount, 2);
  const auto train = [&](std::vector<TrainedShard> shards, int64_t cut) {
    const auto optimizer = make_optimizer(adamw(OptimizerSection::Moments::kBf16), shards, *comm);
    for (uint64_t step = 0; step < 20; ++step) {
      const at::Tensor gradient = random_values(kCount, 10 + step);
      shards[0].gradient = gradient.narrow(0, 0, cut).clone();
      if (shards.size() > 1) shards[1].gradient = gradient.narrow(0, cut, kCount - cut).clone();
      optimizer->step(1e-3, at::ones({}), at::full({}, step == 4 ? 1.0 : 0.0));
    }
    std::vector<at::Tensor> all;
    for (const TrainedShard& shard : shards) all.push_back(shard.master);
    return at::cat(all);
  };
  const auto from = [&](int64_t begin, int64_t end, uint32_t key) {
    return make_bf16_shard(values.narrow(0, begin, end - begin), kFirst + begin, key);
  };
  const at::Tensor whole = train({from(0, kCount, 5)}, kCount);
  EXPECT_TRUE(whole.equal(train({from(0, kCut, 5), from(kCut, kCount, 5)}, kCut)));
  EXPECT_FALSE(whole.equal(train({from(0, kCount, 6)}, kCount))) << "another seed";
}

TEST(Bf16Masters, AreRoundedByTheKernelsBits) {
  constexpr int64_t kCount = 5000, kFirst = (int64_t{1} << 32) - 2500;
  constexpr uint32_t kKey = 0xDEADBEEF;
  const auto comm = make_self_communicator();
  const at::Tensor values = random_values(kCount, 2).to(at::kBFloat16), gradient = random_values(kCount, 3);
  std::vector<TrainedShard> exact = {make_shard(values.to(at::kFloat), kFirst)},
                            rounded = {make_bf16_shard(values, kFirst, kKey)};
  for (std::vector<TrainedShard>* shards : {&exact, &rounded}) {
    (*shards)[0].gradient = gradient.clone();
    make_optimizer(adamw(OptimizerSection::Moments::kFp32), *shards, *comm)->step(1e-3, at::ones({}), at::zeros({}));
  }
  const at::Tensor found = rounded[0].master.to(at::kFloat);
  for (int64_t i = 0; i < kCount; ++i) {
    const uint32_t bits = kernels::oracle::rounding_bits(static_cast<uint64_t>(kFirst + i), 1, kKey);
    ASSERT_EQ(found.const_data_ptr<float>()[i],
              kernels::oracle::rounded_to_bf16(exact[0].master.const_data_ptr<float>()[i], bits))
        << i;
  }
}

TEST(Bf16Masters, ASkippedStepLeavesThemAndNaNStaysNaN) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> shards = {make_bf16_shard(random_values(64, 3), 5, 1)};
  const auto optimizer = make_optimizer(adamw(OptimizerSection::Moments::kFp32), shards, *comm);
  const at::Tensor before = shards[0].master.clone();
  shards[0].gradient = random_values(64, 5);
  optimizer->step(1e-3, at::ones({}), at::ones({}));
  EXPECT_TRUE(shards[0].master.equal(before));
  shards[0].gradient = at::full({64}, std::numeric_limits<float>::quiet_NaN());
  optimizer->step(1e-3, at::ones({}), at::zeros({}));
  EXPECT_TRUE(shards[0].master.isnan().all().item<bool>());
}

TEST(Bf16Masters, OtherOptimizersRefuseThem) {
  const auto comm = make_self_communicator();
  std::vector<TrainedShard> shards = {make_bf16_shard(random_values(64, 3), 5, 1)};
  for (const auto name : {OptimizerSection::Name::kLamb, OptimizerSection::Name::kMuon}) {
    OptimizerSection options = adamw(OptimizerSection::Moments::kFp32);
    options.name = name;
    EXPECT_THROW(make_optimizer(options, shards, *comm), InternalError);
  }
}

}  // namespace
}  // namespace trireme
