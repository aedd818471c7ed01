#include "trireme/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kBlocks = 8;

/// Eight frozen blocks of 64 Mi elements (128 MiB in bf16) and a replicated adapter.
std::vector<UnitSpec> frozen_model() {
  std::vector<UnitSpec> units;
  for (int i = 0; i < kBlocks; ++i) {
    UnitSpec unit;
    unit.name = "layers." + std::to_string(i);
    unit.parameters.push_back({"w", {8192, 8192}, {{"w" + std::to_string(i), 8192}}, Init::kNormal, 0.02, true});
    units.push_back(unit);
  }
  UnitSpec adapters;
  adapters.name = "adapters";
  adapters.trained = adapters.replicated = true;
  adapters.parameters.push_back({"a", {16, 8192}, {{"a", 16}}, Init::kUniform, 0.01, true});
  units.push_back(adapters);
  return units;
}

/// Communication, overhead and the optimizer's pass take no time.
PlanInput input_for(const std::vector<UnitSpec>& units, int world, int64_t memory) {
  PlanInput input;
  MachineRates& rates = input.rates;
  rates.link_bytes = rates.network_bytes = rates.memory_bytes = std::numeric_limits<double>::infinity();
  rates.collective_start = rates.ring_link_step = rates.ring_network_step = rates.tree_link_step =
      rates.tree_network_step = rates.step_overhead = rates.block_overhead = rates.waiting = 0;
  input.units = &units;
  input.world_size = world;
  input.device_memory = memory;
  input.num_blocks = kBlocks;
  input.row.saved = 50 * kMiB;
  input.row.saved_input = 5 * kMiB;
  input.row.working = input.row.working_kept = 50 * kMiB;
  return input;
}

TrainingPlan best_plan(const PlanInput& input) { return find_plan(input).value(); }

int recomputed(const TrainingPlan& plan) {
  return static_cast<int>(plan.recompute.size() -
                          std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kNone));
}

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
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_EQ(text.find("forward passes are summed"), std::string::npos) << text;
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
  EXPECT_NE(describe_need(least).find("whole on every rank because the gradients of 4 forward passes are summed"),
            std::string::npos)
      << describe_need(least);
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

TEST(Plan, RecomputesTheMlpBeforeWholeBlocks) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 1, 1400 * kMiB);
  input.row.saved_mlp = 20 * kMiB;
  const TrainingPlan plan = best_plan(input);
  EXPECT_GT(std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kMlp), 0);
  EXPECT_EQ(std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kFull), 0);
  EXPECT_TRUE(plan.fits());
}

int count(const TrainingPlan& plan, Recompute what) {
  return static_cast<int>(std::count(plan.recompute.begin(), plan.recompute.end(), what));
}

TEST(Plan, MlpsWaitOnTheHostWhereTheirCopiesTakeLessThanTheirRecomputation) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 1, 1400 * kMiB);
  input.row.saved_mlp = 20 * kMiB;
  input.row.projection = input.row.saved - input.row.saved_mlp;
  input.times.mlp = input.times.forward / 3;
  input.offload = PlanInput::Offload::kAuto;
  input.host_memory = int64_t{1} << 40;
  input.rates.host_bytes = 1e15;
  const TrainingPlan plan = best_plan(input);
  ASSERT_GT(plan.offloaded, 1);
  EXPECT_EQ(count(plan, Recompute::kMlp), plan.offloaded) << "the first blocks";
  EXPECT_EQ(plan.recompute[0], Recompute::kMlp);
  EXPECT_EQ(plan.host, (plan.offloaded - 1) * input.row.projection);
  EXPECT_EQ(plan.cost.recompute, 0);
  EXPECT_TRUE(plan.fits());
  EXPECT_NE(describe_plan(plan, units).find("backward recomputes nothing"), std::string::npos);
  EXPECT_NE(describe_plan(plan, units).find("first projections of the MLPs of the first"), std::string::npos);
  PlanInput slow = input, narrow = input, named = input;
  slow.rates.host_bytes = 1;
  EXPECT_EQ(best_plan(slow).offloaded, 0);
  EXPECT_GT(count(best_plan(slow), Recompute::kMlp), 0);
  narrow.host_memory = plan.host - 1;
  EXPECT_EQ(best_plan(narrow).offloaded, 0);
  named.recompute = Recompute::kMlp;
  EXPECT_EQ(best_plan(named).offloaded, 0) << "what is asked for";
  named.offload = PlanInput::Offload::kAll;
  EXPECT_EQ(best_plan(named).offloaded, kBlocks);
  EXPECT_EQ(best_plan(named).host, (kBlocks - 1) * input.row.projection);
  named.device_memory = 0;
  EXPECT_EQ(least_plan(named).offloaded, kBlocks);
}

