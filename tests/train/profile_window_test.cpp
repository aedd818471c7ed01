// Outside its window a profile leaves nothing in the way of a step.
#include "../base/base_testing.h"
#include "profiler.h"
#include "trireme/base/profile_range.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>
#include <string>

namespace trireme {
namespace {

/// What the operations of a step pay for: callbacks of LibTorch's profiler, and ranges.
bool records() {
  return at::hasCallbacks() || torch::autograd::profiler::isProfilerEnabledInMainThread() || ranges_recorded();
}

TEST(ProfileWindow, OnlyActiveStepsHaveCallbacksAndRanges) {
  const TemporaryDirectory folder;
  const auto world = World::join(Launch{}, /*use_gpu=*/false, nullptr);
  const bool before = at::hasCallbacks();
  ASSERT_FALSE(before) << "LibTorch itself has callbacks: the test sees nothing";
  Config config;
  config.train.max_steps = 10;
  for (const bool memory : {false, true}) {
    config.profile.emplace();
    *config.profile = {.wait = 1, .warmup = 1, .active = 2, .repeat = 2, .memory = memory};
    const auto profiler = Profiler::make(config, *world, folder.root(), /*completed=*/0);
    ASSERT_NE(profiler, nullptr);
    std::string active;
    for (int64_t step = 1; step <= 10; ++step) {
      profiler->before_step(step);
      active += records() ? 'x' : '.';
      profiler->after_step(step);
      EXPECT_EQ(records(), step == 3 || step == 7) << "after step " << step;
    }
    EXPECT_EQ(active, "..xx..xx..");
    profiler->finish();
  }
  // Ranks that record nothing, and runs without a profile.
  config.profile->ranks = {1};
  const auto other = Profiler::make(config, *world, folder.root(), 0);
  for (int64_t step = 1; step <= 4; ++step) {
    other->before_step(step);
    EXPECT_FALSE(records()) << step;
    other->after_step(step);
  }
  config.profile.reset();
  EXPECT_EQ(Profiler::make(config, *world, folder.root(), 0), nullptr);
}

}  // namespace
}  // namespace trireme
