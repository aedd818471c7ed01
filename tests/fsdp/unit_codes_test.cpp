// Trained weights stored as codes, on 1, 2 and 4 ranks: codes, scales and vectors against those of the master weights,
// under every policy; forward and backward against a store that quantizes in every pass.
#include "mpi_test_main.h"
#include "trireme/base/error.h"
#include "trireme/config/keys.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/init.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/matmul/fp8.h"
#include "trireme/ops/matmul/nf4.h"
#include "trireme/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr int64_t kWidth = 48;
constexpr int kBlocks = 3;

Communicator& comm() { return test_world().communicator(); }

/// An embedding, which is never in FP8, and blocks with a matrix of two checkpoint tensors, a vector and a matrix.
std::vector<UnitSpec> make_units() {
  std::vector<UnitSpec> units(1);
  units[0].name = "embed";
  units[0].trained = true;
  units[0].parameters.push_back({"table", {20, kWidth}, {{"table", 20}}, Init::kNormal, 0.5, true});
  for (int i = 0; i < kBlocks; ++i) {
    UnitSpec unit;
    unit.name = "block." + std::to_string(i);
    unit.trained = true;
    const std::string prefix = unit.name + ".";
    // Deviations differ, so that a scale of the wrong matrix shows.
    unit.parameters.push_back({"fused",
                               {3 * kWidth, kWidth},
                               {{prefix + "up", kWidth}, {prefix + "gate", 2 * kWidth}},
                               Init::kNormal,
                               0.1 * (i + 1),
                               true,
                               /*linear=*/true});
    unit.parameters.push_back({"bias", {kWidth}, {{prefix + "bias", kWidth}}, Init::kNormal, 3, false});
    unit.parameters.push_back(
        {"out", {kWidth, 2 * kWidth}, {{prefix + "out", kWidth}}, Init::kNormal, 0.07, true, /*linear=*/true});
    units.push_back(unit);
  }
  return units;
}

at::Tensor forward(UnitStore& store, at::Tensor x) {
  x = enter_unit(x, store, 0);
  x = leave_unit(x + store.parameters(0)[0].sum(0), store, 0);
  for (int i = 1; i <= kBlocks; ++i) {
    x = enter_unit(x, store, i);
    const auto& w = store.parameters(i);
    const auto weight = [&](int p) { return Weight{w[static_cast<size_t>(p)], store.weight_states(i).at(p)}; };
    const at::Tensor fused = norm_linear(x, {}, {weight(0), {}, {}})[0];
    const at::Tensor y = norm_linear(fused.narrow(-1, 0, 2 * kWidth).contiguous(), {}, {weight(2), w[1], {}})[0];
    x = leave_unit(y * fused.narrow(-1, 2 * kWidth, kWidth).tanh(), store, i);
  }
  return x.to(at::kFloat).square().mean();
}

at::Tensor batch_of(int64_t step, at::Device device, at::ScalarType dtype) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(100 + static_cast<uint64_t>(step));
  return at::empty({16, kWidth}).normal_(0.0, 1.0, generator).to(device, dtype).requires_grad_(true);
}

/// The unit's whole master weights on every rank.
at::Tensor whole_master(ShardedUnits& units, int unit, Communicator& shard_group, const UnitLayout& layout) {
  const at::Tensor& shard = units.trained().at(static_cast<size_t>(unit)).master;
  if (shard.numel() == layout.numel) return shard;
  at::Tensor whole = at::empty({layout.numel}, shard.options());
  shard_group.all_gather(whole, shard)->wait();
  return whole;
}

