// A small network in ShardedUnits on 1, 2 and 4 ranks, compared with plain autograd on one rank: values, gradients and
// updates for every shard size, with accumulation, kept units and frozen units.
#include "trireme/fsdp/sharded_units.h"
#include "../base/base_testing.h"
#include "mpi_test_main.h"
#include "network_counter.h"
#include "trireme/fsdp/layout.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/search.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
    unit.parameters.back().matrix_rows = {kWidth, kWidth};
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
  OptimizerSection::Name optimizer = OptimizerSection::Name::kAdamw;
};

/// `stepped` is called after each step.
std::map<std::string, at::Tensor> train(Communicator& group, const Case& test, int steps, std::vector<double>* norms,
                                        const std::function<void()>& stepped = {}) {
  ShardedUnits units(make_units(test.trained, test.with_adapter), group,
                     RankGrid(group.rank(), {.world = group.size(), .shard = test.shard_size}), at::kCPU,
                     {.resident = {}, .reduce_dtype = test.reduce_dtype, .policy = test.policy});
  units.initialise(7, false);
  OptimizerSection options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  options.name = test.optimizer;
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
    if (stepped) stepped();
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
  const auto reference = train(*alone,
                               {.shard_size = 1,
                                .trained = test.trained,
                                .with_adapter = test.with_adapter,
                                .micro_batches = 1,
                                .optimizer = test.optimizer},
                               3, &reference_norms);
  // bf16 keeps 8 bits of each rank's gradient, and AdamW's first steps depend on signs: after three steps errors exceed
  // the rounding error. Muon rounds its updates to bf16, otherwise where a sum of gradients differs in its last bit.
  const double tolerance = test.reduce_dtype != at::kFloat                   ? 2e-2
                           : test.optimizer == OptimizerSection::Name::kMuon ? 5e-4
                                                                             : 1e-5;
  const auto weights = train(comm(), test, 3, &norms);
  // A norm sums the effects of all updates; with AVX2 they are rounded otherwise than with AVX-512.
  const double of_norms = std::max(tolerance, test.optimizer == OptimizerSection::Name::kMuon ? 2e-3 : 0);
  for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], reference_norms[i], of_norms * reference_norms[i]);
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

std::vector<Case> muon_cases() {
  std::vector<Case> cases;
  for (const ShardPolicy policy : {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kFull})
    for (const int shard_size : {2, 4})
      cases.push_back({shard_size, true, false, 2, at::kFloat, policy, OptimizerSection::Name::kMuon});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Muon, Sharding, testing::ValuesIn(muon_cases()));

TEST(ShardedUnits, RandomWeightsDoNotDependOnTheSharding) {
  std::map<std::string, at::Tensor> first;
  for (const int shard_size : {1, 2, 4}) {
    if (comm().size() % shard_size != 0) continue;
    ShardedUnits units(make_units(false, true), comm(), test_grid(shard_size), at::kCPU, {});
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
  ShardedUnits units(make_units(false, false), comm(), test_grid(comm().size()), at::kCPU, {});
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
  ShardedUnits units(make_units(false, false), comm(), test_grid(comm().size()), at::kCPU, {at::kFloat, resident});
  units.initialise(5, false);
  for (int u = 0; u < kBlocks; ++u) EXPECT_NE(units.parameters(u)[0].storage().data(), nullptr) << u;
}

TEST(ShardedUnits, AMissingGradientIsAnErrorNotASilentZero) {
  ShardedUnits units(make_units(true, false), comm(), test_grid(), at::kCPU, {});
  units.initialise(1, false);
  units.begin_micro_batch(true);
  EXPECT_THROW(units.finish_backward(), InternalError);
}

/// Tensors in memory: element i of a tensor is a number of its name and i. Throws when `failing` is read.
class MemoryWeights final : public WeightSource {
 public:
  explicit MemoryWeights(const std::vector<UnitSpec>& units, std::string failing = "") : failing_(std::move(failing)) {
    for (const UnitSpec& unit : units)
      for (const ParameterSpec& parameter : unit.parameters)
        for (const ParameterPart& part : parameter.parts) {
          std::vector<int64_t> shape = parameter.shape;
          shape[0] = part.rows;
          at::Tensor value = at::arange(c10::multiply_integers(shape), at::kFloat).mul_(0.001F);
          tensors_[part.name] = value.add_(static_cast<float>(tensors_.size())).reshape(shape);
        }
  }
  std::vector<std::string> names() const override { return {}; }
  std::optional<TensorInfo> find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return std::nullopt;
    return TensorInfo{DType::kF32, found->second.sizes().vec()};
  }
  std::vector<ElementSpan> read(const std::string& name, int64_t begin, int64_t end) const override {
    if (name == failing_) throw ModelError(name + " is damaged");
    const auto* data = reinterpret_cast<const std::byte*>(tensors_.at(name).const_data_ptr<float>() + begin);
    elements_read_ += end - begin;
    return {{data, end - begin}};
  }
  std::string place(const std::string&) const override { return "memory"; }
  std::string description() const override { return "memory"; }
  void set(const std::string& name, int64_t element, float value) { tensors_.at(name).view(-1)[element] = value; }
  /// By all ranks since it was asked for last. Collective.
  double take_elements_read() const {
    return comm().all_reduce_host({static_cast<double>(std::exchange(elements_read_, 0))})[0];
  }

 private:
  mutable int64_t elements_read_ = 0;
  std::string failing_;
  std::map<std::string, at::Tensor> tensors_;
};