/// Rows of which attention takes most of the time, and the working memory of a block most of the space.
PlanInput long_rows(const std::vector<UnitSpec>& units, int64_t memory) {
  PlanInput input = input_for(units, 1, memory);
  input.row_tokens = 65536;
  input.row.saved_attention = 10 * kMiB;
  input.row.working = input.row.working_kept = 600 * kMiB;
  input.row.working_whole = 40 * kMiB;
  input.row.tile_token = 8192;
  input.times.attention = 0.3;
  input.times.tile_row = 0.01;
  return input;
}

TEST(Plan, SparesAttentionWhereItsOutputFits) {
  const auto units = frozen_model();
  // 1,024 MiB of weights, 600 of working memory, 50 of the block that is computed again.
  EXPECT_EQ(recomputed(best_plan(long_rows(units, 2150 * kMiB))), 0);
  const TrainingPlan some = best_plan(long_rows(units, 1860 * kMiB));
  EXPECT_GT(count(some, Recompute::kAttention), 0);
  EXPECT_EQ(count(some, Recompute::kFull), 0);
  EXPECT_TRUE(some.fits());
  PlanInput asked = long_rows(units, 4096 * kMiB);
  asked.recompute = Recompute::kAttention;
  EXPECT_EQ(count(best_plan(asked), Recompute::kAttention), kBlocks);
  EXPECT_EQ(best_plan(asked).tile_tokens, 0) << "tiles where memory asks for them";
  asked.recompute = Recompute::kFull;
  EXPECT_GT(best_plan(asked).cost.recompute, 3 * 0.3 * kBlocks);
}

TEST(Plan, TilesAreTheLargestThatFit) {
  const auto units = frozen_model();
  int64_t before = 65536;
  for (int64_t memory = 1900; memory >= 1200; memory -= 20) {
    const auto plan = find_plan(long_rows(units, memory * kMiB));
    if (!plan) {
      EXPECT_LT(memory, 1260) << "weights, attention's memory and the smallest tile";
      break;
    }
    EXPECT_TRUE(plan->fits());
    if (plan->tile_tokens == 0) continue;
    EXPECT_EQ(count(*plan, Recompute::kNone), 0) << memory;
    if (count(*plan, Recompute::kFull) > 0) continue;  // attention's outputs make way for a larger tile
    EXPECT_LE(plan->tile_tokens, before);
    before = plan->tile_tokens;
  }
  EXPECT_LT(before, 65536);
  PlanInput asked = long_rows(units, 4096 * kMiB);
  asked.recompute = Recompute::kFull;
  asked.tile = 2048;
  EXPECT_EQ(best_plan(asked).tile_tokens, 2048);
  EXPECT_EQ(best_plan(asked).working, (40 + 5 + 16) * kMiB) << "rows, attention's output, a tile";
  asked.tile = 65536;
  EXPECT_EQ(best_plan(asked).tile_tokens, 0) << "one tile is none";
  EXPECT_LT(least_plan(long_rows(units, 100 * kMiB)).working, 60 * kMiB);
}

