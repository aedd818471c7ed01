// A small network in ShardedUnits on 1, 2 and 4 ranks, compared with plain autograd on one rank: values, gradients and
// updates for every shard size, with accumulation, kept units and frozen units.
#include "trireme/fsdp/sharded_units.h"
#include "mpi_test_main.h"
#include "trireme/base/error.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

namespace trireme {
namespace {

constexpr int64_t kWidth = 24;
constexpr int kBlocks = 4;

Communicator& comm() { return test_world().communicator(); }

std::vector<UnitSpec> make_units(bool trained, bool with_adapter) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < kBlocks; ++i) {
    UnitSpec unit;
    unit.name = "block." + std::to_string(i);
    unit.trained = trained;
    unit.keep = i == 0;
    const std::string prefix = unit.name + ".";
    unit.parameters.push_back({"fused",
                               {2 * kWidth, kWidth},
                               {{prefix + "up", kWidth}, {prefix + "gate", kWidth}},
                               Init::kNormal,
                               0.3,
                               true,
                               /*linear=*/true});
    unit.parameters.push_back({"bias", {kWidth}, {{prefix + "bias", kWidth}}, Init::kOnes, 0, false});
    units.push_back(unit);
  }
  if (with_adapter) {
    UnitSpec unit;
    unit.name = "adapters";
    unit.trained = unit.replicated = true;
    for (int i = 0; i < kBlocks; ++i)
      unit.parameters.push_back({"a" + std::to_string(i),
                                 {kWidth, kWidth},
                                 {{"adapter." + std::to_string(i), kWidth}},
                                 Init::kUniform,
                                 0.2,
                                 true});
    units.push_back(unit);
  }
  return units;
}

at::Tensor forward(UnitStore& store, at::Tensor x, bool with_adapter) {
  for (int i = 0; i < kBlocks; ++i) {
    x = enter_unit(x, store, i);
    const auto& w = store.parameters(i);
    const at::Tensor fused = norm_linear(x, {}, {{w[0], store.weight_states(i)[0]}, {}, {}})[0];
    at::Tensor y = fused.narrow(-1, 0, kWidth).tanh() * fused.narrow(-1, kWidth, kWidth) + w[1];
    if (with_adapter) y = y + at::linear(x, store.parameters(kBlocks)[i]);
    x = leave_unit(y, store, i);
  }
  return x.square().mean();
}

at::Tensor sample(int64_t index) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(1000 + static_cast<uint64_t>(index));
  return at::empty({3, kWidth}).normal_(0.0, 1.0, generator);
}

struct Case {
  int shard_size;
  bool trained, with_adapter;
  int micro_batches;
  at::ScalarType reduce_dtype = at::kFloat;
  ShardPolicy policy = ShardPolicy::kFull;
};

std::map<std::string, at::Tensor> train(Communicator& group, const Case& test, int steps, std::vector<double>* norms) {
  ShardedUnits units(
      make_units(test.trained, test.with_adapter), group, at::kCPU,
      {.shard_size = test.shard_size, .resident = {}, .reduce_dtype = test.reduce_dtype, .policy = test.policy});
  units.initialise(7, false);
  OptimizerSection options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  auto optimizer = make_optimizer(options, units.trained(), group);
  const int global = 8;  // samples per step over all ranks
  for (int step = 0; step < steps; ++step) {
    const int local = global / group.size();
    const int per_micro = local / test.micro_batches;
    int next = 0;
    for (int m = 0; m < test.micro_batches; ++m) {
      units.begin_micro_batch(m + 1 == test.micro_batches);
      std::vector<at::Tensor> samples;
      for (int i = 0; i < per_micro; ++i, ++next)
        samples.push_back(sample(step * global + next * group.size() + group.rank()));
      (forward(units, at::cat(samples).requires_grad_(true), test.with_adapter) * per_micro / global).backward();
    }
    units.finish_backward();
    at::Tensor square = local_gradient_square(units.trained());
    group.all_reduce(square)->wait();
    if (norms != nullptr) norms->push_back(square.sqrt().item<double>());
    optimizer->step(options.lr, at::ones({}), at::zeros({}));
    units.weights_changed();
    units.clear_gradients();
  }
  std::map<std::string, at::Tensor> weights;
  units.export_tensors(
      at::kFloat, [](int) { return true; },
      [&](const std::string& name, const at::Tensor& value) { weights[name] = value.clone(); });
  return weights;
}

class Sharding : public testing::TestWithParam<Case> {};

