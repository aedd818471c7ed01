// What is recomputed and what waits on the host.
#include "plan_testing.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

TEST(Plan, RecomputesTheMlpBeforeWholeBlocks) {
  const auto units = frozen_model();
  PlanInput input = input_for(units, 1, 1400 * kMiB);
  input.row.saved_mlp = 20 * kMiB;
  const TrainingPlan plan = best_plan(input);
  EXPECT_GT(std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kMlp), 0);
  EXPECT_EQ(std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kFull), 0);
  EXPECT_TRUE(plan.fits());
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
  EXPECT_TRUE(contains(describe_plan(plan, units), "backward recomputes nothing"));
  EXPECT_TRUE(contains(describe_plan(plan, units), "first projections of the MLPs of the first"));
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

}  // namespace
}  // namespace trireme
