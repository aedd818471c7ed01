// The state of a run by the names that checkpoints have had from the first version on.
#include "training_state.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(TrainingState, TensorsHaveTheNamesOfOlderCheckpoints) {
  TrainedShard shard;
  shard.name = "layers.0";
  const auto name = [&](StateKind kind, bool scalar) { return stored_name({kind, scalar ? nullptr : &shard, {}}); };
  EXPECT_EQ(name(StateKind::kMaster, false), "master.layers.0");
  EXPECT_EQ(name(StateKind::kFirstMoment, false), "exp_avg.layers.0");
  EXPECT_EQ(name(StateKind::kSecondMoment, false), "exp_avg_sq.layers.0");
  EXPECT_EQ(name(StateKind::kOptimizerSteps, true), "step");
  EXPECT_EQ(name(StateKind::kLossScale, true), "loss_scale");
  EXPECT_EQ(name(StateKind::kGrowthTracker, true), "growth_tracker");
}

CheckpointManifest manifest_of(const LoopState& loop) {
  CheckpointManifest manifest;
  manifest.step = loop.progress.completed;
  manifest.evaluations = loop.progress.evaluations;
  manifest.numbers = loop.numbers();
  return manifest;
}

TEST(TrainingState, NumbersHaveTheNamesOfOlderCheckpointsAndComeBack) {
  LoopState loop;
  loop.progress = {.completed = 12,
                   .reported = 12,
                   .samples = 96,
                   .evaluations = 3,
                   .evaluated_step = 10,
                   .evaluation_open = true,
                   .best_score = -2.5,
                   .best_step = 8,
                   .evaluations_since_best = 1};
  loop.guard = {2, 7, {2.5, 2.25, -1}};
  loop.fp8_scales = {};
  loop.fp8_scales.emplace({0.5, 4.0});
  loop.data_position = {3, 1, 4};
  EXPECT_EQ(loop.numbers(), (std::map<std::string, std::vector<double>>{{"samples", {96}},
                                                                        {"evaluated_step", {10}},
                                                                        {"evaluation_left", {1}},
                                                                        {"reached_target", {0}},
                                                                        {"consecutive_skips", {2}},
                                                                        {"left_out", {7}},
                                                                        {"best_evaluation", {-2.5, 8, 1, 0}},
                                                                        {"loss_window", {2.5, 2.25, -1}},
                                                                        {"task", {0.5, 4}},
                                                                        {"data", {3, 1, 4}}}));
  const LoopState again = loop_state(manifest_of(loop));
  EXPECT_TRUE(again.has_samples);
  EXPECT_EQ(again.progress.completed, 12);
  EXPECT_EQ(again.progress.evaluations, 3);
  EXPECT_EQ(again.numbers(), loop.numbers());
}

TEST(TrainingState, OlderCheckpointsLackNumbers) {
  CheckpointManifest first;
  first.step = 5;
  LoopState loop = loop_state(first);
  EXPECT_FALSE(loop.has_samples) << "they follow from the number of steps";
  EXPECT_EQ(loop.progress.completed, 5);
  EXPECT_EQ(loop.progress.reported, 5);
  EXPECT_EQ(loop.progress.evaluated_step, -1);
  EXPECT_FALSE(loop.fp8_scales) << "no scales to restore";
  EXPECT_TRUE(loop.data_position.empty());
  EXPECT_EQ(loop.guard, GuardState());
  first.numbers = {{"loss_window", {}}, {"left_out", {}}, {"task", {}}};
  loop = loop_state(first);
  EXPECT_EQ(loop.guard, GuardState());
  ASSERT_TRUE(loop.fp8_scales) << "a run without scales has an empty list";
  EXPECT_TRUE(loop.fp8_scales->empty());
}

}  // namespace
}  // namespace trireme
