// RunClock and StepsInFlight at their interfaces: what is due after which step, and how steps are timed.
#include "run_clock.h"

#include "run_summary.h"
#include "train_step.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace trireme {
namespace {

Config config_of(int64_t max_steps, int64_t global_batch_size) {
  Config config;
  config.train.max_steps = max_steps;
  config.batch.global_batch_size = global_batch_size;
  return config;
}

std::vector<int64_t> due(int64_t last, const std::function<bool(int64_t)>& at) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step)
    if (at(step)) steps.push_back(step);
  return steps;
}

TEST(RunSummary, SaysWhichCommandComesNext) {
  Config config;
  config.output.dir = "runs/a b";
  const auto stopped = static_cast<int>(ExitCode::kStopped);
  EXPECT_EQ(next_command(config, RunEnd::kSignal, 73),
            "the same command again starts from the last checkpoint, if there is one");
  EXPECT_EQ(next_command(config, RunEnd::kSignal, stopped), "the same command again goes on from here");
  EXPECT_EQ(next_command(config, RunEnd::kMaxTime, stopped), "the same command again goes on from here");
  EXPECT_EQ(next_command(config, RunEnd::kFailed, 70), "");
  EXPECT_EQ(next_command(config, RunEnd::kDone, 0), "trireme report 'runs/a b' --output 'runs/a b/report.html'");
}

TEST(RunClock, EvaluatesAfterTheStepThatReachesTheSamples) {
  Config config = config_of(100, 8);
  const RunClock never(config, std::nullopt, at::kCPU);
  EXPECT_FALSE(never.evaluation_due(8));
  config.eval.every_samples = 20;  // 2.5 steps
  const RunClock clock(config, std::nullopt, at::kCPU);
  EXPECT_EQ(due(10, [&](int64_t step) { return clock.evaluation_due(step); }), (std::vector<int64_t>{3, 6, 9}));
}

TEST(RunClock, EvaluatesByNominalSamplesWithoutDrift) {
  Config config = config_of(100, 8);
  config.eval.every_samples = 100;
  const RunClock clock(config, 16.0, at::kCPU);
  // Evaluation i after step ceil(i * 100 / 16): 6.25, 12.5, 18.75, 25, 31.25.
  EXPECT_EQ(due(32, [&](int64_t step) { return clock.evaluation_due(step); }),
            (std::vector<int64_t>{7, 13, 19, 25, 32}));
  config.eval.every_samples = 10;
  EXPECT_EQ(due(4, [&](int64_t step) { return clock.evaluation_due(step); }), (std::vector<int64_t>{1, 2, 3, 4}))
      << "at most one evaluation a step";
}

TEST(RunClock, EvaluatesAndSavesBySamplesWhereTheBatchGrows) {
  Config config = config_of(100, 16);
  config.batch.rampup = {4, 4, 36};  // 4 8 12 20 28 40 56 72 88 …
  config.eval.every_samples = config.output.save_every_samples = 20;
  RunClock clock(config, std::nullopt, at::kCPU);
  EXPECT_EQ(due(9, [&](int64_t step) { return clock.evaluation_due(step); }),
            (std::vector<int64_t>{4, 6, 8, 9}));  // 20, 40, 72, 88 samples
  clock.start_run(5, 28);
  EXPECT_EQ(due(9, [&](int64_t step) { return step > 5 && clock.save_due(step) && (clock.saved(step), true); }),
            (std::vector<int64_t>{6, 8, 9}));
  // Rows that count for two samples each.
  const RunClock packed(config, 32.0, at::kCPU);
  EXPECT_EQ(due(6, [&](int64_t step) { return packed.evaluation_due(step); }), (std::vector<int64_t>{3, 4, 6}));
}

TEST(RunClock, SkipsTheFirstEvaluations) {
  Config config = config_of(100, 16);
  const RunClock clock(config, std::nullopt, at::kCPU);
  EXPECT_FALSE(clock.skips_evaluation(0));
  config.eval.skip_first = 2;
  EXPECT_TRUE(clock.skips_evaluation(1));
  EXPECT_FALSE(clock.skips_evaluation(2));
  config.eval.skip_first = EvalSection::kSkipByMlperf;  // 0.125 * 16 + 2
  EXPECT_TRUE(clock.skips_evaluation(3));
  EXPECT_FALSE(clock.skips_evaluation(4));
}

