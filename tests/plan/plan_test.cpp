#include "plan_testing.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

TEST(Plan, KeepsEverythingWholeWhereItFits) {
  const auto units = frozen_model();
  const TrainingPlan plan = best_plan(input_for(units, 4, 4096 * kMiB));
  EXPECT_EQ(plan.shard_size, 1);
  EXPECT_EQ(recomputed(plan), 0);
  EXPECT_EQ(plan.gathered_per_pass, 0);
}

TEST(Plan, MatricesInNf4TakeHalfAByteAndOneUnitsMemory) {
  auto units = frozen_model();
  PlanInput input = input_for(units, 1, 0);
  const int64_t adapters = best_plan(input).weights - kBlocks * 128 * kMiB;
  for (UnitSpec& unit : units)
    if (!unit.trained) unit.parameters[0].linear = true;
  input.frozen_nf4 = true;
  const TrainingPlan whole = best_plan(input);
  // Codes, a byte for 64 elements, 4 for 64 x 256; 64 Mi elements a block.
  constexpr int64_t kScales = kMiB + kMiB / 64;
  EXPECT_EQ(whole.weights, kBlocks * (32 * kMiB + kScales) + adapters);
  EXPECT_EQ(whole.gather_slots, 128 * kMiB);
  // Without kernels: of 16 Mi elements at a time bytes of codes (2 bytes an element), codes and values.
  const int64_t working = whole.working;
  input.kernels = KernelClass::kNone;
  EXPECT_EQ(best_plan(input).working, std::max(working, 160 * kMiB));
  EXPECT_LT(working, 160 * kMiB);
  input.kernels = KernelClass::kHopper;
  input.world_size = 4;
  input.shard_size = 4;
  const TrainingPlan sharded = best_plan(input);
  EXPECT_EQ(sharded.weights, kBlocks * (8 * kMiB + kScales) + adapters) << "scales are whole";
  EXPECT_EQ(sharded.gather_slots, 128 * kMiB + 3 * (32 * kMiB + kScales));
  EXPECT_EQ(sharded.gathered_per_pass, kBlocks * 24 * kMiB);
}

TEST(Plan, TheHeadHoldsLogitsOfAllRowsOrOfAsManyAsFit) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 4, 4096 * kMiB);
  input.rows = 4;
  input.row.head.row = 60 * kMiB;
  input.row.head.fixed = 7 * kMiB;
  const auto working = [&](int64_t logits, int64_t most) {
    input.row.head.logits = logits;
    input.row.head.logits_most = most;
    const TrainingPlan plan = best_plan(input);
    EXPECT_EQ(plan.rows_per_pass, 4);
    return plan.working;
  };
  EXPECT_EQ(working(0, 0), (4 * 60 + 7) * kMiB);
  EXPECT_EQ(working(10 * kMiB, 100 * kMiB), (4 * 60 + 7 + 40) * kMiB);
  EXPECT_EQ(working(30 * kMiB, 100 * kMiB), (4 * 60 + 7 + 100) * kMiB);
}

TEST(Plan, WorkingMemoryIsThatOfTheBlockOrOfTheHead) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 4, 4096 * kMiB);
  input.row.head.row = 10 * kMiB;
  input.row.head.fixed = 39 * kMiB;
  input.row.working_fixed = 7 * kMiB;
  EXPECT_EQ(best_plan(input).working, 57 * kMiB) << "the block's peak";
  input.row.head.fixed = 300 * kMiB;
  EXPECT_EQ(best_plan(input).working, 317 * kMiB) << "the head's";
}

TEST(Plan, CodesOfForwardAreKeptByBlocksThatAreNotComputedAgain) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 1, 8192 * kMiB);
  input.row.kept_codes = 30 * kMiB;
  EXPECT_EQ(best_plan(input).working, (50 + kBlocks * 30) * kMiB);
  input.recompute = Recompute::kFull;
  EXPECT_EQ(best_plan(input).working, (50 + 30) * kMiB) << "the block that is computed again";
  input.recompute.reset();
  input.device_memory = best_plan(input).total() - 100 * kMiB;
  const TrainingPlan some = best_plan(input);
  ASSERT_GT(recomputed(some), 0);
  ASSERT_LT(recomputed(some), kBlocks);
  EXPECT_EQ(some.working, (50 + (kBlocks - recomputed(some) + 1) * 30) * kMiB);
}

