// Ranks that die, hang or issue different collectives, without MPI: processes of this test that join through the key
// store, as GPU ranks do under `srun --mpi=none`. And the hang report as a function of the ranks' views.
#include "rank_watch.h"
#include "../base/base_testing.h"
#include "../comm/reserved_port.h"
#include "hang_report.h"
#include "progress_ring.h"
#include "store_world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace trireme {
namespace {

using std::chrono::milliseconds;

// --- the report ----------------------------------------------------------------------------------

RankView view(int rank, const std::vector<std::pair<const char*, int64_t>>& collectives, bool waits_for_last) {
  RankView v;
  v.rank = rank;
  v.host = "node" + std::to_string(rank / 2);
  v.answered = true;
  v.step = 7;
  for (size_t i = 0; i < collectives.size(); ++i) {
    RankView::Collective entry;
    entry.sequence = i + 1;
    entry.kind = collectives[i].first;
    entry.elements = collectives[i].second;
    entry.group = "world";
    const bool last = i + 1 == collectives.size();
    if (last && waits_for_last)
      entry.waiting_for = 61;
    else
      entry.ended_ago = 62;
    v.history.push_back(entry);
  }
  return v;
}

const std::vector<std::pair<const char*, int64_t>> kTwo = {{"all_gather", 8}, {"all_reduce", 1024}};
const std::vector<std::pair<const char*, int64_t>> kOne = {{"all_gather", 8}};

TEST(HangReport, NamesTheRankThatNeverCame) {
  std::vector<RankView> views = {view(0, kTwo, true), view(1, kOne, false), view(2, kTwo, true), view(3, kTwo, true)};
  views[1].section = "data";
  views[1].section_for = 61;
  const HangReport report = analyse(views);
  EXPECT_EQ(report.sentence,
            "rank 1 on node0 never reached #2 all_reduce[1024] on world (step 7, section data since 61 s)");
  EXPECT_EQ(report.responsible, std::vector<int>{1});
  EXPECT_FALSE(report.excused);
  EXPECT_TRUE(
      contains(report.positions, "rank 1 on node0: step 7, data, last finished #1 all_gather[8] on world, 62 s"));
  EXPECT_TRUE(
      contains(report.positions, "ranks 0, 2-3 on 2 hosts: step 7, waiting in #2 all_reduce[1024] on world, 61 s"));
}

TEST(HangReport, GivesSlowStorageItsTime) {
  std::vector<RankView> views = {view(0, kOne, false), view(1, kTwo, true)};
  views[0].section = "save";
  views[0].section_for = 61;
  views[0].section_allowance = 1800;
  EXPECT_TRUE(analyse(views).excused);
  views[0].stopped = true;
  EXPECT_FALSE(analyse(views).excused) << "a stopped process writes nothing";
  views[0].stopped = false;
  views[0].section_for = 1801;
  EXPECT_FALSE(analyse(views).excused);
}

TEST(HangReport, LooksBehindACollectiveThatWasBegunAhead) {
  std::vector<RankView> views = {view(0, kOne, false), view(1, kTwo, true)};
  for (RankView& each : views) each.history[0].ended_ago = -1;
  views[0].section = "metrics";
  views[0].section_for = 61;
  views[0].section_allowance = 1800;
  const HangReport report = analyse(views);
  EXPECT_EQ(report.sentence,
            "rank 0 on node0 never reached #2 all_reduce[1024] on world (step 7, section metrics since 61 s)");
  EXPECT_TRUE(report.excused);
}

TEST(HangReport, NamesDifferentCollectives) {
  const std::vector<std::pair<const char*, int64_t>> others = {
      {"all_gather", 8}, {"all_gather", 77}, {"all_reduce", 1024}};
  std::vector<RankView> views = {view(0, others, true), view(1, kTwo, true), view(2, others, true)};
  const HangReport report = analyse(views);
  EXPECT_EQ(report.sentence,
            "rank 1 on node0 at #2 all_reduce[1024] on world, others at #2 all_gather[77] on world and by now at #3: "
            "the ranks issue different collectives since #2");
  EXPECT_EQ(report.responsible, std::vector<int>{1});
}

TEST(HangReport, HostValuesMayDifferInLength) {
  std::vector<RankView> views = {view(0, {{"all_gather_host", 5}, {"barrier", 0}}, true),
                                 view(1, {{"all_gather_host", 9}, {"barrier", 0}}, true)};
  EXPECT_EQ(find_desync(views), "");
  EXPECT_TRUE(contains(analyse(views).sentence, "every rank reached #2 barrier[0] on world"));
}

TEST(HangReport, SilentAndUnreachable) {
  std::vector<RankView> views = {view(0, kTwo, true), view(1, kTwo, true), view(2, kTwo, true)};
  views[1].stopped = true;
  EXPECT_EQ(analyse(views).sentence.substr(0, 53), "rank 1 on node0 stopped inside #2 all_reduce[1024] on");
  views[1].stopped = false;
  views[2].answered = false;
  views[2].history.clear();
  EXPECT_TRUE(contains(analyse(views).sentence, "rank 2 on node1 did not answer"));
}

TEST(HangReport, AStoppedRankHasFinishedWhatOthersHave) {
  // GPU collectives in the record of a process that was stopped before it queried the events: begun, not ended.
  std::vector<RankView> views = {view(0, {{"all_gather", 8}, {"all_reduce", 1024}, {"all_reduce", 1024}}, true),
                                 view(1, kTwo, false)};
  for (auto& entry : views[1].history) entry.ended_ago = -1;
  views[1].stopped = true;
  EXPECT_EQ(analyse(views).sentence, "rank 1 on node0 never reached #3 all_reduce[1024] on world (step 7, stopped)");
  EXPECT_EQ(analyse(views).responsible, std::vector<int>{1});
  // A collective that no rank has finished is its position; for a rank that runs, its own record is valid.
  views[0] = view(0, kTwo, true);
  EXPECT_TRUE(contains(analyse(views).sentence, "rank 1 on node0 stopped inside #2 all_reduce[1024] on world"));
}

// --- processes -----------------------------------------------------------------------------------

/// One rank of a job: steps of two collectives each.
struct Rank {
  std::unique_ptr<StoreWorld> store;
  std::unique_ptr<HostExchange> exchange;
  std::unique_ptr<RankWatch> watch;
  int rank = 0;

