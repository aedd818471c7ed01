// Start-up of many ranks on one machine: processes that meet by RANK, WORLD_SIZE and MASTER_ADDR, exchange values under
// the watch and leave. They are forked from one process: loading LibTorch costs each started program most of a second.
//
//   startup_scale meet RANKS SECONDS       all ranks are there
//   startup_scale absent RANKS SECONDS     one rank never starts: the others end with 71 and name it
//   startup_scale foreign RANKS SECONDS    junk, silent and slow connections at rank 0's port and at every rank's
//   startup_scale stopped RANKS SECONDS    on eight hosts: one rank saves for longer than the time limit, as it may;
//                                          then one is stopped, and all end with 71 and its name
//   startup_scale dead RANKS SECONDS       the same with a rank that dies during the save
#include "../comm/reserved_port.h"
#include "progress_ring.h"
#include "rank_watch.h"
#include "store_world.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/communicator.h"
#include "trireme/watchdog/progress.h"
#include "trireme/watchdog/watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace trireme;

/// In which 255 processes start on two cores that others use as well.
constexpr int kRendezvousSeconds = 20;
/// Connections of unknown callers to rank 0's port, and to each rank's: they hold more than a queue of 64.
constexpr int kAtRankZero = 200, kAtEachRank = 3;
/// The hosts that the ranks of a hang say they are on, the time limit of a collective, and how long the save takes.
constexpr int kHosts = 8, kHangSeconds = 4, kSaveSeconds = 12;

/// Connects; kind 0 sends junk, kind 1 nothing, kind 2 one byte a second of what looks like a greeting.
int stranger(int port, int kind) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    close(fd);
    return -1;
  }
  const std::string junk = "GET / HTTP/1.1\r\nHost: node1\r\nUser-Agent: scanner\r\n\r\n";
  if (kind == 0) (void)send(fd, junk.data(), junk.size(), MSG_NOSIGNAL);
  return fd;
}

/// Where the time goes, of the slowest rank.
struct Times {
  double meet = 0, watch = 0, exchange = 0, leave = 0;
};
struct Shared {
  int port = 0;
  int64_t foreign = 0;
  Times times[4096];
};

/// A rank in the middle, and the first one of a host: other hosts ask it first.
int saving_rank(int ranks) { return ranks / 2 + 1; }
int lost_rank(int ranks) { return ranks / kHosts * 5; }

/// What a rank says of itself as if each eighth of the ranks had a host of its own. The first text is its network and
/// addresses, the second its host, process, record and ports.
std::string on_its_host(const std::string& text, int said, const Launch& launch) {
  std::vector<std::string> words = split(text, ' ');
  const std::string host = fmt::format("node{}", launch.rank / (launch.world_size / kHosts));
  words[0] = said == 0 ? host + words[0] : host;
  if (said == 1) words.insert(words.end(), {"127.0.0.1", words[4]});
  return join(words, " ");
}

int run_hang(const std::string& what, const Launch& launch) {
  const auto store = join_store(launch);
  const auto exchange = store->exchange();
  int said = 0;
  RankWatch watch(launch.rank, launch.world_size,
                  [&](const std::string& text) { return exchange->all_gather(on_its_host(text, said++, launch)); }, {});
  store->watched();
  const auto collective = [&] {
    ProgressRing& ring = ProgressRing::instance();
    const uint64_t sequence = ring.begin("all_reduce", 1024, "world");
    ring.wait(sequence);
    try {
      (void)exchange->all_gather("x");
    } catch (const Error& error) {
      watch.fail(error.what(), static_cast<int>(error.code()));  // as World::abort() does
    }
    ring.end(sequence);
  };
  for (int step = 1; step <= 3; ++step) {
    begin_progress_step(step);
    if (step == 2 && launch.rank == saving_rank(launch.world_size)) {
      const ProgressSection save("save", 600);
      sleep(kSaveSeconds);
    }
    if (launch.rank == lost_rank(launch.world_size)) {
      if (step == 2 && what == "dead")
        std::thread([] {
          sleep(kSaveSeconds - 2);
          raise(SIGKILL);
        }).detach();
      if (step == 3) raise(SIGSTOP);
    }
    collective();
  }
  sleep(60);
  return 0;
}