TEST(Plan, GradientsTakeThePlaceOfWhatBackwardHasFreed) {
  const auto units = trained_model();
  const auto of_block = [](const RowMemory& row, Recompute what) {
    return what == Recompute::kFull        ? row.saved_input
           : what == Recompute::kAttention ? row.saved_attention
           : what == Recompute::kMlp       ? row.saved_mlp
           : what == Recompute::kNorms     ? row.saved_norms
                                           : row.saved;
  };
  int mixed = 0;
  for (int64_t saved = 200; saved <= 1600; saved += 200)
    for (const bool parts : {false, true})
      for (int64_t memory = 4000; memory <= 24000; memory += 250) {
        PlanInput input = input_for(units, 1, memory * kMiB);
        input.row.saved = saved * kMiB;
        input.row.saved_input = saved / 10 * kMiB;
        if (parts) {
          input.row.saved_norms = saved * 9 / 10 * kMiB;
          input.row.saved_mlp = saved / 2 * kMiB;
          input.row.saved_attention = saved / 5 * kMiB;
        }
        const auto plan = find_plan(input);
        if (!plan) continue;
        mixed += recomputed(*plan) > 0 && recomputed(*plan) < kBlocks ? 1 : 0;
        int64_t alive = 0, peak = 0;
        for (const Recompute what : plan->recompute) alive += of_block(input.row, what);
        const int64_t gradient = plan->gradients / kBlocks;
        for (int i = kBlocks - 1; i >= 0; --i) {
          const Recompute what = plan->recompute[static_cast<size_t>(i)];
          const bool whole = what == Recompute::kFull || what == Recompute::kAttention;
          const int64_t again =
              whole ? (parts ? input.row.saved_norms : input.row.saved) - of_block(input.row, what) : 0;
          peak = std::max(peak, alive + again + gradient * (kBlocks - 1 - i));
          alive -= of_block(input.row, what);
        }
        EXPECT_GE(plan->activations + plan->gradients - plan->reused, peak)
            << saved << " MiB a block, " << memory << " MiB, " << parts;
      }
  EXPECT_GT(mixed, 100) << "of blocks only some of which are computed again";
}

TEST(Plan, ShardsBeforeItRecomputesAndLeavesUnitsResidentWithTheRest) {
  const auto units = frozen_model();
  const TrainingPlan plan = best_plan(input_for(units, 4, 1240 * kMiB));
  EXPECT_GT(plan.shard_size, 1);
  EXPECT_EQ(recomputed(plan), 0);
  EXPECT_TRUE(plan.fits());
  EXPECT_GT(std::count(plan.resident.begin(), plan.resident.end(), true), 0);
}

TEST(Plan, RecomputesOnlyAsManyBlocksAsItMust) {
  const auto units = frozen_model();
  int before = 0;
  for (int64_t memory = 1120; memory >= 800; memory -= 20) {
    const TrainingPlan plan = best_plan(input_for(units, 4, memory * kMiB));
    EXPECT_LE(plan.total(), memory * kMiB);
    EXPECT_GE(recomputed(plan), before);
    before = recomputed(plan);
  }
  EXPECT_GT(before, 0);
}

TEST(Plan, ExplicitSettingsAreObeyed) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 4, 4096 * kMiB);
  input.shard_size = 2;
  input.recompute = Recompute::kFull;
  const TrainingPlan plan = best_plan(input);
  EXPECT_EQ(plan.shard_size, 2);
  EXPECT_EQ(recomputed(plan), kBlocks);
  EXPECT_EQ(std::count(plan.resident.begin(), plan.resident.end(), true), 0);
}

TEST(Plan, LeavesTwoPercentOfTheDeviceFree) {
  const auto units = frozen_model();
  int plans = 0;
  for (const int world : {1, 4, 8})
    for (int64_t memory = 400; memory <= 2400; memory += 13) {
      const auto plan = find_plan(input_for(units, world, memory * kMiB));
      if (!plan) continue;
      ++plans;
      EXPECT_LE(static_cast<double>(plan->total()), 0.98 * static_cast<double>(memory * kMiB))
          << world << " " << memory;
    }
  EXPECT_GT(plans, 100);
}