  void collective(const char* kind, int64_t elements) {
    ProgressRing& ring = ProgressRing::instance();
    const uint64_t sequence = ring.begin(kind, elements, "world");
    ring.wait(sequence);
    (void)exchange->all_gather("x");
    ring.end(sequence);
  }
  void step(int64_t number) {
    begin_progress_step(number);
    collective("all_gather", 8);
    collective("all_reduce", 1024);
  }
};

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  double seconds = 0;
  std::string text;
};

/// Less than a sleeper sleeps and than ranks that nobody ends are waited for, and more than a busy machine takes.
constexpr double kAtOnce = 24;

/// Runs `body` in `size` processes; seconds are measured from their start. Without a hang the limit is one that a busy
/// machine does not reach.
std::vector<Outcome> run_ranks(int size, const std::function<void(Rank&)>& body, const char* hang_seconds = "30",
                               const RankWatch::Hooks& hooks = {}) {
  const ReservedPort port;
  char directory[] = "/tmp/trireme-rank-watch-XXXXXX";
  EXPECT_NE(mkdtemp(directory), nullptr);
  std::vector<pid_t> children;
  const auto begin = std::chrono::steady_clock::now();
  for (int r = 0; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      const int out =
          open((std::string(directory) + "/" + std::to_string(r)).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      dup2(out, 2);
      setenv("TRIREME_HANG_SECONDS", hang_seconds, 1);
      int code = 0;
      try {
        Launch launch;
        launch.kind = Launch::Kind::kEnvironment;
        launch.rank = launch.local_rank = r;
        launch.world_size = launch.local_world_size = size;
        launch.master_address = "127.0.0.1";
        launch.master_port = port;
        Rank rank;
        rank.rank = r;
        rank.store = join_store(launch);
        rank.exchange = rank.store->exchange();
        rank.watch = std::make_unique<RankWatch>(
            r, size, [&](const std::string& text) { return rank.exchange->all_gather(text); }, hooks);
        rank.store->watched();
        try {
          body(rank);
          rank.collective("barrier", 0);
          rank.watch->leave();
          rank.watch.reset();
          rank.store->leave();
        } catch (const std::exception& error) {
          rank.watch->fail(error.what(), 70);
        }
      } catch (const std::exception& error) {
        dprintf(2, "%s\n", error.what());
        code = 9;
      }
      _exit(code);
    }
    children.push_back(child);
  }
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  int left = size;
  for (int i = 0; i < 3000 && left > 0; ++i) {
    for (int r = 0; r < size; ++r) {
      int status = 0;
      if (outcomes[static_cast<size_t>(r)].code >= 0 ||
          waitpid(children[static_cast<size_t>(r)], &status, WNOHANG) <= 0)
        continue;
      outcomes[static_cast<size_t>(r)].code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      outcomes[static_cast<size_t>(r)].seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      --left;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (int r = 0; r < size; ++r) {
    if (outcomes[static_cast<size_t>(r)].code < 0) {
      kill(children[static_cast<size_t>(r)], SIGKILL);
      waitpid(children[static_cast<size_t>(r)], nullptr, 0);
    }
    const std::string path = std::string(directory) + "/" + std::to_string(r);
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    outcomes[static_cast<size_t>(r)].text = text.str();
    unlink(path.c_str());
  }
  rmdir(directory);
  return outcomes;
}

std::string all_text(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (size_t r = 0; r < outcomes.size(); ++r)
    text += "rank " + std::to_string(r) + " code " + std::to_string(outcomes[r].code) + " after " +
            std::to_string(outcomes[r].seconds) + " s\n" + outcomes[r].text;
  return text;
}

TEST(RankWatch, OrderlyEnd) {
  for (const Outcome& outcome : run_ranks(4, [](Rank& rank) {
         for (int step = 1; step <= 3; ++step) rank.step(step);
       })) {
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    EXPECT_EQ(outcome.text, "");
  }
}

/// Rank 0 serves the rendezvous store: when it dies, the others lose the exchange at the same time.
TEST(RankWatch, ADeadRankTakesAllWithIt) {
  for (const int dead : {0, 1, 3}) {
    const auto outcomes = run_ranks(4, [dead](Rank& rank) {
      for (int step = 1; step <= 5; ++step) {
        if (step == 3 && rank.rank == dead) raise(SIGKILL);
        rank.step(step);
      }
    });
    bool named = false;
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(outcomes[static_cast<size_t>(r)].code, r == dead ? 137 : 71) << all_text(outcomes);
      EXPECT_LT(outcomes[static_cast<size_t>(r)].seconds, kAtOnce);
      named = named ||
              outcomes[static_cast<size_t>(r)].text.find("rank " + std::to_string(dead) + " on ") != std::string::npos;
    }
    EXPECT_TRUE(named) << all_text(outcomes);
    EXPECT_TRUE(contains(all_text(outcomes), "died in step 2"));
  }
}

/// The continued rank takes part in the next collectives until it has read the failure: so many steps are left that no
/// rank comes to its orderly end before.
TEST(RankWatch, AStoppedRankIsNamedAndEnded) {
  const auto outcomes = run_ranks(
      4,
      [](Rank& rank) {
        for (int step = 1; step <= 100'000; ++step) {
          if (step == 3 && rank.rank == 2) raise(SIGSTOP);
          rank.step(step);
        }
      },
      "2");
  const std::string text = all_text(outcomes);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(outcomes[static_cast<size_t>(r)].code, 71) << text;
    EXPECT_LT(outcomes[static_cast<size_t>(r)].seconds, kAtOnce) << text;
  }
  EXPECT_TRUE(contains(text, "rank 2 on"));
  EXPECT_TRUE(contains(text, "never reached #5 all_gather[8] on world (step 2, stopped)"));
  EXPECT_TRUE(contains(text, "ranks 0-1, 3 on"));
}

