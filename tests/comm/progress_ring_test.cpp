// The ring of collectives and the watchdog that ends a stuck process.
#include "progress_ring.h"

#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace trireme {
namespace {

TEST(ProgressRing, CountsAndTellsWhereTheProcessStands) {
  ProgressRing ring;
  EXPECT_EQ(ring.position().text, "before the first collective");
  const uint64_t first = ring.begin("all_gather", 12, "world"), second = ring.begin("all_reduce", 1024, "part");
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(second, 2u);
  // Nothing is waited for: the oldest unfinished one.
  EXPECT_EQ(ring.position().sequence, first);
  EXPECT_EQ(ring.longest_wait(), 0);
  ring.wait(second);
  EXPECT_EQ(ring.position().sequence, second);
  EXPECT_EQ(ring.position().text, "#2 all_reduce[1024] on part, waiting for 0 s");
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GT(ring.longest_wait(), 0.02);
  ring.end(second);
  EXPECT_EQ(ring.longest_wait(), 0);
  ring.end(first);
  EXPECT_EQ(ring.position().text, "#2 all_reduce[1024] on part, finished 0 s ago, none since");
}

TEST(ProgressRing, OldEntriesMakeRoom) {
  ProgressRing ring;
  const uint64_t old = ring.begin("broadcast", 1, "world");
  for (int i = 0; i < 64; ++i) ring.end(ring.begin("barrier", 0, "world"));
  // The place of #1 belongs to #65 now: late news of #1 changes nothing.
  ring.wait(old);
  EXPECT_EQ(ring.longest_wait(), 0);
  EXPECT_EQ(ring.position().sequence, 65u);
}

class WatchdogDeath : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    setenv("TRIREME_HANG_SECONDS", "0.5", 1);
  }
  void TearDown() override { unsetenv("TRIREME_HANG_SECONDS"); }
};

TEST_F(WatchdogDeath, EndsAStuckProcessWith71) {
  EXPECT_EXIT(
      {
        const Watchdog watchdog(3, {});
        ProgressRing& ring = ProgressRing::instance();
        ring.wait(ring.begin("all_reduce", 1024, "world"));
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kHang)), "rank 3 on .*#1 all_reduce.1024. on world, waiting.*TRIREME_HANG_SECONDS");
}

TEST_F(WatchdogDeath, EndsAProcessWhoseGpuIsStuckAndAsksTheOthers) {
  EXPECT_EXIT(
      {
        const Watchdog watchdog(0, {.poll = {}, .device_wait = [] { return 1.0; }, .ask_others = [] { return "rank 1: elsewhere\n"; }});
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kHang)), "rank 1: elsewhere");
}

TEST_F(WatchdogDeath, LetsAWorkingProcessGoOn) {
  EXPECT_EXIT(
      {
        int polls = 0;
        {
          const Watchdog watchdog(0, {.poll = [&] { ++polls; }, .device_wait = {}, .ask_others = {}});
          ProgressRing& ring = ProgressRing::instance();
          (void)ring.begin("all_gather", 8, "world");  // under way, but nobody waits
          for (int i = 0; i < 25; ++i) {
            const uint64_t sequence = ring.begin("all_reduce", 8, "world");
            ring.wait(sequence);
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            ring.end(sequence);
          }
        }
        std::_Exit(polls >= 2 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(WatchdogDeath, ABadLimitIsAConfigError) {
  setenv("TRIREME_HANG_SECONDS", "soon", 1);
  EXPECT_THROW(Watchdog(0, {}), ConfigError);
}

}  // namespace
}  // namespace trireme