TEST(Plan, OffloadsAsManyBlocksAsItMust) {
  const auto units = frozen_model();
  PlanInput input = long_rows(units, 0);
  input.host_memory = 1024 * kMiB;
  input.rates.host_bytes = 1e12;
  input.offload = PlanInput::Offload::kAuto;
  int before = 0;
  for (int64_t memory = 1300; memory >= 1120; memory -= 10) {
    input.device_memory = memory * kMiB;
    const auto plan = find_plan(input);
    ASSERT_TRUE(plan) << memory;
    EXPECT_TRUE(plan->fits());
    EXPECT_GE(plan->offloaded, before);
    EXPECT_EQ(plan->host, std::max(0, plan->offloaded - 1) * 10 * kMiB) << "the last stays on the device";
    EXPECT_EQ(count(*plan, Recompute::kFull), 0) << "the host has room for attention's output";
    before = plan->offloaded;
    // Without a host attention is computed twice, or nothing fits.
    PlanInput alone = input;
    alone.offload = PlanInput::Offload::kNone;
    if (const auto other = find_plan(alone); other && plan->offloaded > 0) {
      EXPECT_LT(plan->cost.total(), other->cost.total());
    }
  }
  EXPECT_EQ(before, kBlocks - 1);
  EXPECT_GT(best_plan(input).cost.copies, 0);
  EXPECT_EQ(best_plan(input).cost.offload, 0) << "hidden";
  // A slow host: computing attention again costs less than waiting for the copies.
  input.device_memory = 1150 * kMiB;
  EXPECT_GT(best_plan(input).offloaded, 0);
  input.rates.host_bytes = static_cast<double>(2 * kMiB);
  EXPECT_EQ(best_plan(input).offloaded, 0);
}

TEST(Plan, AHostOfFewBytesHoldsInputsBeforeAttentionsOutputs) {
  const auto units = frozen_model();
  PlanInput input = long_rows(units, 1190 * kMiB);
  input.rates.host_bytes = 1e12;
  input.offload = PlanInput::Offload::kAll;
  int spared = kBlocks;
  for (int64_t host = 100; host >= 0; host -= 5) {
    input.host_memory = host * kMiB;
    const auto plan = find_plan(input);
    if (!plan) {
      EXPECT_LT(host, 7 * 5) << "seven inputs of 5 MiB";
      break;
    }
    EXPECT_EQ(plan->offloaded, kBlocks);
    EXPECT_LE(plan->host, input.host_memory);
    EXPECT_LE(count(*plan, Recompute::kAttention), spared);
    spared = count(*plan, Recompute::kAttention);
  }
  EXPECT_LE(spared, 1) << "the last block stays on the device, which has room for its attention's output";
}

/// Eight trained blocks; a block has 128 MiB in bf16, 256 of master weights and 512 of moments.
std::vector<UnitSpec> trained_model() {
  std::vector<UnitSpec> units = frozen_model();
  units.pop_back();
  for (UnitSpec& unit : units) unit.trained = true;
  return units;
}