ShardingOptions reading(ShardPolicy policy, bool per_host) {
  ShardingOptions options;
  options.policy = policy;
  options.read_per_host = per_host;
  return options;
}

/// One host, and two with half of the ranks each.
std::vector<std::vector<int>> hosts_of(int ranks) {
  if (ranks == 1) return {{1}};
  return {{ranks}, {ranks / 2, ranks / 2}};
}

TEST(Load, PerHostReadsEachElementOncePerHostAndGivesTheSameBits) {
  for (const bool trained : {true, false})
    for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2)
      for (const ShardPolicy policy : {ShardPolicy::kOptimizer, ShardPolicy::kGradients, ShardPolicy::kFull})
        for (const std::vector<int>& hosts : hosts_of(comm().size())) {
          SCOPED_TRACE(fmt::format("trained {}, shard size {}, policy {}, {} hosts", trained, shard_size,
                                   static_cast<int>(policy), hosts.size()));
          const auto specs = make_units(trained, false);
          const MemoryWeights source(specs);
          ShardedUnits each(specs, comm(), test_grid(shard_size), at::kCPU, reading(policy, false));
          ShardedUnits once(specs, comm(), test_grid(shard_size, hosts), at::kCPU, reading(policy, true));
          each.load(source, 2);
          const double by_each = source.take_elements_read();
          once.load(source, 2);
          const double at_once = source.take_elements_read();
          int64_t total = 0;
          for (int u = 0; u < kBlocks; ++u) {
            for (ShardedUnits* units : {&each, &once}) units->pre_forward(u);
            for (size_t p = 0; p < each.parameters(u).size(); ++p) {
              EXPECT_TRUE(at::equal(each.parameters(u)[p], once.parameters(u)[p]));
              total += each.parameters(u)[p].numel();
            }
            for (ShardedUnits* units : {&each, &once}) units->post_forward(u);
          }
          for (ShardedUnits* units : {&each, &once}) units->release();
          for (size_t t = 0; t < each.trained().size(); ++t)
            EXPECT_TRUE(at::equal(each.trained()[t].master, once.trained()[t].master));
          // A host that holds several shard groups, or whole copies, reads once; hosts that share a group read a part
          // each. Elements that do not divide by the readers are read by each: fewer than the readers in each shard.
          const int hosts_per_group = std::max(1, shard_size / hosts[0]);
          const auto copies = static_cast<double>(hosts.size()) / hosts_per_group;
          EXPECT_GE(at_once, static_cast<double>(total) * copies);
          EXPECT_LT(at_once, static_cast<double>(total) * copies + kBlocks * comm().size() * comm().size());
          EXPECT_EQ(by_each, static_cast<double>(total) * comm().size() / shard_size);
        }
}

TEST(Load, ARankThatCannotReadEndsAfterTheCollectivesOfTheOthers) {
  const auto specs = make_units(true, false);
  const bool last = comm().rank() == comm().size() - 1;
  const MemoryWeights source(specs, last ? "block.1.bias" : "");
  for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2) {
    // Parts of a block's bias may be read by other ranks only: one of a unit's several tensors is read by all.
    ShardedUnits units(specs, comm(), test_grid(shard_size), at::kCPU, reading(ShardPolicy::kOptimizer, true));
    const std::string problem = message_of<ModelError>([&] { units.load(source, 2); });
    EXPECT_EQ(problem, last ? "block.1.bias is damaged" : "");
    EXPECT_EQ(comm().all_reduce_host({1.0})[0], comm().size()) << "no rank is left in a collective of load()";
  }
}