void expect_codes_of_masters(ShardedUnits& units, int shard_size, bool divided, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto group = comm().split(comm().rank() / shard_size);
  for (int u = 1; u <= kBlocks; ++u) {
    const UnitSpec& spec = units.units()[static_cast<size_t>(u)];
    SCOPED_TRACE(spec.name);
    const UnitLayout layout = make_layout(spec, divided ? shard_size : 1);
    const at::Tensor master = whole_master(units, u, *group, layout);
    EXPECT_FALSE(units.trained().at(static_cast<size_t>(u)).compute.defined());
    units.pre_forward(u);
    for (size_t p = 0; p < spec.parameters.size(); ++p) {
      const at::Tensor& got = units.parameters(u)[p];
      const at::Tensor wanted = master.narrow(0, layout.offsets[p], got.numel()).view(got.sizes()).to(at::kFloat);
      if (!spec.parameters[p].linear) {
        EXPECT_EQ(got.scalar_type(), dtype);
        EXPECT_TRUE(at::equal(got, wanted.to(dtype))) << spec.parameters[p].name;
        continue;
      }
      ASSERT_EQ(got.scalar_type(), at::kFloat8_e4m3fn);
      const at::Tensor inverse = wanted.abs().amax() / 448.0;
      EXPECT_TRUE(at::equal(units.weight_states(u)[p].inverse_scale, inverse)) << spec.parameters[p].name;
      const at::Tensor codes = wanted.mul(inverse.reciprocal()).clamp(-448, 448).to(at::kFloat8_e4m3fn);
      EXPECT_TRUE(at::equal(got.view(at::kByte), codes.view(at::kByte))) << spec.parameters[p].name;
    }
    units.post_forward(u);
  }
  units.release();
}

struct Case {
  int shard_size;
  ShardPolicy policy;
  Recipe recipe;
  std::string optimizer;
  at::ScalarType dtype, masters = at::kFloat;
};

class UnitCodes : public ::testing::TestWithParam<Case> {
 protected:
  /// Trains three steps, of which the second is skipped, and calls `check` before the first and after each.
  static void train(at::Device device, const std::function<void(ShardedUnits&, bool divided)>& check) {
    const Case& test = GetParam();
    ShardedUnits units(make_units(), comm(), test_grid(test.shard_size), device,
                       {.compute_dtype = test.dtype,
                        .trained = test.recipe,
                        .reduce_dtype = at::kFloat,
                        .master_dtype = test.masters,
                        .policy = test.policy});
    const bool divided = test.shard_size > 1 && test.policy != ShardPolicy::kNone;
    units.initialise(5, false);
    check(units, divided);
    OptimizerSection options;
    options.name = choice_of<OptimizerSection::Name>(test.optimizer).value();
    options.lr = 0.05;
    const auto optimizer = make_optimizer(options, units.trained(), comm());
    for (int step = 0; step < 3; ++step) {
      units.begin_step();
      units.begin_micro_batch(true);
      forward(units, batch_of(step, device, test.dtype)).backward();
      units.finish_backward();
      const auto scalar = [&](double value) {
        return at::full({}, value, at::TensorOptions(device).dtype(at::kFloat));
      };
      optimizer->step(options.lr, scalar(1), scalar(step == 1 ? 1 : 0));
      units.clear_gradients();
      units.weights_changed();
      check(units, divided);
    }
  }
};

TEST_P(UnitCodes, AreThoseOfTheMasterWeights) {
  const Case& test = GetParam();
  if (comm().size() % test.shard_size != 0) GTEST_SKIP() << "needs more ranks";
  std::vector<at::Device> devices{at::kCPU};
  if (comm().size() == 1 && at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0 && test.dtype != at::kFloat)
    devices.emplace_back(at::kCUDA, 0);
  for (const at::Device device : devices)
    train(device, [&](ShardedUnits& units, bool divided) {
      expect_codes_of_masters(units, test.shard_size, divided, test.dtype);
    });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int shard_size : {1, 2, 4})
    for (const ShardPolicy policy :
         {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients, ShardPolicy::kFull})
      for (const Recipe recipe : {Recipe::kFp8Tensorwise, Recipe::kFp8Rowwise})
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
          if (shard_size == 1 && policy != ShardPolicy::kNone) continue;
          all.push_back({shard_size, policy, recipe, "adamw", dtype});
          if (dtype == at::kBFloat16) all.push_back({shard_size, policy, recipe, "adamw", dtype, at::kBFloat16});
          if (recipe == Recipe::kFp8Rowwise) all.push_back({shard_size, policy, recipe, "lamb", dtype});
        }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, UnitCodes, ::testing::ValuesIn(cases()), [](const auto& of) {
  const Case& c = of.param;
  return fmt::format("{}_{}_{}_{}_{}{}", policy_name(c.policy), c.shard_size,
                     c.recipe == Recipe::kFp8Rowwise ? "rowwise" : "tensorwise", c.optimizer, c10::toString(c.dtype),
                     c.masters == at::kFloat ? "" : "_masters");
});