TEST_P(Sharding, EqualsOneRank) {
  const Case test = GetParam();
  if (comm().size() % test.shard_size != 0 || 8 / comm().size() % test.micro_batches != 0) return;
  const auto alone = comm().split(comm().rank());
  std::vector<double> norms, reference_norms;
  const auto reference = train(*alone, {1, test.trained, test.with_adapter, 1}, 3, &reference_norms);
  // bf16 keeps 8 bits of each rank's gradient, and AdamW's first steps depend on signs: after three steps errors exceed
  // the rounding error.
  const double tolerance = test.reduce_dtype == at::kFloat ? 1e-5 : 2e-2;
  const auto weights = train(comm(), test, 3, &norms);
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], reference_norms[i], tolerance * reference_norms[i]);
  if (comm().rank() != 0) {
    EXPECT_TRUE(weights.empty());
    return;
  }
  ASSERT_EQ(weights.size(), reference.size());
  for (const auto& [name, value] : reference) {
    ASSERT_TRUE(weights.contains(name)) << name;
    EXPECT_TRUE(at::allclose(weights.at(name), value, 10 * tolerance, tolerance))
        << name << " differs by " << (weights.at(name) - value).abs().max().item<double>();
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Sharding,
                         testing::Values(Case{1, true, false, 1}, Case{2, true, false, 1}, Case{4, true, false, 1},
                                         Case{2, true, false, 2}, Case{4, true, false, 2}, Case{1, false, true, 1},
                                         Case{2, false, true, 2}, Case{4, false, true, 1},
                                         Case{1, true, false, 1, at::kBFloat16},
                                         Case{4, true, false, 2, at::kBFloat16}));

std::vector<Case> policy_cases() {
  std::vector<Case> cases;
  for (const ShardPolicy policy : {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients})
    for (const int shard_size : {2, 4})
      for (const int micro_batches : {1, 2})
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
          cases.push_back({shard_size, true, false, micro_batches, dtype, policy});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Policies, Sharding, testing::ValuesIn(policy_cases()));

TEST(ShardedUnits, RandomWeightsDoNotDependOnTheSharding) {
  std::map<std::string, at::Tensor> first;
  for (const int shard_size : {1, 2, 4}) {
    if (comm().size() % shard_size != 0) continue;
    ShardedUnits units(make_units(false, true), comm(), at::kCPU, {at::kFloat, shard_size, {}});
    units.initialise(3, false);
    std::map<std::string, at::Tensor> weights;
    units.export_tensors(
        at::kFloat, [](int) { return true; },
        [&](const std::string& name, const at::Tensor& value) { weights[name] = value.clone(); });
    if (first.empty()) first = weights;
    for (const auto& [name, value] : weights)
      EXPECT_TRUE(value.equal(first.at(name))) << name << " with shard size " << shard_size;
  }
}

TEST(ShardedUnits, AShardedUnitHasMemoryOnlyWhileItIsUsed) {
  if (comm().size() < 2) return;
  ShardedUnits units(make_units(false, false), comm(), at::kCPU, {at::kFloat, comm().size(), {}});
  units.initialise(5, false);
  const auto memory = [&](int unit) { return units.parameters(unit)[0].storage().data(); };
  EXPECT_EQ(memory(2), nullptr);
  units.pre_forward(2);
  EXPECT_NE(memory(2), nullptr);
  const at::Tensor before = units.parameters(2)[0].clone();
  units.post_forward(2);
  units.pre_forward(3);  // uses the prefetched slot; the next gather may use the other one
  units.post_forward(3);
  units.pre_forward(1);
  EXPECT_TRUE(memory(2) == nullptr || memory(1) != memory(2));
  units.post_forward(1);
  units.pre_forward(2);
  EXPECT_TRUE(units.parameters(2)[0].equal(before));
  units.post_forward(2);
  units.release();
}

TEST(ShardedUnits, ResidentUnitsNeedNoGather) {
  std::vector<bool> resident(kBlocks, true);
  ShardedUnits units(make_units(false, false), comm(), at::kCPU, {at::kFloat, comm().size(), resident});
  EXPECT_EQ(units.gathered_bytes_per_step_forward(), 0);
  EXPECT_EQ(units.memory_use().gather_slots, 0);
}

TEST(ShardedUnits, AMissingGradientIsAnErrorNotASilentZero) {
  ShardedUnits units(make_units(true, false), comm(), at::kCPU, {at::kFloat, 1, {}});
  units.initialise(1, false);
  units.begin_micro_batch(true);
  EXPECT_THROW(units.finish_backward(), InternalError);
}

}  // namespace
}  // namespace trireme
