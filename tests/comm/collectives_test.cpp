// Which events the observer receives, and when.
#include "collectives.h"

#include "../base/base_testing.h"
#include "trireme/base/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace trireme {
namespace {

struct Recorder final : CollectiveObserver {
  std::vector<std::string> events;
  uint64_t next = 7;
  uint64_t begin(const char* kind, int64_t elements, const char* group) override {
    events.push_back("begin " + std::string(kind) + "[" + std::to_string(elements) + "] on " + group);
    return next++;
  }
  void wait(uint64_t sequence) override { events.push_back("wait " + std::to_string(sequence)); }
  void resume(uint64_t sequence) override { events.push_back("resume " + std::to_string(sequence)); }
  void end(uint64_t sequence) override { events.push_back("end " + std::to_string(sequence)); }
};

class Collectives : public testing::Test {
 protected:
  // The process keeps its observer until it ends.
  static Recorder& recorder() {
    static auto* recorder = new Recorder;
    set_collective_observer(*recorder);
    return *recorder;
  }
  void SetUp() override {
    recorder().events.clear();
    recorder().next = 7;
  }
  using Events = std::vector<std::string>;
};

/// NCCL's first call on a group waits for the peers before it queues anything: the watchdog must see that wait.
TEST_F(Collectives, TheHostWaitsWhileACollectiveIsLaunched) {
  const std::string work = launch_collective("all_reduce", 8, "world", [&](uint64_t sequence) {
    recorder().events.push_back("launch " + std::to_string(sequence));
    return std::string("work");
  });
  EXPECT_EQ(work, "work");
  EXPECT_EQ(recorder().events, (Events{"begin all_reduce[8] on world", "wait 7", "launch 7", "resume 7"}));
}

TEST_F(Collectives, AHostThatBlocksUntilTheEnd) {
  block_in_collective("barrier", 0, "part", [&] { recorder().events.push_back("call"); });
  EXPECT_EQ(recorder().events, (Events{"begin barrier[0] on part", "wait 7", "call", "end 7"}));
}

TEST_F(Collectives, OneThatThrowsStaysOpen) {
  EXPECT_THROW(block_in_collective("barrier", 0, "world", [] { throw std::runtime_error("lost"); }),
               std::runtime_error);
  EXPECT_EQ(recorder().events, (Events{"begin barrier[0] on world", "wait 7"}));
}

TEST_F(Collectives, EveryBuildIsNamedWithItsHosts) {
  const auto check = [](const std::string& commit, bool differ) {
    check_same_checking(
        [&](const std::string& text) {
          const std::string other = text.substr(0, 1) + "node2\n" + text.substr(text.find('\n') + 1);
          return std::vector<std::string>{text, text, differ ? other + "1" : other, differ ? other + "1" : other, text};
        },
        commit);
  };
  check("0123456789ab", false);
  check("0123456789ab-dirty", false);
  EXPECT_EQ(message_of<ConfigError>([&] { check("0123456789ab", true); }),
            fmt::format("rank 0 on {0}, rank 4 on {0} run build 0123456789ab; rank 2 on node2 runs build "
                        "0123456789ab1: give every host the same program",
                        host_name()));
  // Changed files have no commit of their own.
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { check("0123456789ab-dirty", true); }), "-dirty (hash "));
}

TEST_F(Collectives, DifferentOnesAreNamedWithTheirRanks) {
  check_same_collective({"all_reduce[8] on world", "all_reduce[8] on world"}, 3);
  const std::string text = message_of<InternalError>(
      [] { check_same_collective({"all_reduce[8] on world", "barrier[0] on world", "all_reduce[8] on world"}, 3); });
  EXPECT_TRUE(contains(text, "different collectives at #3"));
  EXPECT_TRUE(contains(text, "rank 0, 2 at all_reduce[8] on world"));
  EXPECT_TRUE(contains(text, "rank 1 at barrier[0] on world"));
}

}  // namespace
}  // namespace trireme