/// A rank whose values are all smaller than the others' must use their scale.
TEST(UnitCodesStore, ForwardAndBackwardEqualThoseThatQuantizeInEachPass) {
  for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2)
    for (const Recipe recipe : {Recipe::kFp8Tensorwise, Recipe::kFp8Rowwise}) {
      SCOPED_TRACE(fmt::format("shard size {}, recipe {}", shard_size, static_cast<int>(recipe)));
      ShardedUnits units(make_units(), comm(), test_grid(shard_size), at::kCPU, {.trained = recipe});
      units.initialise(5, false);
      const auto group = comm().split(comm().rank() / shard_size);
      std::vector<std::vector<at::Tensor>> tensors;
      for (size_t u = 0; u < units.units().size(); ++u) {
        const UnitSpec& spec = units.units()[u];
        const UnitLayout layout = make_layout(spec, shard_size);
        const at::Tensor master = whole_master(units, static_cast<int>(u), *group, layout);
        tensors.emplace_back();
        for (size_t p = 0; p < spec.parameters.size(); ++p)
          tensors.back().push_back(master.narrow(0, layout.offsets[p], spec.parameters[p].numel())
                                       .view(spec.parameters[p].shape)
                                       .clone()
                                       .requires_grad_(true));
      }
      WholeUnitStore whole(tensors);
      for (int u = 1; u <= kBlocks; ++u)
        for (const int p : {0, 2}) whole.set_state(u, p, {.recipe = recipe});
      const at::Tensor x = batch_of(0, at::kCPU, at::kFloat), same = batch_of(0, at::kCPU, at::kFloat);
      units.begin_micro_batch(true);
      const at::Tensor loss = forward(units, x), expected = forward(whole, same);
      EXPECT_TRUE(at::equal(loss, expected));
      loss.backward();
      expected.backward();
      units.finish_backward();
      EXPECT_TRUE(at::equal(x.grad(), same.grad()));
      for (size_t u = 0; u < units.units().size(); ++u) {
        const UnitSpec& spec = units.units()[u];
        const UnitLayout layout = make_layout(spec, shard_size);
        at::Tensor gradient = units.trained()[u].gradient;
        if (gradient.numel() < layout.numel) {
          const at::Tensor shard = gradient;
          gradient = at::empty({layout.numel}, shard.options());
          group->all_gather(gradient, shard)->wait();
        }
        // Every rank has the same batch, so that the sum over the ranks is a multiple, exact for powers of two.
        for (size_t p = 0; p < spec.parameters.size(); ++p)
          EXPECT_TRUE(at::equal(gradient.narrow(0, layout.offsets[p], spec.parameters[p].numel()),
                                tensors[u][p].grad().reshape(-1) * comm().size()))
              << spec.name << '.' << spec.parameters[p].name;
      }
    }
}

/// Whether dgrad reads transposed codes of the blocks 1 and 3 that the store keeps; all of them are valid or none is.
void expect_kept(ShardedUnits& units, bool keeps, bool valid) {
  for (int u = 0; u <= kBlocks; ++u)
    for (const WeightState& state : units.weight_states(u)) {
      EXPECT_EQ(state.transposed != nullptr, keeps && u % 2 == 1 && state.recipe != Recipe::kCompute);
      if (state.transposed) {
        EXPECT_EQ(state.transposed->valid, valid) << "unit " << u;
      }
    }
}

