#include "store_world.h"

#include "collectives.h"
#include "store_exchange.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using namespace stored;
using TcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

// After the rendezvous the watchdog limits waiting, not the store. c10d keeps milliseconds in an int.
constexpr milliseconds kWithoutLimit = std::chrono::hours(24 * 7);
/// How long rank 0 keeps its store open for ranks that have not called leave(). They have finished all other work.
constexpr milliseconds kLeaving = std::chrono::seconds(60);
/// During the rendezvous: the polling interval, the key that exists when all ranks have arrived, and the key of the
/// message about missing ranks.
constexpr milliseconds kAsking{50};
constexpr const char* kComplete = "complete";
constexpr const char* kAbsent = "absent";

/// Equal on the ranks of one job, different from those of other jobs.
std::string job_identity(const Launch& launch) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "-" : value);
  };
  if (launch.kind == Launch::Kind::kSlurm)
    return fmt::format("{} ranks, Slurm step {}.{}", launch.world_size, variable("SLURM_JOB_ID"),
                       variable("SLURM_STEP_ID"));
  return fmt::format("{} ranks, run {}", launch.world_size, variable("TORCHELASTIC_RUN_ID"));
}

class TcpStoreWorld final : public StoreWorld {
 public:
  explicit TcpStoreWorld(const Launch& launch) : launch_(launch), limit_(rendezvous_limit()) {
    const auto deadline = std::chrono::steady_clock::now() + limit_;
    store_ = connect(/*listen=*/launch.rank == 0);
    check_identity();
    if (store_->add(fmt::format("here/{}", launch.rank), 1) > 1)
      throw ConfigError(
          fmt::format("two processes say they are rank {} at {}: another job uses this port, or RANK is the same for "
                      "several; set MASTER_PORT to a free port",
                      launch.rank, place()));
    wait_for_others(deadline);
    store_->setTimeout(kWithoutLimit);
  }

  std::unique_ptr<HostExchange> exchange() override {
    return make_store_exchange(store_, place(), "world", launch_.rank, launch_.world_size);
  }
  void part() override {
    const auto parting = make_store_exchange(store_, place(), "part", launch_.rank, launch_.world_size);
    block_in_collective("part", 0, "world", [&parting] { parting->barrier(); });
  }
  void leave() override {
    std::vector<std::string> keys;
    for (int rank = 0; rank < launch_.world_size; ++rank) keys.push_back(fmt::format("left/{}", rank));
    try {
      store_->set(keys[static_cast<size_t>(launch_.rank)], {1});
      if (launch_.rank == 0) store_->wait(keys, kLeaving);
    } catch (const std::exception& error) {
      log_warn(fmt::format("rank {} leaves the store at {} before the others: {}", launch_.rank, place(),
                           first_line(error.what())));
    }
  }

 private:
  static milliseconds rendezvous_limit() {
    return milliseconds(static_cast<int64_t>(positive_seconds("TRIREME_RENDEZVOUS_SECONDS", 300) * 1000));
  }
  std::string place() const { return fmt::format("{}:{}", launch_.master_address, launch_.master_port); }
  double limit_seconds() const { return static_cast<double>(limit_.count()) / 1000; }

  TcpStorePtr connect(bool listen) const {
    // c10d prints a stack trace for every failed attempt; our message contains the reason. 3: fatal errors only.
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = 3;
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launch_.master_port);
    options.isServer = listen;
    options.waitWorkers = false;
    options.timeout = limit_;
    // c10d waits forever for a port that accepts and never answers, and three times its time-out for a closed one. So
    // it connects in a separate thread, which is abandoned when the time is up.
    std::packaged_task<TcpStorePtr()> task(
        [address = launch_.master_address, options] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
    std::future<TcpStorePtr> store = task.get_future();
    std::thread(std::move(task)).detach();
    if (store.wait_for(limit_ + milliseconds(500)) != std::future_status::ready)
      throw ConfigError(fmt::format(
          "rank {} cannot reach rank 0 at {} within {} s (TRIREME_RENDEZVOUS_SECONDS): has rank 0 started, is "
          "MASTER_ADDR right, and is MASTER_PORT this job's alone?",
          launch_.rank, place(), limit_seconds()));
    try {
      return store.get();
    } catch (const std::exception& error) {
      if (listen)
        throw ConfigError(
            fmt::format("rank 0 cannot listen on {}: {}; if another job uses the port, set MASTER_PORT to a free one",
                        place(), first_line(error.what())));
      throw ConfigError(
          fmt::format("rank {} cannot reach rank 0 at {} within {} s: {}; has rank 0 started, and are MASTER_ADDR and "
                      "MASTER_PORT right?",
                      launch_.rank, place(), limit_seconds(), first_line(error.what())));
    }
  }

  void check_identity() const {
    const std::string own = job_identity(launch_);
    if (launch_.rank == 0) {
      store_->set("identity", bytes(own));
      return;
    }
    std::string theirs;
    try {
      theirs = text_of(store_->get("identity"));
    } catch (const std::exception& error) {
      throw ConfigError(fmt::format(
          "{} accepts connections but does not answer as rank 0 of a Trireme job ({}); set MASTER_PORT to a free "
          "port",
          place(), first_line(error.what())));
    }
    if (theirs != own)
      throw ConfigError(fmt::format(
          "rank {} belongs to a job of {}, but {} serves one of {}: set MASTER_PORT to a free port, or make "
          "WORLD_SIZE the same everywhere",
          launch_.rank, own, place(), theirs));
  }

  /// The last rank to arrive sets one key, and all ranks poll that key. If each rank polled every rank's key, the load
  /// of rank 0's server would grow with the square of the number of ranks.
  void wait_for_others(std::chrono::steady_clock::time_point deadline) const {
    if (store_->add("arrived", 1) == launch_.world_size) store_->set(kComplete, bytes("yes"));
    while (!present(kComplete)) {
      // The first rank that gives up writes its message to the store for the others: the store ends with rank 0.
      if (present(kAbsent)) throw ConfigError(fmt::format("rank {}: {}", launch_.rank, verdict()));
      if (std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kAsking);
        continue;
      }
      std::vector<int> absent;
      for (int rank = 0; rank < launch_.world_size; ++rank)
        if (!present(fmt::format("here/{}", rank))) absent.push_back(rank);
      const std::string sentence = fmt::format(
          "rank{} {} of {} did not arrive at {} within {} s (TRIREME_RENDEZVOUS_SECONDS); the other ranks did",
          absent.size() > 1 ? "s" : "", fmt::join(absent, ", "), launch_.world_size, place(), limit_seconds());
      store_->set(kAbsent, bytes(sentence));
      if (launch_.rank == 0) std::this_thread::sleep_for(10 * kAsking);
      throw ConfigError(fmt::format("rank {}: {}", launch_.rank, sentence));
    }
  }

  std::string verdict() const {
    try {
      return text_of(store_->get(kAbsent));
    } catch (const std::exception&) {
      return fmt::format("rank 0 at {} did not wait longer for missing ranks: its own message names them", place());
    }
  }

  bool present(const std::string& key) const {
    try {
      return store_->check({key});
    } catch (const std::exception&) {
      throw ConfigError(
          fmt::format("rank {}: the store of rank 0 at {} is lost while ranks are missing: rank 0's message names them",
                      launch_.rank, place()));
    }
  }

  Launch launch_;
  milliseconds limit_;
  TcpStorePtr store_;
};

}  // namespace

std::unique_ptr<StoreWorld> join_store(const Launch& launch) { return std::make_unique<TcpStoreWorld>(launch); }

}  // namespace trireme
