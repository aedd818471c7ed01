// Functions for loss spikes, stragglers, and GPUs that must be visible.
#include "../base/base_testing.h"
#include "run_clock.h"
#include "step_guard.h"
#include "trireme/ops/device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme {
namespace {

double wobble(int i) { return 2.0 + 0.05 * std::sin(1.7 * i); }

TEST(LossWindow, ReportsASpikeAndForgetsIt) {
  LossWindow window;
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(window.add(wobble(i))) << i;
  const auto z = window.add(2e4);
  ASSERT_TRUE(z);
  EXPECT_GT(*z, 1e4);
  // A spike is not added to the window: a second spike has the same score as the first.
  EXPECT_FALSE(window.add(wobble(40)));
  EXPECT_TRUE(window.add(3.0));
}

TEST(LossWindow, KnowsNothingAtFirstAndIgnoresWhatIsNoNumber) {
  LossWindow window;
  for (size_t i = 0; i + 1 < LossWindow::kLeast; ++i) EXPECT_FALSE(window.add(i == 5 ? 1e6 : 2.0));
  LossWindow other;
  for (int i = 0; i < 30; ++i) (void)other.add(wobble(i));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) EXPECT_FALSE(other.add(bad));
  EXPECT_FALSE(other.add(wobble(30)));
}

TEST(LossWindow, ALossThatStaysIsTheNewNormal) {
  LossWindow window;
  for (int i = 0; i < 40; ++i) (void)window.add(2.0 + 1e-9 * i);
  EXPECT_FALSE(window.add(2.05)) << "one per cent of the loss is not a spike, for steady losses too";
  int spikes = 0;
  for (int i = 0; i < 40; ++i) spikes += window.add(5.0).has_value();
  EXPECT_EQ(spikes, LossWindow::kPatience);
}

TEST(LossWindow, GoesOnFromItsState) {
  LossWindow whole, first, second;
  for (int i = 0; i < 150; ++i) {
    (void)whole.add(wobble(i));
    (void)first.add(wobble(i));
  }
  (void)whole.add(9.0);
  (void)first.add(9.0);
  second.restore(first.state());
  for (int i = 0; i < 20; ++i) {
    const double loss = i % 7 == 3 ? 8.0 + i : wobble(i);
    const auto a = whole.add(loss), b = second.add(loss);
    ASSERT_EQ(a.has_value(), b.has_value()) << i;
    if (a) {
      EXPECT_EQ(*a, *b);
    }
  }
  second.restore({});
  EXPECT_TRUE(second.state() == std::vector<double>{0});
}

/// The device decides before the host has read the previous step's loss, except after evaluations and saves.
TEST(LossWindow, TheLimitDoesNotDependOnWhenItIsAsked) {
  LossWindow window;
  int spikes = 0;
  for (int step = 1; step <= 400; ++step) {
    // Steady losses, single spikes, NaN, and a new level from step 300 on.
    double loss = wobble(step) + (step >= 300 ? 3.0 : 0.0);
    if (step % 37 == 0) loss = 50.0;
    if (step % 53 == 0) loss = std::nan("");
    LossWindow lagging = window;  // without the previous step's loss
    static LossWindow before;
    const auto early = step > 1 ? before.limit(/*last_added=*/false) : std::nullopt,
               late = window.limit(/*last_added=*/true);
    ASSERT_EQ(early.has_value(), late.has_value()) << step;
    if (late) {
      EXPECT_EQ(*early, *late) << step;
    }
    LossWindow resumed;
    resumed.restore(window.state());
    EXPECT_EQ(resumed.limit(true), late) << step;
    before = lagging;
    const bool spike = window.add(loss).has_value();
    EXPECT_EQ(spike, late && std::isfinite(loss) && loss > *late) << step;
    spikes += spike;
  }
  EXPECT_GT(spikes, LossWindow::kPatience);
  EXPECT_LT(spikes, 2 * LossWindow::kPatience + 10);
}

std::string times(double data, double forward) { return encode_section_times({{"data", data}, {"forward", forward}}); }
const std::vector<std::string> kHosts = {"a", "a", "b", "b"};