int run_rank(Shared& shared, bool foreign) {
  const Launch launch = detect_launch();
  set_log_rank(launch.rank, launch.world_size);
  Times& times = shared.times[launch.rank];
  double last = steady_seconds();
  const auto lap = [&last] {
    const double now = steady_seconds();
    return now - std::exchange(last, now);
  };
  const auto store = join_store(launch);
  const auto exchange = store->exchange();
  const auto hosts = exchange->all_gather(host_identity());
  TRIREME_CHECK(make_topology(hosts).hosts() == 1, "more than one host");
  times.meet = lap();
  std::vector<int> visitors;
  int introduced = 0;
  const auto introduce = [&](const std::string& text) {
    const auto all = exchange->all_gather(text);
    if (foreign && ++introduced == 2) {
      // Before this rank connects to its neighbour: the neighbour's port is the fifth word of its
      // introduction, which follows the exchange of the networks.
      std::istringstream words(all[static_cast<size_t>((launch.rank + 1) % launch.world_size)]);
      std::string port;
      for (int i = 0; i < 5; ++i) words >> port;
      for (int i = 0; i < kAtEachRank; ++i) visitors.push_back(stranger(std::stoi(port), i));
    }
    return all;
  };
  RankWatch watch(launch.rank, launch.world_size, introduce, {});
  store->watched();
  TRIREME_CHECK(watch.connected(), "rank ", launch.rank, " is not connected to the next one");
  times.watch = lap();
  for (int round = 0; round < 5; ++round) {
    const auto all = exchange->all_gather(fmt::format("{} {}", launch.rank, round));
    for (int peer = 0; peer < launch.world_size; ++peer)
      TRIREME_CHECK(all[static_cast<size_t>(peer)] == fmt::format("{} {}", peer, round), "rank ", peer, " sent ",
                    all[static_cast<size_t>(peer)]);
    const double sum = exchange->all_reduce({1.0 * launch.rank}, ReduceOp::kSum)[0];
    TRIREME_CHECK(sum == launch.world_size * (launch.world_size - 1) / 2, "sum ", sum);
  }
  times.exchange = lap();
  if (foreign) {
    // The slow one sends a byte a second; the limit of five seconds counts from its connection.
    for (int i = 0; i < 6; ++i) {
      if (visitors[2] >= 0) (void)send(visitors[2], "x", 1, MSG_NOSIGNAL);
      sleep(1);
    }
    lap();
  }
  store->part();
  watch.leave();
  if (foreign) __atomic_fetch_add(&shared.foreign, watch.unknown_callers(), __ATOMIC_RELAXED);
  store->leave();
  times.leave = lap();
  return 0;
}

bool is_hang(const std::string& what) { return what == "stopped" || what == "dead"; }

struct Ended {
  int code = 0;
  std::string text;
};

std::string read_all(int fd) {
  std::string text(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  TRIREME_CHECK(pread(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "pread");
  return text;
}

/// Starts every rank except `absent`; `meanwhile` runs in this process. Returns when all have ended.
std::vector<Ended> run(Shared& shared, int ranks, int absent, const std::string& what, double limit,
                       const std::function<void()>& meanwhile) {
  std::vector<pid_t> pids(static_cast<size_t>(ranks), 0);
  std::vector<int> files(static_cast<size_t>(ranks), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == absent) continue;
    const int file = files[static_cast<size_t>(rank)] = memfd_create("stderr", MFD_CLOEXEC);
    const pid_t pid = pids[static_cast<size_t>(rank)] = fork();
    TRIREME_CHECK(pid >= 0, "fork of rank ", rank);
    if (pid > 0) continue;
    dup2(file, STDERR_FILENO);
    for (const int other : files)
      if (other >= 0) close(other);
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(shared.port).c_str(), 1);
    setenv("TRIREME_RENDEZVOUS_SECONDS", std::to_string(absent >= 0 ? kRendezvousSeconds : 60).c_str(), 1);
    if (is_hang(what)) setenv("TRIREME_HANG_SECONDS", std::to_string(kHangSeconds).c_str(), 1);
    _exit(run_main("startup_scale", [&] {
      return is_hang(what) ? run_hang(what, detect_launch()) : run_rank(shared, what == "foreign");
    }));
  }
  meanwhile();
  // A rank that nobody ends, a stopped one for instance, fails the test.
  std::thread([pids, limit] {
    std::this_thread::sleep_for(std::chrono::duration<double>(limit));
    for (const pid_t pid : pids)
      if (pid > 0) (void)kill(pid, SIGKILL);
  }).detach();
  std::vector<Ended> ended(static_cast<size_t>(ranks));
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] == 0) continue;
    int status = 0;
    (void)waitpid(pids[rank], &status, 0);
    ended[rank] = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_all(files[rank])};
    close(files[rank]);
  }
  return ended;
}