TEST(Plan, WhatIsTooLargeIsToldWithWhereTheMemoryGoes) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 2, 200 * kMiB);
  input.recompute = Recompute::kNone;
  EXPECT_FALSE(find_plan(input));
  const std::string text = describe_need(least_plan(input));
  for (const char* part :
       {"the run needs ", "4.0 MiB of headroom, 200.0 MiB is available", "weights ", "activations 400.0 MiB"})
    EXPECT_TRUE(contains(text, part));
  EXPECT_FALSE(contains(text, "forward passes are summed"));
}

TEST(Plan, NamesAccumulationWhereItIsTheCause) {
  auto units = frozen_model();
  units.pop_back();
  for (auto& unit : units) unit.trained = true;
  PlanInput input = input_for(units, 8, 2000 * kMiB);
  input.micro_batches = 4;
  EXPECT_EQ(least_plan(input).policy, ShardPolicy::kFull) << "sums of gradients are shards";
  EXPECT_EQ(least_plan(input).accumulated_passes, 1);
  input.policy = ShardPolicy::kOptimizer;
  const TrainingPlan least = least_plan(input);
  EXPECT_EQ(least.accumulated_passes, 4);
  EXPECT_TRUE(
      contains(describe_need(least), "whole on every rank because the gradients of 4 forward passes are summed"));
  input.micro_batches = 1;
  EXPECT_EQ(least_plan(input).accumulated_passes, 1);
  EXPECT_LT(least_plan(input).gradients, least.gradients);
}

TEST(Plan, TheLeastPlanTakesNoMoreThanAnyOther) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 4, 0);
  input.rows = 4;
  input.row.saved_mlp = 20 * kMiB;
  const int64_t least = least_plan(input).total();
  for (int64_t memory = 100; memory < 5000; memory += 50) {
    input.device_memory = memory * kMiB;
    const auto plan = find_plan(input);
    if (plan) {
      EXPECT_GE(plan->total(), least);
    }
    EXPECT_EQ(plan.has_value(), least + input.device_memory / 50 <= input.device_memory);
  }
}

TEST(Plan, FewerRowsAPassRatherThanRecomputation) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 2, 1500 * kMiB);
  input.rows = 8;
  const TrainingPlan plan = best_plan(input);
  EXPECT_EQ(recomputed(plan), 0);
  EXPECT_LT(plan.rows_per_pass, 8);
  EXPECT_EQ(8 % plan.rows_per_pass, 0);
}

TEST(Plan, WeighsGathersAgainstRecomputation) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 4, 1200 * kMiB);
  EXPECT_EQ(best_plan(input).shard_size, 4);
  EXPECT_EQ(recomputed(best_plan(input)), 0);
  input.rates.link_bytes = 1;
  EXPECT_EQ(best_plan(input).shard_size, 1);
  EXPECT_GT(recomputed(best_plan(input)), 0);
}

TEST(Plan, ShardGroupsThatReachOverHostsCostTheNetwork) {
  auto units = frozen_model();
  units.pop_back();  // the reduction of adapters over the hosts costs the network in every division
  PlanInput input = input_for(units, 12, 1200 * kMiB);
  input.times.forward = input.times.backward = 0;  // nothing hides a gather
  input.rates.link_bytes = 1e9;
  input.rates.network_bytes = 1;
  const auto exposed = [&](int ranks_per_host, int shard_size) {
    input.ranks_per_host = ranks_per_host;
    input.shard_size = shard_size;
    return best_plan(input).cost.exposed;
  };
  EXPECT_GT(exposed(0, 4), 0);
  EXPECT_EQ(exposed(4, 4), exposed(0, 4));
  EXPECT_EQ(exposed(12, 4), exposed(0, 4));
  // Groups of 4 consecutive ranks of hosts with 6: the second reaches over two of them.
  EXPECT_GT(exposed(6, 4), 1e6 * exposed(0, 4));
  // By itself the plan takes the larger group that a host holds, not one over the network.
  input.shard_size.reset();
  input.ranks_per_host = 6;
  EXPECT_EQ(6 % best_plan(input).shard_size, 0);
}

TEST(Plan, SeveralRanksWaitForTheSlowest) {
  const auto units = frozen_model();
  const auto step = [&](int world, double waiting) {
    PlanInput input = input_for(units, world, 0);
    input.shard_size = 1;
    input.rates.waiting = waiting;
    return best_plan(input).cost;
  };
  const StepCost alone = step(1, 0.1), several = step(4, 0.1);
  EXPECT_EQ(alone.fixed, 0);
  EXPECT_GT(several.compute, 0);
  EXPECT_DOUBLE_EQ(several.fixed, 0.1 * (several.compute + several.recompute));
  EXPECT_DOUBLE_EQ(several.total() - step(4, 0).total(), several.fixed);
}

