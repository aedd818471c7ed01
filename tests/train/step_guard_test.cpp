// StepGuard at its interface: what the device decides about a step, and what the host does when it reads it later.
#include "step_guard.h"
#include "../base/base_testing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace trireme {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor scalar(double value) { return at::full({}, value, at::kDouble); }
double ordinary_loss(int64_t step) { return 2.0 + 0.05 * std::sin(1.7 * static_cast<double>(step)); }

StepRecord record_of(int64_t step, double loss, double grad_norm, bool nonfinite, bool spiked, int64_t saturated,
                     bool has_targets = true) {
  StepRecord record;
  record.step = step;
  record.values = at::zeros({kNumResults}, at::kDouble);
  const std::pair<StepResult, double> values[] = {{kLoss, loss},
                                                  {kGradNorm, grad_norm},
                                                  {kNonfinite, nonfinite ? 1 : 0},
                                                  {kSpiked, spiked ? 1 : 0},
                                                  {kLossCount, has_targets ? 8 : 0},
                                                  {kSaturated, static_cast<double>(saturated)}};
  for (const auto& [which, value] : values) record.values[which] = value;
  return record;
}

/// A guard with the steps that it has seen, as the Trainer drives it.
class GuardedRun {
 public:
  explicit GuardedRun(const Config& config, at::ScalarType dtype = at::kFloat)
      : guard(config, dtype, at::kCPU, [this](const std::string& event) { events.push_back(event); }) {}

  /// Device and host in turn; the optimizer's `skip`.
  bool step(double loss, double grad_norm = 1.0, bool has_targets = true) {
    const StepVerdict verdict = guard.judge(scalar(loss), scalar(grad_norm), /*previous_inspected=*/true);
    guard.update_loss_scale(verdict);
    const bool spiked = verdict.spiked.defined() && verdict.spiked.item<float>() > 0;
    ++steps;
    const bool nonfinite = verdict.nonfinite.item<float>() > 0;
    ended =
        guard.inspect(record_of(steps, loss, grad_norm, nonfinite, spiked, 0, has_targets), 0, [this](int64_t step) {
          searched.push_back(step);
          return std::string("not finite: the gradient of w");
        });
    return verdict.skip.item<float>() > 0;
  }
  double scale() const { return guard.loss_scale().item<double>(); }

  std::vector<std::string> events;
  StepGuard guard;
  int64_t steps = 0;
  std::optional<std::string> ended;
  std::vector<int64_t> searched;
};

using OnNonfinite = TrainSection::OnNonfinite;
using OnSpike = TrainSection::OnSpike;

Config config_with(OnNonfinite on_nonfinite, OnSpike on_spike = OnSpike::kReport) {
  Config config;
  config.batch.global_batch_size = 8;
  config.train.on_nonfinite = on_nonfinite;
  config.train.on_spike = on_spike;
  return config;
}

TEST(LossScale, HalvesAtAnOverflowAndDoublesAfterTheIntervalUpToItsBound) {
  Config config = config_with(OnNonfinite::kStop);
  config.precision.loss_scale = StepGuard::kLargestLossScale;
  GuardedRun run(config, at::kHalf);
  EXPECT_TRUE(run.step(2.0, kInfinity));
  EXPECT_EQ(run.scale(), StepGuard::kLargestLossScale / 2);
  EXPECT_FALSE(run.ended) << *run.ended;
  for (int64_t i = 0; i + 1 < StepGuard::kGrowthInterval; ++i) ASSERT_FALSE(run.step(2.0));
  EXPECT_EQ(run.scale(), StepGuard::kLargestLossScale / 2);
  EXPECT_FALSE(run.step(2.0));
  EXPECT_EQ(run.scale(), StepGuard::kLargestLossScale);
  for (int64_t i = 0; i < StepGuard::kGrowthInterval; ++i) (void)run.step(2.0);
  EXPECT_EQ(run.scale(), StepGuard::kLargestLossScale);
}

TEST(LossScale, AnOverflowStartsTheIntervalAgain) {
  GuardedRun run(config_with(OnNonfinite::kStop), at::kHalf);
  EXPECT_EQ(run.scale(), StepGuard::kInitialLossScale);
  for (int64_t i = 0; i + 1 < StepGuard::kGrowthInterval; ++i) (void)run.step(2.0);
  (void)run.step(2.0, kNan);
  (void)run.step(2.0);
  EXPECT_EQ(run.scale(), StepGuard::kInitialLossScale / 2);
}

TEST(LossScale, IsOneOutsideFp16) {
  Config config = config_with(OnNonfinite::kSkip);
  config.precision.loss_scale = 1024;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    GuardedRun run(config, dtype);
    (void)run.step(kNan);
    EXPECT_EQ(run.scale(), 1.0);
  }
}

