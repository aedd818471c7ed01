#include "trireme/base/fault.h"
#include "trireme/base/error.h"
#include "trireme/base/time.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace trireme {
namespace {

// The variable is read once per process: every case runs in a child.
class FaultDeathTest : public testing::Test {
 protected:
  FaultDeathTest() { GTEST_FLAG_SET(death_test_style, "fast"); }
};

int outcome(const char* faults, const char* point, int rank, int64_t step) {
  setenv("TRIREME_FAULT", faults, 1);
  try {
    check_fault_specifications();
    return fault_point(point, rank, step) ? 1 : 0;
  } catch (const ConfigError&) {
    return 2;
  } catch (const InternalError&) {
    return 70;
  }
}

TEST_F(FaultDeathTest, ActsOnlyWhereAsked) {
  EXPECT_EXIT(std::exit(outcome("sigkill@rank1:step7", "step", 1, 7)), testing::KilledBySignal(SIGKILL),
              "fault injected");
  EXPECT_EXIT(std::exit(outcome("sigkill@rank1:step7", "step", 0, 7)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(outcome("sigkill@rank1:step7", "step", 1, 6)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(outcome("sigkill@rank1:step7", "save:write", 1, 7)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(outcome("fail@save:write", "save:write", 3, -1)), testing::ExitedWithCode(70), "");
  EXPECT_EXIT(std::exit(outcome("sleep@a:10ms,nan@b", "b", 0, 0)), testing::ExitedWithCode(2), "");
  EXPECT_EXIT(std::exit(outcome("sleep@a:0.01s,nan@b:rank2", "b", 2, 0)), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(std::exit(outcome("", "step", 0, 0)), testing::ExitedWithCode(0), "");
}

TEST_F(FaultDeathTest, SleepsAndCounts) {
  EXPECT_EXIT(
      {
        setenv("TRIREME_FAULT", "sleep@save:write:0.2s:x1", 1);
        const double begin = steady_seconds();
        fault_point("save:write");
        const double slept = steady_seconds() - begin;
        fault_point("save:write");
        const double again = steady_seconds() - begin - slept;
        std::exit(slept >= 0.2 && again < 0.1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(FaultDeathTest, SetGivesAValueOnItsRankAlone) {
  EXPECT_EXIT(
      {
        setenv("TRIREME_FAULT", "set:2.5e6@device-memory:rank1", 1);
        const bool right = fault_value("device-memory", 1) == 2.5e6 && !fault_value("device-memory", 0) &&
                           !fault_value("step", 1) && !fault_point("device-memory", 1);
        std::exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(FaultDeathTest, RefusesWhatItCannotRead) {
  for (const char* bad : {"explode@step7", "sleep@save:write", "sleep:abc@x", "set:@x", "fail@a::b", "nan@"})
    EXPECT_EXIT(std::exit(outcome(bad, "none", 0, 0)), testing::ExitedWithCode(2), "") << bad;
}

}  // namespace
}  // namespace trireme