/// The exposed communication of trained blocks over `world` ranks, where nothing hides it.
double exposed_over(int world, int ranks_per_host, int shard_size, ShardPolicy policy, double start = 0) {
  auto units = frozen_model();
  units.pop_back();
  for (auto& unit : units) unit.trained = true;
  PlanInput input = input_for(units, world, 0);
  input.ranks_per_host = ranks_per_host;
  input.times.forward = input.times.backward = 0;
  input.rates.link_bytes = 1e11;
  input.rates.network_bytes = 1e9;
  input.rates.ring_network_step = start;
  input.shard_size = shard_size;
  input.policy = policy;
  return best_plan(input).cost.exposed;
}

TEST(Plan, TheAdaptersOfAHostShareTheBytesOfAGroup) {
  // All-reduces of gradients, 2 (n-1)/n of 2 GiB, through one adapter a rank: as many as ranks of a host.
  const double bytes = kBlocks * 4.0 * 8192 * 8192;
  const auto all_reduce = [&](int world, int per_host) {
    return exposed_over(world, per_host, 1, ShardPolicy::kNone) / (2.0 * (1.0 - 1.0 / world) * bytes);
  };
  EXPECT_NEAR(all_reduce(16, 1), 1e-9, 1e-15);
  EXPECT_NEAR(all_reduce(16, 4), 1e-9 / 4, 1e-15);
  EXPECT_NEAR(all_reduce(2000, 1000), 1e-11, 1e-15) << "never faster than the links inside";
  EXPECT_NEAR(all_reduce(16, 16), 1e-11, 1e-15);
  // Sharded in hosts of 4: each rank's quarter goes between the hosts through its own adapter.
  const double inside = exposed_over(4, 4, 4, ShardPolicy::kOptimizer);
  const double both = exposed_over(16, 4, 4, ShardPolicy::kOptimizer);
  EXPECT_NEAR(both - inside, 2.0 * (1.0 - 1.0 / 4) * bytes / 4 * 1e-9, 1e-6);
}

TEST(Plan, CollectivesOverHostsTakeStepsOfARing) {
  const auto latency = [](int world, int shard_size, ShardPolicy policy) {
    return exposed_over(world, 4, shard_size, policy, 1e-3) - exposed_over(world, 4, shard_size, policy);
  };
  EXPECT_EQ(latency(4, 4, ShardPolicy::kFull), 0) << "inside a host";
  // Eight units, over 4 hosts: gathers of forward and backward and a reduction, of 3 steps each; the all-reduce of
  // statistics, of 6.
  EXPECT_NEAR(latency(16, 16, ShardPolicy::kFull), (3 * 8 * 3 + 6) * 1e-3, 1e-9);
  EXPECT_NEAR(latency(16, 16, ShardPolicy::kOptimizer), (2 * 8 * 3 + 6) * 1e-3, 1e-9);
  // All-reduces of units between copies.
  EXPECT_NEAR(latency(16, 4, ShardPolicy::kOptimizer), (8 * 6 + 6) * 1e-3, 1e-9);
}

TEST(Plan, AGroupOverHostsMustBeWorthIt) {
  auto units = frozen_model();
  units.pop_back();
  for (auto& unit : units) unit.trained = true;
  PlanInput input = input_for(units, 8, 0);
  input.ranks_per_host = 4;
  input.policy = ShardPolicy::kOptimizer;
  input.times.forward = 1;
  input.rates.memory_bytes = 1e12;  // a larger group has less to update
  EXPECT_EQ(best_plan(input).shard_size, 4);
  input.rates.memory_bytes = 1e8;
  EXPECT_EQ(best_plan(input).shard_size, 8);
}

TEST(Plan, Fp8HalvesFrozenMatricesAndNothingElse) {
  auto units = frozen_model();
  for (auto& unit : units)
    for (auto& parameter : unit.parameters) parameter.linear = !unit.trained;
  units[0].parameters.push_back({"norm", {8192}, {{"n", 8192}}, Init::kOnes, 0, false});
  PlanInput input = input_for(units, 1, 0);
  const int64_t matrices = kBlocks * int64_t{8192} * 8192, rest = 8192 + 16 * 8192;
  EXPECT_EQ(best_plan(input).weights, 2 * (matrices + rest));
  input.frozen_fp8 = true;
  EXPECT_EQ(best_plan(input).weights, matrices + 2 * rest);
}

