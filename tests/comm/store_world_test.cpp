// Rendezvous and host-side exchange through the key store: the ranks are threads of this process, each with its own
// connection.
#include "store_world.h"

#include "../base/base_testing.h"
#include "reserved_port.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <vector>

namespace trireme {
namespace {

/// A port that somebody else listens at.
struct TakenPort : ReservedPort {
  TakenPort() { EXPECT_EQ(listen(fd, 4), 0); }
};

Launch launch_of(int rank, int size, int port) {
  Launch launch;
  launch.kind = Launch::Kind::kEnvironment;
  launch.rank = rank;
  launch.world_size = size;
  launch.master_address = "127.0.0.1";
  launch.master_port = port;
  return launch;
}

/// Runs `body` on one thread per rank; returns each thread's exception message, or "".
std::vector<std::string> on_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::future<std::string>> results;
  for (int rank = 0; rank < size; ++rank)
    results.push_back(std::async(std::launch::async, [rank, &body]() -> std::string {
      try {
        body(rank);
        return "";
      } catch (const ConfigError& error) {
        return error.what();
      } catch (const Error& error) {
        return std::string(error.code() == ExitCode::kHang ? "71: " : "another error: ") + error.what();
      } catch (const std::exception& error) {
        return std::string("not a ConfigError: ") + error.what();
      }
    }));
  std::vector<std::string> texts;
  for (auto& result : results) texts.push_back(result.get());
  return texts;
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  EXPECT_FALSE(text.starts_with("not a ConfigError") || text.starts_with("another error")) << text;
  for (const std::string& word : words) EXPECT_TRUE(contains(text, word));
}

class StoreWorldTest : public testing::Test {
 protected:
  void limit(const char* seconds) { setenv("TRIREME_RENDEZVOUS_SECONDS", seconds, 1); }
  void TearDown() override { unsetenv("TRIREME_RENDEZVOUS_SECONDS"); }
};

TEST_F(StoreWorldTest, GathersInRankOrderManyTimes) {
  constexpr int kRanks = 4;
  const ReservedPort port;
  const auto errors = on_ranks(kRanks, [&](int rank) {
    const auto world = join_store(launch_of(rank, kRanks, port));
    const auto exchange = world->exchange();
    for (int round = 0; round < 30; ++round) {
      // Lengths differ by rank; the empty value and NUL bytes are values too.
      const auto all =
          exchange->all_gather(std::string(static_cast<size_t>(rank), '\0') + (rank == 0 ? "" : std::to_string(round)));
      ASSERT_EQ(all.size(), static_cast<size_t>(kRanks));
      for (int peer = 1; peer < kRanks; ++peer)
        ASSERT_EQ(all[peer], std::string(static_cast<size_t>(peer), '\0') + std::to_string(round));
      ASSERT_EQ(all[0], "");
    }
    world->leave();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_F(StoreWorldTest, PartsExchangeAmongThemselves) {
  constexpr int kRanks = 5;
  const ReservedPort port;
  const auto errors = on_ranks(kRanks, [&](int rank) {
    const auto world = join_store(launch_of(rank, kRanks, port));
    const auto exchange = world->exchange();
    const auto part = exchange->split(rank % 2);
    const auto again = part->split(0);
    ASSERT_EQ(part->rank(), rank / 2);
    ASSERT_EQ(part->size(), rank % 2 == 0 ? 3 : 2);
    for (int round = 0; round < 5; ++round) {
      const auto all = part->all_gather(std::to_string(rank + 10 * round));
      for (int i = 0; i < part->size(); ++i) ASSERT_EQ(all[i], std::to_string(2 * i + rank % 2 + 10 * round));
      ASSERT_EQ(again->all_gather("x").size(), static_cast<size_t>(part->size()));
    }
    world->leave();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST_F(StoreWorldTest, ALostRankZeroIsNamed) {
  const ReservedPort port;
  const auto errors = on_ranks(2, [&](int rank) {
    const auto world = join_store(launch_of(rank, 2, port));
    const auto exchange = world->exchange();
    // After this both ranks have left the rendezvous, whose own message for a lost store is another one.
    (void)exchange->all_gather("both are here");
    if (rank == 0) return;  // its store is destroyed during the other rank's exchange
    try {
      (void)exchange->all_gather("x");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kHang);
      throw ConfigError(error.what());
    }
  });
  EXPECT_EQ(errors[0], "");
  expect_words(errors[1], {"rank 0", "127.0.0.1:" + std::to_string(port), "is lost", "run again"});
  EXPECT_EQ(errors[1].find('\n'), std::string::npos) << errors[1];
}

TEST_F(StoreWorldTest, AbsentRanksAreNamed) {
  limit("1.5");
  const ReservedPort port;
  const auto start = std::chrono::steady_clock::now();
  // Of four ranks, 1 and 3 never start.
  const auto errors = on_ranks(2, [&](int thread) { join_store(launch_of(thread * 2, 4, port)); });
  expect_words(errors[0],
               {"71: ", "ranks 1, 3 of 4", "TRIREME_RENDEZVOUS_SECONDS", "127.0.0.1:" + std::to_string(port)});
  expect_words(errors[1], {"71: rank 2", "ranks 1, 3 of 4"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(StoreWorldTest, AnAbsentRankZeroIsNamed) {
  limit("1");
  const ReservedPort port;
  expect_words(on_ranks(1, [&](int) { join_store(launch_of(1, 2, port)); })[0],
               {"rank 1 cannot reach rank 0", "MASTER_ADDR"});
}

TEST_F(StoreWorldTest, ATakenPortIsExplained) {
  limit("2");
  const TakenPort taken;
  const std::string error = on_ranks(1, [&](int) { join_store(launch_of(0, 2, taken.port)); })[0];
  expect_words(error, {"rank 0 cannot listen", std::to_string(taken.port), "MASTER_PORT"});
}

TEST_F(StoreWorldTest, DifferentWorldSizesAreRefused) {
  limit("3");
  const ReservedPort port;
  const auto errors = on_ranks(2, [&](int rank) { join_store(launch_of(rank, rank == 0 ? 2 : 3, port)); });
  expect_words(errors[1], {"3 ranks", "2 ranks", "MASTER_PORT"});
  expect_words(errors[0], {"71: ", "rank 1 of 2 did not arrive"});
}

TEST_F(StoreWorldTest, TwoProcessesOfOneRankAreRefused) {
  limit("3");
  const ReservedPort port;
  const auto errors = on_ranks(3, [&](int thread) { join_store(launch_of(thread == 0 ? 0 : 1, 3, port)); });
  EXPECT_TRUE(errors[1].find("two processes say they are rank 1") != std::string::npos ||
              errors[2].find("two processes say they are rank 1") != std::string::npos)
      << errors[1] << " / " << errors[2];
}

/// Between the rendezvous and the start of the watch.
TEST_F(StoreWorldTest, ARankThatEndsBeforeTheWatchIsNamed) {
  const ReservedPort port;
  const auto start = std::chrono::steady_clock::now();
  const auto errors = on_ranks(4, [&](int rank) {
    const auto world = join_store(launch_of(rank, 4, port));
    const auto exchange = world->exchange();
    (void)exchange->all_gather("all are here");
    if (rank != 2) (void)exchange->all_gather("x");
  });
  for (const int rank : {0, 1, 3})
    expect_words(errors[static_cast<size_t>(rank)], {"71: rank 2 has ended", "run again"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(StoreWorldTest, ARankThatHangsBeforeTheWatchIsNamed) {
  limit("2");
  const ReservedPort port;
  std::promise<void> over;
  const auto ended = over.get_future().share();
  std::atomic<int> left = 2;
  const auto errors = on_ranks(3, [&](int rank) {
    const auto world = join_store(launch_of(rank, 3, port));
    const auto exchange = world->exchange();
    if (rank == 1) {
      ended.wait();
      return;
    }
    try {
      (void)exchange->all_gather("x");
    } catch (const Error&) {
      if (--left == 0) over.set_value();
      throw;
    }
  });
  for (const int rank : {0, 2}) expect_words(errors[static_cast<size_t>(rank)], {"71: rank 1 did not answer for 2 s"});
}

TEST_F(StoreWorldTest, ABadLimitIsAConfigError) {
  for (const char* text : {"0", "-5", "soon", "3x", "nan"}) {
    limit(text);
    expect_words(on_ranks(1, [](int) { join_store(launch_of(0, 1, ReservedPort())); })[0],
                 {"TRIREME_RENDEZVOUS_SECONDS", text});
  }
}

TEST_F(StoreWorldTest, AWaitingRankOutlivesTheRendezvousLimitAndSignals) {
  limit("1");
  struct sigaction action{};
  action.sa_handler = [](int) {};
  struct sigaction before{};
  sigaction(SIGUSR1, &action, &before);
  const ReservedPort port;
  std::promise<pthread_t> waiting;
  auto thread_of_waiting = waiting.get_future();
  const auto errors = on_ranks(2, [&](int rank) {
    const auto world = join_store(launch_of(rank, 2, port));
    const auto exchange = world->exchange();
    world->watched();
    if (rank == 1) {
      waiting.set_value(pthread_self());
    } else {
      // Rank 1 waits longer than the rendezvous limit, and receives a signal (Slurm's, before the time limit) while it
      // waits.
      const pthread_t thread = thread_of_waiting.get();
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      pthread_kill(thread, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    }
    ASSERT_EQ(exchange->all_gather(std::to_string(rank)), (std::vector<std::string>{"0", "1"}));
    world->leave();
  });
  sigaction(SIGUSR1, &before, nullptr);
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace trireme