TEST(RunClock, SavesByRoundedUpSamplesButNotTheLastStep) {
  Config config = config_of(9, 8);
  RunClock clock(config, std::nullopt, at::kCPU);
  clock.start_run(0, 0);
  EXPECT_FALSE(clock.save_due(3));
  config.output.save_every_samples = 17;
  std::vector<int64_t> saves;
  for (int64_t step = 1; step <= 9; ++step) {
    if (!clock.save_due(step)) continue;
    saves.push_back(step);
    clock.saved(step);
  }
  EXPECT_EQ(saves, (std::vector<int64_t>{3, 6}));
}

TEST(RunClock, APostponedSaveStaysDue) {
  Config config = config_of(100, 8);
  config.output.save_every_samples = 24;
  RunClock clock(config, std::nullopt, at::kCPU);
  clock.start_run(0, 0);
  EXPECT_TRUE(clock.save_due(3));
  EXPECT_TRUE(clock.save_due(4)) << "the save after step 3 was not done";
  EXPECT_TRUE(clock.save_due(5));
  clock.saved(5);
  EXPECT_FALSE(clock.save_due(5));
  EXPECT_TRUE(clock.save_due(6)) << "a late save does not shift the next one";
}

TEST(RunClock, AResumedRunOwesNoSaveOfBefore) {
  Config config = config_of(100, 8);
  config.output.save_every_samples = 24;
  RunClock clock(config, std::nullopt, at::kCPU);
  clock.start_run(7, 56);  // saved by minutes, or by a signal
  EXPECT_FALSE(clock.save_due(8));
  EXPECT_TRUE(clock.save_due(9));
  EXPECT_EQ(clock.last_saved_step(), 7);
}

TEST(RunClock, SavesByMinutesOnRequest) {
  Config config = config_of(100, 8);
  double now = 1000;
  RunClock clock(config, std::nullopt, at::kCPU, [&] { return now; });
  now = 5000;
  clock.start_run(0, 0);
  now += 1e6;
  EXPECT_FALSE(clock.minutes_passed()) << "output.save_every_minutes is not set";
  config.output.save_every_minutes = 1.5;
  clock.start_run(0, 0);
  now += 89;
  EXPECT_FALSE(clock.minutes_passed());
  now += 1;
  EXPECT_TRUE(clock.minutes_passed());
  EXPECT_FALSE(clock.save_due(5)) << "only when all ranks know";
  clock.request_save();
  EXPECT_TRUE(clock.save_due(5));
  EXPECT_FALSE(clock.save_due(100)) << "the last step";
  clock.saved(5);
  EXPECT_FALSE(clock.minutes_passed());
  EXPECT_FALSE(clock.save_due(6));
}

TEST(RunClock, ComparesRanksAfterTenStepsOfThisProcessThenEveryFifty) {
  const Config config = config_of(1000, 8);
  RunClock clock(config, std::nullopt, at::kCPU);
  clock.start_run(7, 56);
  std::vector<std::pair<int64_t, int64_t>> intervals;
  for (int64_t step = 8; step <= 110; ++step)
    if (const auto steps = clock.take_straggler_interval(step)) intervals.emplace_back(step, *steps);
  EXPECT_EQ(intervals, (std::vector<std::pair<int64_t, int64_t>>{{17, 10}, {57, 40}, {107, 50}}));
}

TEST(RunClock, TimesStepsFromTheEndOfTheOneBeforeOrFromStart) {
  const Config config = config_of(100, 8);
  double now = 0;
  RunClock clock(config, std::nullopt, at::kCPU, [&] { return now; });
  clock.start_run(2, 16);
  clock.start_block(16);
  clock.start_step();
  now = 3;
  const TimePoint first = clock.mark();
  now = 4;
  const TimePoint second = clock.mark();
  now = 10;  // the host reads late
  EXPECT_EQ(clock.end_step(first), 3);
  EXPECT_EQ(clock.end_step(second), 1);
  now = 20;  // an evaluation
  const auto block = clock.end_block(4, 32, 1.5);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->step, 4);
  EXPECT_EQ(block->samples, 32);
  EXPECT_EQ(block->steps, 2);
  EXPECT_EQ(block->seconds, 4);
  EXPECT_EQ(block->loss, 1.5);
  EXPECT_EQ(block->samples_per_second, 4);
  EXPECT_FALSE(clock.end_block(4, 32, 1.5)) << "it has ended";
  clock.start_block(32);
  clock.start_step();
  now = 22;
  EXPECT_EQ(clock.end_step(clock.mark()), 2);
  EXPECT_EQ(clock.timed_steps(), 3);
  EXPECT_EQ(clock.mean_step_seconds(), 2);
  EXPECT_EQ(clock.end_block(5, 40, 1.0)->samples_per_second, 4);
  EXPECT_EQ(clock.run_rate(38), 1) << "22 samples of this process in 22 seconds";
}