TEST(RankWatch, ASleepingRankIsNamed) {
  const auto outcomes = run_ranks(
      3,
      [](Rank& rank) {
        for (int step = 1; step <= 5; ++step) {
          begin_progress_step(step);
          if (step == 3 && rank.rank == 0) {
            const ProgressSection section("data");
            std::this_thread::sleep_for(std::chrono::seconds(25));
          }
          rank.collective("all_reduce", 1024);
        }
      },
      "2");
  const std::string text = all_text(outcomes);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, 71) << text;
  EXPECT_LT(outcomes[0].seconds, kAtOnce) << "the sleeper goes too";
  EXPECT_TRUE(contains(text, "never reached #3 all_reduce[1024] on world (step 3, section data"));
}

/// The device waits beyond the limit at the first look, and not at the second.
TEST(RankWatch, AHangThatEndsDuringTheQuestionsIsNone) {
  RankWatch::Hooks hooks;
  hooks.device_wait = [looks = 0]() mutable { return looks++ == 0 ? 100.0 : 0.0; };
  const auto outcomes = run_ranks(
      2,
      [](Rank& rank) {
        rank.step(1);
        std::this_thread::sleep_for(std::chrono::seconds(4));
        rank.step(2);
      },
      "30", hooks);
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, 0) << all_text(outcomes);
}

