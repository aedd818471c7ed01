// The ring of collectives and the record that other ranks read.
#include "progress_ring.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace trireme {
namespace {

using std::chrono::milliseconds;

TEST(ProgressRing, CountsAndTellsWhereTheProcessStands) {
  ProgressRing ring;
  EXPECT_EQ(ring.view().position(), nullptr);
  const uint64_t first = ring.begin("all_gather", 12, "world"), second = ring.begin("all_reduce", 1024, "part");
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(second, 2u);
  // The host is not blocked: it reports the oldest unfinished collective.
  RankView view = ring.view();
  ASSERT_NE(view.position(), nullptr);
  EXPECT_EQ(view.position()->sequence, first);
  EXPECT_EQ(ring.longest_wait(), 0);
  ring.wait(second);
  view = ring.view();
  EXPECT_EQ(view.position()->name(), "#2 all_reduce[1024] on part");
  EXPECT_GE(view.position()->waiting_for, 0);
  EXPECT_EQ(view.unfinished()->sequence, first);
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_GT(ring.longest_wait(), 0.02);
  ring.end(second);
  EXPECT_EQ(ring.longest_wait(), 0);
  EXPECT_GT(ring.blocked_seconds(), 0.02);
  ring.end(first);
  view = ring.view();
  EXPECT_EQ(view.unfinished(), nullptr);
  EXPECT_EQ(view.position()->sequence, second);
  EXPECT_GE(view.position()->ended_ago, 0);
}

TEST(ProgressRing, OldEntriesMakeRoom) {
  ProgressRing ring;
  const uint64_t old = ring.begin("broadcast", 1, "world");
  for (int i = 0; i < 64; ++i) ring.end(ring.begin("barrier", 0, "world"));
  // #65 has replaced #1 in the ring: a late event of #1 changes nothing.
  ring.wait(old);
  EXPECT_EQ(ring.longest_wait(), 0);
  const RankView view = ring.view();
  EXPECT_EQ(view.position()->sequence, 65u);
  EXPECT_EQ(view.history.size(), 64u);
  EXPECT_EQ(view.history.front().sequence, 2u);
}

TEST(ProgressRing, StepsAndSections) {
  ProgressRing ring;
  for (int step = 1; step <= 4; ++step) {
    ring.begin_step(step);
    std::this_thread::sleep_for(milliseconds(20));
  }
  ring.set_section("save", 1.0, 30);
  const RankView view = ring.view();
  EXPECT_EQ(view.step, 4);
  EXPECT_GT(view.step_seconds, 0.015);
  EXPECT_LT(view.step_seconds, 2);
  EXPECT_EQ(view.section, "save");
  EXPECT_EQ(view.section_allowance, 30);
}

TEST(ProgressRing, SectionTimesLeaveOutTheWaiting) {
  (void)take_section_times();
  {
    const ProgressSection data("data");
    std::this_thread::sleep_for(milliseconds(30));
  }
  {
    const ProgressSection backward("backward");
    ProgressRing& ring = ProgressRing::instance();
    const uint64_t sequence = ring.begin("all_reduce", 8, "world");
    ring.wait(sequence);
    std::this_thread::sleep_for(milliseconds(50));
    ring.end(sequence);
  }
  double data = -1, backward = -1;
  for (const SectionTime& time : take_section_times()) {
    if (time.name == "data") data = time.seconds;
    if (time.name == "backward") backward = time.seconds;
  }
  EXPECT_GT(data, 0.025);
  EXPECT_LT(backward, 0.03);
  EXPECT_GE(backward, 0);
  EXPECT_TRUE(take_section_times().empty());
}

TEST(ProgressRing, AResumedHostIsNotBlockedOnWhatGoesOn) {
  ProgressRing ring;
  const uint64_t sequence = ring.begin("all_reduce", 8, "world");
  ring.wait(sequence);
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_GT(ring.longest_wait(), 0.02);
  EXPECT_GE(ring.view().position()->waiting_for, 0);
  ring.resume(sequence);
  EXPECT_EQ(ring.longest_wait(), 0);
  EXPECT_GT(ring.blocked_seconds(), 0.02);
  RankView view = ring.view();
  ASSERT_NE(view.unfinished(), nullptr);
  EXPECT_LT(view.unfinished()->waiting_for, 0);
  const double blocked = ring.blocked_seconds();
  ring.end(sequence);
  EXPECT_EQ(ring.blocked_seconds(), blocked) << "the time of a collective that the host does not wait for";
  ring.resume(sequence);  // late
  EXPECT_EQ(ring.view().unfinished(), nullptr);
}

TEST(RankRecord, AViewSurvivesItsText) {
  ProgressRing ring;
  ring.set_rank(3);
  ring.begin_step(7);
  ring.set_section(SectionName("index-maps").text, 1, 1800);
  ring.end(ring.begin("all_gather_host", 5, "world"));
  ring.wait(ring.begin("reduce_scatter", 77, "part"));
  RankView view = ring.view(), back;
  view.host = "node7";
  ASSERT_TRUE(decode(encode(view), back));
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.host, "node7");
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.section, "index-maps");
  EXPECT_EQ(back.section_allowance, 1800);
  EXPECT_EQ(back.history.size(), 2u);
  EXPECT_EQ(back.position()->name(), "#2 reduce_scatter[77] on part");
  EXPECT_EQ(back.last_begun(), 2u);
  for (const char* broken : {"", "3", "x y z", "3 h 1 0 0 7 0 0 - 0 0 9999", "3 h 1 0 0 7 0 0 - 0 0 2 1 1 a b 0 0 0"})
    EXPECT_FALSE(decode(broken, back)) << broken;
}

TEST(RankRecord, NoneIsDeadForAProcessWithoutFreeFileDescriptors) {
  ProgressRing ring;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const RankView view = ring.view();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(view.dead);
}

/// The record of a stopped, then dead process can still be read by another process.
TEST(RankRecord, IsReadableWhenItsProcessIsNot) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto* ring = new ProgressRing;
    ring->wait(ring->begin("all_reduce", 1024, "world"));
    const uint64_t words[2] = {static_cast<uint64_t>(ring->record_fd()), ring->record_token()};
    (void)!write(pipe_ends[1], words, sizeof words);
    for (;;) pause();
  }
  uint64_t words[2] = {};
  ASSERT_EQ(read(pipe_ends[0], words, sizeof words), static_cast<ssize_t>(sizeof words));
  EXPECT_EQ(map_record(child, static_cast<int>(words[0]), words[1] + 1), nullptr) << "a stranger's token";
  const RankRecord* record = map_record(child, static_cast<int>(words[0]), words[1]);
  ASSERT_NE(record, nullptr);
  EXPECT_FALSE(view_of(*record, 0).stopped);
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_TRUE(view_of(*record, 0).stopped);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  const RankView view = view_of(*record, 0);
  EXPECT_TRUE(view.dead);
  EXPECT_EQ(view.position()->name(), "#1 all_reduce[1024] on world");
}

}  // namespace
}  // namespace trireme