at::Tensor results(double loss, bool nonfinite, bool spiked) {
  at::Tensor values = at::zeros({kNumResults}, at::kDouble);
  values[kLoss] = loss;
  values[kNonfinite] = nonfinite ? 1.0 : 0.0;
  values[kSpiked] = spiked ? 1.0 : 0.0;
  return values;
}

TEST(StepsInFlight, GivesStepsInOrderAndKnowsWhichWereSkipped) {
  const Config config = config_of(100, 8);
  const RunClock clock(config, std::nullopt, at::kCPU);
  StepsInFlight reader;
  EXPECT_EQ(reader.skipped(), 0);
  EXPECT_FALSE(reader.updated_after(0));
  reader.push(5, 0.1, 0, results(2.5, false, false), clock);
  reader.push(6, 0.2, 0, results(2.6, true, false), clock);
  reader.push(7, 0.3, 0, results(2.7, false, true), clock);
  EXPECT_EQ(reader.skipped(), 2);
  EXPECT_TRUE(reader.updated_after(4));
  EXPECT_FALSE(reader.updated_after(5)) << "6 and 7 changed nothing";
  const StepRecord first = reader.pop();
  EXPECT_EQ(first.step, 5);
  EXPECT_EQ(first.lr, 0.1);
  EXPECT_EQ(first[kLoss], 2.5);
  EXPECT_FALSE(first.skipped());
  EXPECT_EQ(reader.pop().step, 6);
  EXPECT_EQ(reader.size(), 1U);
}

TEST(RunClock, StopsBeforeTheMaximumTimeAsLongStepsAndSavesTake) {
  Config config = config_of(100, 8);
  config.train.max_time = "00:00:01:40";
  double now = 5;
  RunClock clock(config, std::nullopt, at::kCPU, [&] { return now; }, /*process_begin=*/5);
  now = 25;  // what comes before the first step counts
  clock.start_run(0, 0);
  clock.start_step();
  now = 35;
  EXPECT_EQ(clock.end_step(clock.mark()), 10);
  now = 84.9;
  EXPECT_FALSE(clock.time_is_up(0)) << "two steps of ten seconds are left of the 100 since 5";
  now = 85.1;
  EXPECT_TRUE(clock.time_is_up(0));
  now = 80.1;
  EXPECT_FALSE(clock.time_is_up(0));
  EXPECT_TRUE(clock.time_is_up(5)) << "a save takes five seconds";
  config.train.max_time = std::nullopt;
  EXPECT_FALSE(RunClock(config, std::nullopt, at::kCPU, [&] { return 1e9; }).time_is_up(0));
}

TEST(RunClock, WhatIsLeftHasEvaluationsAndSaves) {
  Config config = config_of(10, 8);
  config.eval.every_samples = 32;         // after steps 4 and 8, and after the last
  config.output.save_every_samples = 40;  // after steps 5 and 10
  double now = 0;
  RunClock clock(config, std::nullopt, at::kCPU, [&] { return now; });
  clock.start_run(0, 0);
  clock.start_step();
  now = 2;
  clock.end_step(clock.mark());
  EXPECT_EQ(clock.remaining_seconds(1), 9 * 2) << "how long evaluations and saves take is not known";
  clock.evaluated(10);
  clock.evaluated(20);
  EXPECT_EQ(clock.remaining_seconds(4), 6 * 2 + 2 * 15.0);
  clock.saved(5, 100);
  EXPECT_EQ(clock.remaining_seconds(5), 5 * 2 + 2 * 15.0 + 100);
  EXPECT_EQ(clock.remaining_seconds(10), 15.0) << "the last evaluation";
}

}  // namespace
}  // namespace trireme