const std::vector<bool> kKeptUnits = {false, true, false, true};

/// The gradients of some micro-batches, one after the other.
using Recorded = std::vector<at::Tensor>;
void record_passes(ShardedUnits& units, int first, int count, at::ScalarType dtype, at::Device device, Recorded& all) {
  for (int i = 0; i < count; ++i) {
    units.begin_micro_batch(i + 1 == count);
    const at::Tensor x = batch_of(first + i, device, dtype);
    forward(units, x).backward();
    all.push_back(x.grad().clone());
  }
  units.finish_backward();
  for (const TrainedShard& shard : units.trained()) all.push_back(shard.gradient.clone());
  units.clear_gradients();
}

std::vector<at::Device> kept_devices() {
  std::vector<at::Device> devices{at::kCPU};
  if (comm().size() == 1 && at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0)
    devices.emplace_back(at::kCUDA, 0);
  return devices;
}

void expect_equal(const Recorded& with, const Recorded& without) {
  ASSERT_EQ(with.size(), without.size());
  for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(at::equal(with[i], without[i])) << "value " << i;
}

/// Steps, a skipped step, an evaluation, gradients that are computed again, a tensor that is assigned, masters of a
/// checkpoint and other initial weights: codes that stay transposed over any of them would give other gradients.
TEST(TransposedCodesStore, AreThoseOfTheWeightsNow) {
  for (const at::Device device : kept_devices())
    for (const int shard_size : std::set{1, comm().size()})
      for (const ShardPolicy policy : {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients})
        for (const Recipe recipe : {Recipe::kFp8Tensorwise, Recipe::kFp8Rowwise})
          for (const bool on_host : {false, true}) {
            if (shard_size == 1 ? policy != ShardPolicy::kNone : on_host || recipe == Recipe::kFp8Tensorwise) continue;
            SCOPED_TRACE(fmt::format("{}, {} of {}, recipe {}, state on the host: {}", device.str(),
                                     policy_name(policy), shard_size, static_cast<int>(recipe), on_host));
            const at::ScalarType dtype = device.is_cuda() ? at::kBFloat16 : at::kFloat;
            const auto train = [&](bool keeps) {
              HostState host({.device = device, .piece_elements = 1 << 10, .copies_on_cpu = true});
              ShardedUnits units(make_units(), comm(), test_grid(shard_size), device,
                                 {.compute_dtype = dtype,
                                  .trained = recipe,
                                  .policy = policy,
                                  .host_units = on_host ? 3 : 0,
                                  .host = &host,
                                  .keeps_transposed = keeps ? kKeptUnits : std::vector<bool>{}});
              OptimizerSection options;
              options.lr = 0.05;
              const auto optimizer = make_optimizer(options, units.trained(), comm());
              const auto scalar = [&](double value) {
                return at::full({}, value, at::TensorOptions(device).dtype(at::kFloat));
              };
              Recorded all;
              const auto changed = [&] {
                units.weights_changed();
                expect_kept(units, keeps, false);
              };
              const auto passes = [&](int first) {
                record_passes(units, first, 2, dtype, device, all);
                expect_kept(units, keeps, true);
              };
              units.initialise(5, false);
              if (on_host) host.settle();
              std::vector<at::Tensor> saved;
              for (const TrainedShard& shard : units.trained()) saved.push_back(shard.master.clone());
              for (int step = 0; step < 3; ++step) {
                units.begin_micro_batch(true);
                const at::Tensor x = batch_of(step, device, dtype);
                forward(units, x).backward();
                units.finish_backward();
                all.push_back(x.grad().clone());
                optimizer->step(options.lr, scalar(1), scalar(step == 1 ? 1 : 0));
                units.clear_gradients();
                changed();
                passes(10 * step);
              }
              {
                const at::NoGradGuard no_grad;
                const ShardedUnits::Evaluation evaluating(units);
                all.push_back(forward(units, batch_of(50, device, dtype)).clone());
                units.release();
              }
              passes(60);
              EXPECT_TRUE(units.assign("block.0.gate", at::full({2 * kWidth, kWidth}, 0.3)));
              changed();
              passes(70);
              {
                const at::NoGradGuard no_grad;
                if (on_host) host.settle();
                for (size_t u = 0; u < saved.size(); ++u) {
                  units.trained()[u].master.copy_(saved[u]);
                  units.trained()[u].update_compute();
                }
              }
              changed();
              passes(80);
              units.initialise(6, false);
              passes(90);
              return all;
            };
            expect_equal(train(true), train(false));
          }
}