/// Trained, frozen, and frozen in FP8, whichever rank holds the element.
TEST(Load, AWeightThatIsNotFiniteIsNamedByTheRankThatReadsIt) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [trained, frozen, dtype] : {std::tuple(true, Recipe::kCompute, at::kFloat),
                                               {false, Recipe::kCompute, at::kHalf},
                                               {false, Recipe::kFp8Frozen, at::kFloat}})
    for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2)
      for (const int64_t element : {int64_t{0}, kWidth * kWidth / 2, kWidth * kWidth - 1})
        for (const float value : {kNan, kInfinity, -kInfinity, 1e5F}) {
          SCOPED_TRACE(fmt::format("trained {}, shard size {}, element {}, {}", trained, shard_size, element, value));
          const auto specs = make_units(trained, false);
          MemoryWeights source(specs);
          source.set("block.2.gate", element, value);
          ShardingOptions options = reading(ShardPolicy::kFull, false);
          options.frozen = frozen;
          options.compute_dtype = dtype;
          ShardedUnits units(specs, comm(), test_grid(shard_size), at::kCPU, options);
          const std::string problem = message_of<ModelError>([&] { units.load(source, 2); });
          if (!problem.empty()) {
            EXPECT_EQ(problem.find("block.2.gate in memory holds a NaN, an infinity or a number too large for "), 0)
                << problem;
          }
          const bool fits = value == 1e5F && dtype == at::kFloat;
          EXPECT_EQ(comm().all_reduce_host({problem.empty() ? 0.0 : 1.0})[0] > 0, !fits);
        }
}

/// Two hosts with two ranks each.
TEST(Network, BytesOfAStepAreThoseOfThePlan) {
  if (comm().size() != 4) return;
  constexpr int kPasses = 2;
  const auto specs = make_units(true, false);
  for (const int shard_size : {1, 2, 4})
    for (const ShardPolicy policy :
         {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients, ShardPolicy::kFull}) {
      if ((shard_size == 1) != (policy == ShardPolicy::kNone)) continue;
      int64_t bytes = 0;
      NetworkCounter counter(comm(), {0, 0, 1, 1}, bytes);
      std::vector<int64_t> after_steps;
      (void)train(counter, {shard_size, true, false, kPasses, at::kFloat, policy}, 3, nullptr,
                  [&] { after_steps.push_back(bytes); });

      PlanInput input;
      input.units = &specs;
      input.world_size = 4;
      input.ranks_per_host = 2;
      input.compute_bytes = 4;
      input.num_blocks = kBlocks;
      input.micro_batches = kPasses;
      input.shard_size = shard_size;
      input.policy = policy;
      input.recompute = Recompute::kNone;
      const TrainingPlan plan = find_plan(input).value();
      int64_t whole = 0, shard = 0;
      for (const UnitSpec& unit : specs) {
        const UnitLayout layout = make_layout(unit, plan.state_shards());
        whole += layout.numel * 4;
        shard += layout.shard_numel * 4;
      }
      int64_t expected = 0, most = 0;
      if (shard_size == 4) {  // the group reaches over both hosts
        expected = plan.reduced_per_step;
        if (policy != ShardPolicy::kFull) expected += whole - shard;
        // Gathers of forward; those of backward are fewer by the units that a slot still holds.
        if (policy == ShardPolicy::kFull) most = 2 * kPasses * plan.gathered_per_pass;
      } else {
        const int replicas = 4 / plan.state_shards();
        expected = 2 * (replicas - 1) * shard / replicas;
      }
      const int64_t measured = after_steps[2] - after_steps[1];
      if (comm().rank() == 0)
        fmt::print("shard size {}, policy {}: a rank receives {:.3f} bytes per parameter from the network\n",
                   shard_size, static_cast<int>(policy),
                   static_cast<double>(measured) / static_cast<double>(whole / 4));
      EXPECT_GE(measured, expected + (most > 0 ? plan.gathered_per_pass : 0)) << shard_size;
      EXPECT_LE(measured, expected + most) << shard_size;
    }
}

}  // namespace
}  // namespace trireme