TEST(StepGuard, StopsTheRunAndTheStepAlreadyUnderWay) {
  StepGuard guard(config_with(OnNonfinite::kStop), at::kBFloat16, at::kCPU, [](const std::string&) {});
  EXPECT_EQ(guard.judge(scalar(2.0), scalar(1.0), true).skip.item<float>(), 0);
  EXPECT_EQ(guard.judge(scalar(2.0), scalar(kInfinity), true).skip.item<float>(), 1);
  // The host has not read that yet.
  EXPECT_EQ(guard.judge(scalar(2.0), scalar(1.0), false).skip.item<float>(), 1);

  GuardedRun run(config_with(OnNonfinite::kStop), at::kBFloat16);
  EXPECT_FALSE(run.step(2.0));
  EXPECT_TRUE(run.step(kNan));
  ASSERT_TRUE(run.ended);
  EXPECT_EQ(*run.ended,
            "step 2: the loss is nan and the gradient norm 1; not finite: the gradient of w; no parameter was changed. "
            "Lower optimizer.lr, check the data around row 8, use precision.compute: fp32, or set "
            "train.on_nonfinite: skip");
  EXPECT_EQ(run.searched, std::vector<int64_t>{2});
  EXPECT_FALSE(run.guard.may_skip());
}

TEST(StepGuard, SkipsAndEndsTheRunAfterTooManyInARow) {
  GuardedRun run(config_with(OnNonfinite::kSkip));
  for (int i = 0; i < StepGuard::kMaxConsecutiveSkips; ++i) {
    EXPECT_TRUE(run.step(kInfinity));
    ASSERT_FALSE(run.ended) << *run.ended;
  }
  EXPECT_EQ(run.guard.consecutive_skips(), StepGuard::kMaxConsecutiveSkips);
  EXPECT_FALSE(run.step(2.0)) << "a sound step after skipped ones is applied";
  EXPECT_EQ(run.guard.consecutive_skips(), 0);
  EXPECT_EQ(run.guard.steps_skipped(), StepGuard::kMaxConsecutiveSkips);
  for (int i = 0; i < StepGuard::kMaxConsecutiveSkips; ++i) (void)run.step(2.0, kNan);
  EXPECT_FALSE(run.ended);
  (void)run.step(2.0, kNan);
  ASSERT_TRUE(run.ended);
  EXPECT_TRUE(contains(*run.ended, "no parameter was changed (21 steps in a row)"));
}

TEST(StepGuard, SearchesNoParametersForAnOverflowOfFp16UntilItEndsTheRun) {
  GuardedRun run(config_with(OnNonfinite::kStop), at::kHalf);
  EXPECT_TRUE(run.guard.may_skip());
  for (int i = 0; i < StepGuard::kMaxConsecutiveSkips; ++i) (void)run.step(2.0, kInfinity);
  EXPECT_TRUE(run.searched.empty());
  EXPECT_FALSE(run.ended);
  (void)run.step(2.0, kInfinity);
  EXPECT_EQ(run.searched, std::vector<int64_t>{StepGuard::kMaxConsecutiveSkips + 1});
  EXPECT_TRUE(run.ended);
}

TEST(StepGuard, ReportsASpikeAndAppliesTheStep) {
  GuardedRun run(config_with(OnNonfinite::kStop));
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(run.step(ordinary_loss(i)));
  EXPECT_TRUE(run.events.empty());
  EXPECT_FALSE(run.step(50.0));
  ASSERT_EQ(run.events.size(), 1U);
  EXPECT_TRUE(contains(run.events[0], "\"skipped\":false"));
  EXPECT_TRUE(contains(run.events[0], "\"step\":41"));
  EXPECT_EQ(run.guard.steps_skipped(), 0);
}

TEST(StepGuard, SkipsASpike) {
  GuardedRun run(config_with(OnNonfinite::kStop, OnSpike::kSkip));
  EXPECT_FALSE(run.step(3.0)) << "there are no losses to compare with yet";
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(run.step(ordinary_loss(i)));
  EXPECT_TRUE(run.step(50.0));
  ASSERT_EQ(run.events.size(), 1U);
  EXPECT_TRUE(contains(run.events[0], "\"skipped\":true"));
  EXPECT_EQ(run.guard.steps_skipped(), 1);
  EXPECT_EQ(run.guard.consecutive_skips(), 0) << "a spike's numbers are finite";
  EXPECT_FALSE(run.step(ordinary_loss(41)));
}