TEST(TransposedCodesStore, OfFrozenMatricesStayUntilTheyAreFilledAgain) {
  std::vector<UnitSpec> specs = make_units();
  for (UnitSpec& unit : specs) unit.trained = false;
  for (const at::Device device : kept_devices())
    for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2) {
      const at::ScalarType dtype = device.is_cuda() ? at::kBFloat16 : at::kFloat;
      const auto train = [&](bool keeps) {
        ShardedUnits units(specs, comm(), test_grid(shard_size), device,
                           {.compute_dtype = dtype,
                            .resident = kKeptUnits,
                            .frozen = Recipe::kFp8Frozen,
                            .keeps_transposed = keeps ? kKeptUnits : std::vector<bool>{}});
        Recorded all;
        for (const int seed : {5, 6}) {
          units.initialise(static_cast<uint64_t>(seed), false);
          for (int step = 0; step < 2; ++step) {
            expect_kept(units, keeps, step > 0);
            record_passes(units, step, 2, dtype, device, all);
            units.weights_changed();  // of adapters
          }
        }
        return all;
      };
      expect_equal(train(true), train(false));
    }
}

TEST(TransposedCodesStore, OnlyOfWholeCodes) {
  const auto make = [](std::vector<bool> keeps, Recipe recipe, int shard_size) {
    (void)ShardedUnits(make_units(), comm(), test_grid(shard_size), at::kCPU,
                       {.trained = recipe, .keeps_transposed = std::move(keeps)});
  };
  EXPECT_THROW(make({true}, Recipe::kFp8Rowwise, 1), InternalError) << "an embedding";
  EXPECT_THROW(make(kKeptUnits, Recipe::kFp8Delayed, 1), InternalError) << "no codes of the store";
  if (comm().size() > 1) {
    EXPECT_THROW(make(kKeptUnits, Recipe::kFp8Rowwise, 2), InternalError) << "gathered for each use";
  }
}

TEST(UnitCodesStore, DelayedScalingKeepsItsComputeCopy) {
  ShardedUnits units(make_units(), comm(), test_grid(), at::kCPU,
                     {.compute_dtype = at::kBFloat16, .trained = Recipe::kFp8Delayed});
  for (const TrainedShard& shard : units.trained()) EXPECT_TRUE(shard.compute.defined()) << shard.name;
}

TEST(UnitCodesStore, BlocksInTheComputeDtypeKeepTheirCopies) {
  ShardedUnits units(
      make_units(), comm(), test_grid(), at::kCPU,
      {.compute_dtype = at::kBFloat16, .trained = Recipe::kFp8Rowwise, .compute_first = 1, .compute_last = 1});
  units.initialise(5, false);
  std::vector<bool> copies;
  for (const TrainedShard& shard : units.trained()) copies.push_back(shard.compute.defined());
  EXPECT_EQ(copies, (std::vector<bool>{true, true, false, true}));
}

/// The values that a checkpoint tensor's NF4 stands for.
at::Tensor through_nf4(const at::Tensor& values) {
  const auto bytes = values.options().dtype(at::kByte), fp32 = values.options().dtype(at::kFloat);
  const int64_t count = values.numel();
  const at::Tensor codes = at::empty({nf4_code_bytes(count)}, bytes);
  const Nf4Scales scales{at::empty({nf4_blocks(count)}, bytes), at::empty({nf4_nested_blocks(count)}, fp32),
                         at::empty({}, fp32)};
  nf4_quantize_scales_(scales, nf4_quantize_(codes, values));
  at::Tensor back = at::empty_like(values);
  nf4_dequantize_(back, codes, scales);
  return back;
}