TEST(RankWatch, DifferentCollectivesAreNamed) {
  const auto outcomes = run_ranks(
      3,
      [](Rank& rank) {
        for (int step = 1; step <= 5; ++step) {
          begin_progress_step(step);
          if (step != 3 || rank.rank != 1) rank.collective("all_gather", 8);
          rank.collective("all_reduce", 1024);
        }
      },
      "2");
  const std::string text = all_text(outcomes);
  // Rank 1 is one collective ahead of its peers and ends; they detect that it is missing.
  EXPECT_EQ(outcomes[0].code, 71) << text;
  EXPECT_EQ(outcomes[2].code, 71) << text;
  EXPECT_TRUE(contains(text, "at #5 all_reduce[1024] on world, others at #5 all_gather[8] on world"));
}

TEST(RankWatch, AFailureCarriesItsCodeAndReason) {
  const auto outcomes = run_ranks(4, [](Rank& rank) {
    for (int step = 1; step <= 5; ++step) {
      if (step == 3 && rank.rank == 2) rank.watch->fail("the data are damaged", 3);
      rank.step(step);
    }
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, 3) << all_text(outcomes);
  EXPECT_TRUE(contains(outcomes[0].text, "ending because rank 2 on")) << all_text(outcomes);
  EXPECT_TRUE(contains(outcomes[2].text, "the data are damaged"));
}

TEST(RankWatch, ASectionWithAnAllowanceIsWaitedFor) {
  const auto outcomes = run_ranks(
      2,
      [](Rank& rank) {
        rank.step(1);
        if (rank.rank == 0) {
          const ProgressSection save("save", 60);
          std::this_thread::sleep_for(std::chrono::seconds(5));
        }
        rank.step(2);
      },
      "2");
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.code, 0) << all_text(outcomes);
  EXPECT_TRUE(contains(all_text(outcomes), "it is given more time"));
}

}  // namespace
}  // namespace trireme