int test(const std::string& what, int ranks, double limit) {
  rlimit files{};
  (void)getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &files);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TRIREME_CHECK(memory != MAP_FAILED && ranks > 1 && ranks <= 4096, "no memory for ", ranks, " ranks");
  Shared& shared = *new (memory) Shared;
  const ReservedPort port;
  TRIREME_CHECK(port > 0, "no free port");
  shared.port = port;
  const bool foreign = what == "foreign";
  const int absent = what == "absent" ? ranks / 2 : -1;
  const double began = steady_seconds();
  std::vector<int> open;
  const auto ended = run(shared, ranks, absent, what, limit, [&] {
    for (int i = 0; foreign && i < kAtRankZero;) {
      if (const int fd = stranger(shared.port, i % 2); fd >= 0) {
        open.push_back(fd);
        ++i;
      } else {
        usleep(1000);  // rank 0 does not listen yet
      }
    }
  });
  const double seconds = steady_seconds() - began;
  int failures = 0;
  const auto expect = [&](bool holds, const std::string& text) {
    if (holds) return;
    if (++failures < 10) fmt::print("FAILED: {}\n", text.substr(0, 4000));
  };
  const std::string named = fmt::format("rank {} of {} did not arrive at 127.0.0.1:{} within {} s", absent, ranks,
                                        shared.port, kRendezvousSeconds);
  for (int rank = 0; rank < ranks; ++rank) {
    const Ended& end = ended[static_cast<size_t>(rank)];
    if (rank == absent) continue;
    const int code = what == "dead" && rank == lost_rank(ranks) ? 137 : absent < 0 && !is_hang(what) ? 0 : 71;
    expect(end.code == code, fmt::format("rank {} ended with {}: {}", rank, end.code, end.text));
    if (absent >= 0) expect(end.text.find(named) != std::string::npos, fmt::format("rank {}: {}", rank, end.text));
  }
  expect(seconds < limit, fmt::format("{:.1f} s, limit {:g} s", seconds, limit));
  if (foreign) {
    expect(shared.foreign == kAtEachRank * ranks,
           fmt::format("the watches counted {} unknown callers of {}", shared.foreign, kAtEachRank * ranks));
    expect(ended[0].text.find(
               fmt::format("{} connections of unknown callers closed: {} sent something else, {} did not say "
                           "who they are within 5 s",
                           kAtRankZero, kAtRankZero / 2, kAtRankZero / 2)) != std::string::npos,
           "rank 0's count of its port: " + ended[0].text);
  }
  if (is_hang(what)) {
    std::string all;
    for (const Ended& end : ended) all += end.text.substr(0, 2000);
    const auto times = [&all](const std::string& text) {
      int found = 0;
      for (size_t at = all.find(text); at != std::string::npos; at = all.find(text, at + 1)) ++found;
      return found;
    };
    const std::string lost = fmt::format("rank {} on node5", lost_rank(ranks));
    expect(times(what == "dead" ? lost + " is gone" : lost + " never reached #3") > 0,
           "the lost rank is not named: " + all);
    expect(times(fmt::format("rank {} on node4 never reached #2 all_reduce[1024] on world (step 2, section save",
                             saving_rank(ranks))) > 0 &&
               times("it is given more time") > 0,
           "the saving rank is not excused: " + all);
    expect(times("did not answer") == 0 && times("unknown caller") == 0, "questions were lost: " + all);
    expect(times("it is given more time") <= 2, "more than two ranks asked all: " + all);
    expect(seconds > kSaveSeconds / 2, fmt::format("ended after {:.1f} s", seconds));
  }
  Times slowest;
  for (int rank = 0; rank < ranks; ++rank) {
    const Times& times = shared.times[rank];
    slowest = {std::max(slowest.meet, times.meet), std::max(slowest.watch, times.watch),
               std::max(slowest.exchange, times.exchange), std::max(slowest.leave, times.leave)};
  }
  rusage children{};
  (void)getrusage(RUSAGE_CHILDREN, &children);
  fmt::print(
      "{} {} ranks: {:.2f} s (slowest rank: meet {:.2f}, watch {:.2f}, 10 exchanges {:.2f}, leave {:.2f}); "
      "processor {:.1f} s user, {:.1f} s system\n",
      what, ranks, seconds, slowest.meet, slowest.watch, slowest.exchange, slowest.leave,
      static_cast<double>(children.ru_utime.tv_sec) + 1e-6 * static_cast<double>(children.ru_utime.tv_usec),
      static_cast<double>(children.ru_stime.tv_sec) + 1e-6 * static_cast<double>(children.ru_stime.tv_usec));
  for (const int fd : open) close(fd);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: startup_scale meet|absent|foreign|stopped|dead RANKS SECONDS\n");
    return 2;
  }
  return test(argv[1], std::stoi(argv[2]), std::stod(argv[3]));
}