TEST(Plan, TrainedCodesTakeTheirBytesAndMasters) {
  auto units = frozen_model();
  units.pop_back();
  for (auto& unit : units) {
    unit.trained = true;
    for (auto& parameter : unit.parameters) parameter.linear = true;
  }
  units[0].parameters.push_back({"norm", {8192}, {{"n", 8192}}, Init::kOnes, 0, false});
  const int64_t matrix = int64_t{8192} * 8192, matrices = kBlocks * matrix;
  PlanInput input = input_for(units, 1, 0);
  input.trained = Recipe::kFp8Rowwise;
  TrainingPlan plan = best_plan(input);
  // The codes have a place for the vector, which is stored beside them.
  EXPECT_EQ(plan.weights, matrices + 8192 + 2 * 8192);
  EXPECT_EQ(plan.masters, 4 * (matrices + 8192));
  EXPECT_EQ(plan.moments, 8 * (matrices + 8192));
  // fp32 on the CPU: the masters are not the compute copy.
  input.compute_bytes = 4;
  EXPECT_EQ(best_plan(input).masters, 4 * (matrices + 8192));
  input.compute_bytes = 2;
  input.compute_last = 3;
  EXPECT_EQ(best_plan(input).weights, matrices + 3 * matrix + 8192 + 2 * 8192);
  // Codes with a delayed scale are made in each pass.
  input.trained = Recipe::kFp8Delayed;
  EXPECT_EQ(best_plan(input).weights, 2 * (matrices + 8192));
  // Gathers and whole copies are codes.
  input = input_for(units, 2, 0);
  input.trained = Recipe::kFp8Tensorwise;
  input.shard_size = 2;
  input.policy = ShardPolicy::kFull;
  plan = best_plan(input);
  EXPECT_EQ(plan.gathered_per_pass, (matrices + 8192) / 2);
}

TEST(Plan, TransposedCodesStayWhereMemoryIsLeft) {
  auto frozen = frozen_model();
  for (UnitSpec& unit : frozen)
    for (auto& parameter : unit.parameters) parameter.linear = !unit.trained;
  PlanInput input = input_for(frozen, 1, 100000 * kMiB);
  input.frozen_fp8 = true;
  input.rates.memory_bytes = 1e12;
  const auto kept = [](const TrainingPlan& plan) {
    return static_cast<int>(std::count(plan.keeps_transposed.begin(), plan.keeps_transposed.end(), true));
  };
  const TrainingPlan all = best_plan(input);
  EXPECT_EQ(kept(all), kBlocks) << "no adapters";
  EXPECT_EQ(all.transposed, kBlocks * 64 * kMiB);
  EXPECT_TRUE(contains(describe_plan(all, frozen), "transposed FP8 codes     512.0 MiB"));
  // One and a half times the headroom stays free, and nothing else is given up.
  TrainingPlan without = all;
  int before = 0;
  for (int64_t memory = 1000; memory < 1800; memory += 10) {
    input.device_memory = memory * kMiB;
    const TrainingPlan plan = best_plan(input);
    EXPECT_GE(kept(plan), before);
    EXPECT_TRUE(plan.transposed == 0 || 2 * plan.total() + 3 * plan.headroom() <= 2 * plan.device_memory);
    before = kept(plan);
    if (before > 0) {
      EXPECT_EQ(recomputed(plan), 0);
    } else {
      without = plan;
    }
  }
  EXPECT_EQ(before, kBlocks);
  EXPECT_FALSE(contains(describe_plan(without, frozen), "transposed"));
  EXPECT_EQ(least_plan(input).transposed, 0);
  input.transpose_cache = false;
  EXPECT_EQ(kept(best_plan(input)), 0);
  input.transpose_cache = true;
  // A byte is read and one written, for each of three passes.
  input.micro_batches = 3;
  input.device_memory = 0;
  const TrainingPlan none = best_plan(input);
  EXPECT_EQ(kept(none), 0) << "nobody knows the memory";
  input.device_memory = 100000 * kMiB;
  EXPECT_NEAR(none.cost.compute - best_plan(input).cost.compute, 3 * 2 * kBlocks * 64 * kMiB / 1e12, 1e-9);
  // Units that are gathered have no whole codes; resident ones have.
  input.world_size = 4;
  input.shard_size = 4;
  EXPECT_EQ(kept(best_plan(input)), 0);
  input.shard_size = std::nullopt;
  EXPECT_EQ(kept(best_plan(input)), kBlocks);
  input.frozen_nf4 = true;
  EXPECT_EQ(kept(best_plan(input)), 0);

  // Trained codes are new in each step.
  auto trained = trained_model();
  for (UnitSpec& unit : trained) unit.parameters[0].linear = true;
  trained[2].parameters.push_back({"norm", {8192}, {{"n", 8192}}, Init::kOnes, 0, false});
  input = input_for(trained, 1, 100000 * kMiB);
  input.rates.memory_bytes = 1e12;
  input.trained = Recipe::kFp8Rowwise;
  input.compute_last = 1;
  EXPECT_EQ(kept(best_plan(input)), 0);
  input.micro_batches = 4;
  const TrainingPlan plan = best_plan(input);
  EXPECT_EQ(kept(plan), kBlocks - 1);
  EXPECT_FALSE(plan.keeps_transposed[kBlocks - 1]);
  EXPECT_EQ(plan.transposed, (kBlocks - 1) * 64 * kMiB + 8192) << "the layout of the codes";
  EXPECT_EQ(plan.transposes, -3 * plan.transposed);
  input.world_size = 4;
  input.shard_size = 4;
  for (const ShardPolicy policy : {ShardPolicy::kOptimizer, ShardPolicy::kGradients, ShardPolicy::kFull}) {
    input.policy = policy;
    EXPECT_EQ(kept(best_plan(input)), policy == ShardPolicy::kFull ? 0 : kBlocks - 1);
  }
  input.policy = ShardPolicy::kOptimizer;
  input.trained = Recipe::kFp8Delayed;
  EXPECT_EQ(kept(best_plan(input)), 0);
}