TEST(StepGuard, StepsWithoutTargetsHaveNoLoss) {
  GuardedRun run(config_with(OnNonfinite::kStop, OnSpike::kSkip));
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(run.step(0.0, 0.0, /*has_targets=*/false));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(run.step(ordinary_loss(i)));
    EXPECT_FALSE(run.step(0.0, 0.0, /*has_targets=*/false));
  }
  EXPECT_TRUE(run.events.empty());
  EXPECT_TRUE(run.step(50.0));
}

TEST(StepGuard, DecidesTheSameWhetherTheStepBeforeHasBeenReadOrNot) {
  const Config config = config_with(OnNonfinite::kStop, OnSpike::kSkip);
  GuardedRun run(config);
  // The fewest losses for which the one of the step before decides whether there is a limit at all.
  for (size_t i = 0; i < LossWindow::kLeast; ++i) (void)run.step(ordinary_loss(static_cast<int64_t>(i)));
  int spikes = 0;
  for (double loss = 2.0; loss < 3.0; loss += 0.01) {
    GuardedRun late(config);
    late.guard.restore(run.guard.state());
    const bool before =
        late.guard.judge(scalar(loss), scalar(1.0), /*previous_inspected=*/false).skip.item<float>() > 0;
    (void)late.step(2.02);
    const bool after = late.guard.judge(scalar(loss), scalar(1.0), /*previous_inspected=*/true).skip.item<float>() > 0;
    EXPECT_EQ(before, after) << loss;
    spikes += after ? 1 : 0;
  }
  EXPECT_GT(spikes, 10);
  EXPECT_LT(spikes, 90);
}

TEST(StepGuard, GoesOnFromItsState) {
  const Config config = config_with(OnNonfinite::kSkip, OnSpike::kSkip);
  GuardedRun whole(config), first(config);
  const auto loss = [](int i) { return i % 7 == 3 ? kNan : i == 25 ? 50.0 : ordinary_loss(i); };
  for (int i = 0; i < 39; ++i) {
    (void)whole.step(loss(i));
    (void)first.step(loss(i));
  }
  GuardedRun second(config);
  second.guard.restore(first.guard.state());
  second.steps = first.steps;
  EXPECT_EQ(second.guard.consecutive_skips(), 1);
  EXPECT_EQ(second.guard.steps_skipped(), 7);
  for (int i = 39; i < 80; ++i) {
    const double value = i == 50 ? 2.6 : loss(i);
    EXPECT_EQ(whole.step(value), second.step(value)) << i;
  }
  EXPECT_EQ(whole.guard.state(), second.guard.state());
  GuardedRun old(config);
  old.guard.restore({});
  EXPECT_EQ(old.guard.state(), GuardedRun(config).guard.state()) << "a checkpoint without these numbers";
}

TEST(StepGuard, TensorsAreThoseOfCheckpoints) {
  GuardedRun run(config_with(OnNonfinite::kStop), at::kHalf), other(config_with(OnNonfinite::kStop), at::kHalf);
  (void)run.step(2.0, kInfinity);
  for (int64_t i = 0; i + 1 < StepGuard::kGrowthInterval; ++i) (void)run.step(2.0);
  const auto from = run.guard.tensors(), to = other.guard.tensors();
  ASSERT_EQ(from.size(), 2U);
  EXPECT_EQ(from[0].kind, StateKind::kLossScale);
  EXPECT_EQ(from[1].kind, StateKind::kGrowthTracker);
  for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);  // as resume_newest() fills them
  EXPECT_FALSE(other.step(2.0));
  EXPECT_EQ(other.scale(), StepGuard::kInitialLossScale) << "the growth tracker was one step from the interval's end";
}

TEST(StepGuard, NamesTheRowsOfASpike) {
  testing::internal::CaptureStderr();
  GuardedRun run(config_with(OnNonfinite::kStop));
  for (int i = 0; i < 30; ++i) (void)run.step(2.0);
  (void)run.step(9.0);
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(err, "step 31: the loss 9.0000 is a spike"));
  EXPECT_TRUE(contains(err, "(rows 240 to 247 of the order)"));
}

TEST(StepGuard, ReportsSaturatedTensorsEverMoreRarely) {
  testing::internal::CaptureStderr();
  StepGuard guard(config_with(OnNonfinite::kStop), at::kBFloat16, at::kCPU, [](const std::string&) {});
  for (int64_t step = 1; step <= 99; ++step)
    (void)guard.inspect(record_of(step, 2.0, 1.0, false, false, step % 2), 12, {});
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(err, "step 1: 1 of 12 FP8 tensors"));
  EXPECT_TRUE(
      contains(err, "step 19: 1 of 12 FP8 tensors had values beyond their scale, which were saturated (10 such"));
  EXPECT_FALSE(contains(err, "step 3:"));
  EXPECT_FALSE(contains(err, "step 99:"));
}

}  // namespace
}  // namespace trireme