TEST(GpuVisibility, TheCpuIsNeverTakenInSilence) {
  const auto problem = [](const char* visible, int found, const char* reason = "") {
    return gpu_visibility_problem(visible, found, true, reason).value_or("");
  };
  EXPECT_TRUE(contains(problem(nullptr, 0, "system not yet initialized"),
                       "CUDA shows none of them (system not yet initialized)"));
  EXPECT_TRUE(contains(gpu_visibility_problem(nullptr, 0, true, "", /*job_without=*/true).value_or(""),
                       "none of them: the Slurm job asked for no GPU; give sbatch or salloc --gpus-per-node=N"));
  EXPECT_TRUE(contains(problem("7", 0, "no CUDA-capable device is detected"),
                       "CUDA_VISIBLE_DEVICES='7' names 1 GPU, and CUDA shows 0 (no CUDA"));
  EXPECT_TRUE(contains(problem("0,9,1", 1), "'0,9,1' names 3 GPUs, and CUDA shows 1: name each once"))
      << "CUDA stops at the first it lacks";
  EXPECT_NE(problem("all", 0), "");
  for (const char* hidden : {"", "-1", "NoDevFiles"}) EXPECT_EQ(problem(hidden, 0), "") << hidden;
  EXPECT_EQ(problem(nullptr, 8), "");
  EXPECT_EQ(problem("3,1", 2), "");
  EXPECT_EQ(problem("MIG-6d1f", 1), "");
  EXPECT_FALSE(gpu_visibility_problem(nullptr, 0, /*installed=*/false, "no driver"))
      << "a machine without GPUs runs on its CPU";
  EXPECT_FALSE(gpu_visibility_problem("NoDevFiles", 0, /*installed=*/false, "no driver"));
  const std::string asked = gpu_visibility_problem("0", 0, /*installed=*/false, "no driver").value_or("");
  EXPECT_TRUE(contains(asked, "CUDA_VISIBLE_DEVICES='0' names 1 GPU, and CUDA shows 0 (no driver)"));
}

TEST(CpuThreads, RanksOfAHostShareItsCores) {
  const auto threads = [](int online, int bound, double quota, int ranks) {
    return threads_of_rank({online, bound, quota}, ranks);
  };
  const double unlimited = std::numeric_limits<double>::infinity();
  EXPECT_EQ(threads(32, 32, unlimited, 1), 32);
  EXPECT_EQ(threads(32, 32, unlimited, 4), 8);
  EXPECT_EQ(threads(32, 8, unlimited, 4), 8) << "bound to a quarter each: not a quarter of that";
  EXPECT_EQ(threads(32, 16, unlimited, 4), 8) << "two ranks bound to a socket share it";
  EXPECT_EQ(threads(32, 1, unlimited, 2), 1);
  EXPECT_EQ(threads(2, 2, unlimited, 4), 1);
  EXPECT_EQ(threads(64, 64, 2.5, 1), 2) << "a container's share of the time";
  EXPECT_EQ(threads(64, 64, 4.0, 2), 2);
}

TEST(Stragglers, NamesRankSectionAndRatio) {
  const auto found =
      find_stragglers({times(0.01, 1.0), times(0.01, 1.1), times(2.01, 1.0), times(0.01, 0.9)}, kHosts, 10, 0.3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0],
            "rank 2 on b is slow in section data: 0.201 s a step, 201.0 times the others' 0.001 s; a step takes 0.3 s");
}

TEST(Stragglers, SmallAndCommonDelaysAreNone) {
  // Ten times slower than the others, but a small part of the step; all slow; a little slower than the others.
  EXPECT_TRUE(
      find_stragglers({times(0.1, 1), times(0.01, 1), times(0.01, 1), times(0.01, 1)}, kHosts, 10, 0.3).empty());
  EXPECT_TRUE(find_stragglers({times(2, 1), times(2, 1), times(2, 1), times(2, 1)}, kHosts, 10, 0.3).empty());
  EXPECT_TRUE(find_stragglers({times(0, 3.0), times(0, 1.6), times(0, 1.6), times(0, 1.6)}, kHosts, 10, 0.3).empty());
}

TEST(Stragglers, ASectionThatOnlyOneRankHas) {
  const auto found = find_stragglers({"", "save 10 ", "", ""}, kHosts, 10, 0.3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(contains(found[0], "rank 1 on a is slow in section save: 1 s a step, the others need none"));
}

TEST(Stragglers, ComparedAfterTenStepsThenEveryFifty) {
  std::vector<int64_t> due;
  for (int64_t step = 0; step <= 150; ++step)
    if (straggler_report_due(step)) due.push_back(step);
  EXPECT_EQ(due, (std::vector<int64_t>{10, 50, 100, 150}));
}

}  // namespace
}  // namespace trireme