TEST(Plan, TrainedUnitsCarryMastersMomentsAndGradients) {
  auto units = frozen_model();
  for (auto& unit : units) unit.trained = true;
  units.pop_back();
  PlanInput input = input_for(units, 1, 0);
  const TrainingPlan plan = best_plan(input);
  const int64_t elements = kBlocks * int64_t{8192} * 8192;
  EXPECT_EQ(plan.weights, elements * 2);
  EXPECT_EQ(plan.masters, elements * 4);
  EXPECT_EQ(plan.moments, elements * 8);
  EXPECT_EQ(plan.gradients, elements * 4);
  // In the compute dtype, unless several passes are summed.
  input.gradient_bytes = 2;
  EXPECT_EQ(best_plan(input).gradients, elements * 2);
  input.micro_batches = 2;
  EXPECT_EQ(best_plan(input).gradients, elements * 4);
}

TEST(Plan, MastersInTheTypeOfProductsAreTheWeights) {
  const auto units = trained_model();
  PlanInput input = input_for(units, 1, 0);
  input.rates.memory_bytes = 1e12;
  const auto elements = static_cast<double>(kBlocks * int64_t{8192} * 8192);
  const TrainingPlan wide = best_plan(input);
  input.master_bytes = 2;
  const TrainingPlan plan = best_plan(input);
  EXPECT_EQ(plan.weights, wide.weights);
  EXPECT_EQ(plan.masters, 0);
  EXPECT_EQ(wide.total() - plan.total(), static_cast<int64_t>(elements) * 4);
  // Master weights are read and written with 2 bytes instead of 4, and no copy of 2 is written.
  EXPECT_NEAR(wide.cost.optimizer - plan.cost.optimizer, elements * (2 * 2 + 2) / 1e12, 1e-9);
  // Moments alone wait on the host.
  input.state = PlanInput::Offload::kAll;
  input.host_memory = 100000 * kMiB;
  EXPECT_EQ(best_plan(input).host_state, kBlocks * 512 * kMiB);
  input.state = PlanInput::Offload::kNone;
  // Codes are beside them.
  std::vector<UnitSpec> linear = trained_model();
  for (UnitSpec& unit : linear) unit.parameters[0].linear = true;
  input.units = &linear;
  input.trained = Recipe::kFp8Rowwise;
  const TrainingPlan codes = best_plan(input);
  EXPECT_EQ(codes.masters, kBlocks * 128 * kMiB);
  EXPECT_EQ(codes.weights, kBlocks * 64 * kMiB);
}

}  // namespace
}  // namespace trireme