TEST(Plan, StateGoesToTheHostWhereNothingFitsOtherwise) {
  const auto units = trained_model();
  PlanInput input = input_for(units, 1, 0);
  input.row.saved_input = 0;  // nothing to recompute
  input.num_blocks = 0;
  input.micro_batches = 4;
  input.host_memory = 6000 * kMiB;
  input.rates.host_bytes = 1e9;
  input.state = PlanInput::Offload::kAuto;
  int before = 0;
  // Weights 1,024, state 6,144, gradients 2,048, the pieces of the pass 1,152.
  for (int64_t memory = 9600; memory > 4300; memory -= 100) {
    input.device_memory = memory * kMiB;
    const auto plan = find_plan(input);
    if (!plan) {
      EXPECT_LT(memory, 5200) << "the host has seven units of eight";
      break;
    }
    EXPECT_TRUE(plan->fits());
    EXPECT_GE(plan->host_units, before);
    EXPECT_EQ(plan->host_state, plan->host_units * 768 * kMiB);
    EXPECT_EQ(plan->masters + plan->moments, (kBlocks - plan->host_units) * 768 * kMiB);
    EXPECT_NEAR(plan->cost.state, plan->host_units * 768 * 1.048576e-3, 1e-9);
    PlanInput fewer = input;
    fewer.host_memory = plan->host_state - 1;
    EXPECT_TRUE(plan->host_units == 0 || !find_plan(fewer)) << plan->host_units << " are the fewest";
    EXPECT_TRUE(memory < 9500 || plan->host_units == 0);
    before = plan->host_units;
  }
  EXPECT_EQ(before, 7);
  EXPECT_EQ(least_plan(input).host_units, 7);
  // Asked for, as much as the host holds; on CPU ranks, whose host is the device, all, and counted there.
  input.device_memory = 0;
  EXPECT_EQ(best_plan(input).host_units, 0);
  input.state = PlanInput::Offload::kAll;
  EXPECT_EQ(best_plan(input).host_units, 7);
  input.host_apart = false;
  const TrainingPlan here = best_plan(input);
  EXPECT_EQ(here.host_units, kBlocks);
  EXPECT_EQ(here.host_state, 0);
  EXPECT_EQ(here.masters + here.moments, kBlocks * 768 * kMiB);
  // Codes of a whole unit are made in the pass; those of a shard from masters that come a second time.
  input.host_apart = true;
  input.trained = Recipe::kFp8Rowwise;
  std::vector<UnitSpec> linear = trained_model();
  for (UnitSpec& unit : linear) unit.parameters[0].linear = true;
  input.units = &linear;
  EXPECT_NEAR(best_plan(input).cost.state, 7 * 768 * 1.048576e-3, 1e-9);
  input.world_size = 2;
  input.policy = ShardPolicy::kFull;
  input.shard_size = 2;
  EXPECT_NEAR(best_plan(input).cost.state, kBlocks * (384 + 128) * 1.048576e-3, 1e-9);
}

TEST(Plan, StateAndActivationsShareTheHost) {
  const auto units = trained_model();
  PlanInput input = long_rows(units, 6900 * kMiB);
  input.micro_batches = 4;
  input.rates.host_bytes = 1e12;
  input.offload = input.state = PlanInput::Offload::kAll;
  for (const int64_t host : {6250, 6000, 5000, 4000}) {
    input.host_memory = host * kMiB;
    const auto plan = find_plan(input);
    ASSERT_TRUE(plan) << host;
    EXPECT_EQ(plan->offloaded, kBlocks);
    EXPECT_GT(plan->host_units, 0);
    EXPECT_LE(plan->host + plan->host_state, input.host_memory);
  }
  input.host_memory = 20 * kMiB;
  EXPECT_FALSE(find_plan(input));
}

TEST(Plan, MoreHostMemoryIsNotSlower) {
  std::vector<UnitSpec> units;
  for (int copy = 0; copy < 3; ++copy)
    for (const UnitSpec& unit : trained_model()) units.push_back(unit);
  PlanInput input = long_rows(units, 13500 * kMiB);
  input.micro_batches = 4;
  input.rates.host_bytes = 1e10;
  input.offload = input.state = PlanInput::Offload::kAuto;
  double before = std::numeric_limits<double>::infinity();
  for (int64_t host = 1000; host <= 20000; host += 500) {
    input.host_memory = host * kMiB;
    const auto plan = find_plan(input);
    EXPECT_TRUE(plan || std::isinf(before)) << host;
    if (!plan) continue;
    EXPECT_LE(plan->cost.total(), before * (1 + 1e-9)) << host;
    before = plan->cost.total();
  }
  EXPECT_TRUE(std::isfinite(before));
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
  EXPECT_NE(describe_plan(all, frozen).find("transposed FP8 codes     512.0 MiB"), std::string::npos)
      << describe_plan(all, frozen);
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
  EXPECT_EQ(describe_plan(without, frozen).find("transposed"), std::string::npos);
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