TEST(FrozenNf4, ForwardAndBackwardReadWhatEachTensorsCodesStandFor) {
  std::vector<UnitSpec> specs = make_units();
  for (UnitSpec& unit : specs) unit.trained = false;
  for (int shard_size = 1; shard_size <= comm().size(); shard_size *= 2)
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool resident : {false, true}) {
        SCOPED_TRACE(fmt::format("shard size {}, {}, resident {}", shard_size, c10::toString(dtype), resident));
        ShardingOptions options{.compute_dtype = dtype, .frozen_nf4 = true};
        if (resident) options.resident.assign(specs.size(), true);
        ShardedUnits units(specs, comm(), test_grid(shard_size), at::kCPU, options);
        units.initialise(5, false);
        std::vector<std::vector<at::Tensor>> tensors;
        for (const UnitSpec& spec : specs) {
          tensors.emplace_back();
          for (const ParameterSpec& parameter : spec.parameters) {
            std::vector<at::Tensor> parts;
            for (const ParameterPart& part : parameter.parts) {
              const int64_t count = part.rows * (parameter.numel() / parameter.shape[0]);
              parts.push_back(at::empty({count}, at::TensorOptions(dtype)));
              draw_initial_values(parameter, part, 5, 0, parts.back());
              if (parameter.linear) parts.back() = through_nf4(parts.back());
            }
            tensors.back().push_back(at::cat(parts).view(parameter.shape));
          }
        }
        WholeUnitStore whole(tensors);
        for (int pass = 0; pass < 3; ++pass) {
          const at::Tensor x = batch_of(pass, at::kCPU, dtype), same = batch_of(pass, at::kCPU, dtype);
          const at::Tensor loss = forward(units, x), expected = forward(whole, same);
          EXPECT_TRUE(at::equal(loss, expected)) << loss << " and " << expected;
          if (pass == 1) {  // an evaluation
            units.release();
            continue;
          }
          loss.backward();
          expected.backward();
          units.finish_backward();
          EXPECT_TRUE(at::equal(x.grad(), same.grad()));
        }
      }
    }
}

TEST(FrozenNf4, OneUnitAtATime) {
  std::vector<UnitSpec> specs = make_units();
  for (UnitSpec& unit : specs) unit.trained = false;
  ShardedUnits units(specs, comm(), test_grid(), at::kCPU, {.frozen_nf4 = true});
  units.initialise(5, false);
  units.pre_forward(1);
  EXPECT_THROW(units.pre_forward(2), InternalError);
}

/// Values of flat codes: halfway cases, values beyond the scale, subnormal codes, NaN.
TEST(UnitCodesStore, CodesAreRoundedToNearestAndSaturate) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor values = at::tensor({1.0f, 1.0625f, 1.1875f, -500.0f, 900.0f, 0.0009765625f, 0.0f, nan});
  std::vector<at::Device> devices{at::kCPU};
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) devices.emplace_back(at::kCUDA, 0);
  for (const at::Device device : devices) {
    const at::Tensor codes = at::empty({8}, at::TensorOptions(device).dtype(at::kFloat8_e4m3fn));
    fp8_codes_(codes, values.to(device), at::ones({}, at::TensorOptions(device).dtype(at::kFloat)));
    const at::Tensor got = codes.to(at::kCPU).to(at::kFloat);
    EXPECT_TRUE(at::equal(got.narrow(0, 0, 7), at::tensor({1.0f, 1.0f, 1.25f, -448.0f, 448.0f, 0.0f, 0.0f}))) << got;
    EXPECT_TRUE(got[7].isnan().item<bool>());
    EXPECT_EQ(fp8_amax(values.narrow(0, 3, 4).to(device)).item<float>(), 900.0f);
    EXPECT_TRUE(fp8_amax(values.to(device)).isnan().item<bool>());
  }
}

}  // namespace
}  // namespace trireme
