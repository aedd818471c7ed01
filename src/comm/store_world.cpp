#include "store_world.h"

#include "collectives.h"
#include "key_server.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/sockets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace trireme {

namespace {

using stored::left_key;

using StorePtr = std::shared_ptr<KeyStore>;

/// Runs `call`. A failure of the store becomes an Error that names rank 0, which serves it at `place`.
template <class Call>
auto ask_rank_0(const std::string& place, const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kHang,
                fmt::format("the store of rank 0 at {} is lost ({}): rank 0's own last message says why; run again",
                            place, error.what()));
  }
}

/// Every step of an exchange has a number. In a gather each rank except 0 sets its own key and rank 0 reads them all.
/// In a broadcast rank 0 sets one key and the others read it. An exchange therefore needs only a few keys per rank.
///
/// The rank that set a key removes it when a later step proves that it was read: rank 0 has read a gather when its next
/// broadcast has arrived; the others have read a broadcast when their values of the next gather have arrived.
class StoreExchange final : public HostExchange {
 public:
  StoreExchange(StorePtr store, std::string place, std::string prefix, int rank, int size, WaitLimit limit)
      : HostExchange(rank, size),
        store_(std::move(store)),
        place_(std::move(place)),
        prefix_(std::move(prefix)),
        limit_(std::move(limit)) {}

  std::vector<std::string> gather(const std::string& mine) override {
    return ask_rank_0(place_, [&]() -> std::vector<std::string> {
      const uint64_t step = next_++;
      if (rank_ != 0) {
        set(key(step, rank_), mine);
        return {};
      }
      std::vector<std::string> keys;
      for (int peer = 1; peer < size_; ++peer) keys.push_back(key(step, peer));
      std::vector<std::string> values = await(keys);
      values.insert(values.begin(), mine);
      remove_read();
      return values;
    });
  }

  std::string broadcast(const std::string& value) override {
    return ask_rank_0(place_, [&]() -> std::string {
      const uint64_t step = next_++;
      if (rank_ == 0) {
        set(key(step, 0), value);
        return value;
      }
      const std::string received = await({key(step, 0)})[0];
      remove_read();
      return received;
    });
  }

  bool barrier_within(double seconds) override {
    const double end = steady_seconds() + seconds;
    const uint64_t step = next_++;
    try {
      if (rank_ != 0) store_->set(key(step, rank_), "");
      std::vector<std::string> keys;
      for (int peer = rank_ == 0 ? 1 : 0; peer < (rank_ == 0 ? size_ : 1); ++peer) keys.push_back(key(step, peer));
      if (!store_->get(keys, std::max(0.0, end - steady_seconds()))) return false;
      if (rank_ == 0) store_->set(key(step, 0), "");
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  std::unique_ptr<HostExchange> split(int colour) override {
    const uint64_t step = next_;
    int rank = 0, size = 0;
    const std::string own = std::to_string(colour);
    const auto colours = all_gather(own);
    for (int peer = 0; peer < size_; ++peer) {
      if (colours[static_cast<size_t>(peer)] != own) continue;
      if (peer == rank_) rank = size;
      ++size;
    }
    return std::make_unique<StoreExchange>(store_, place_, fmt::format("{}/{}.{}", prefix_, step, colour), rank, size,
                                           limit_);
  }

  std::unique_ptr<HostExchange> renumber(int rank) override {
    TRIREME_CHECK((rank == 0) == (rank_ == 0), "rank ", rank_, " of a store cannot become rank ", rank);
    return std::make_unique<StoreExchange>(store_, place_, fmt::format("{}/{}", prefix_, next_++), rank, size_, limit_);
  }

 private:
  std::string key(uint64_t step, int rank) const { return fmt::format("{}/{}/{}", prefix_, step, rank); }

  std::vector<std::string> await(const std::vector<std::string>& keys) {
    constexpr double kLook = 1;
    for (const double began = steady_seconds();;) {
      const double limit = limit_ ? limit_->load() : 0;
      if (limit <= 0) return *store_->get(keys);
      if (auto values = store_->get(keys, kLook)) return std::move(*values);
      if (const auto lost = store_->get({stored::kLost}, 0)) {
        // The others look for it in their own time, in the store of rank 0.
        if (rank_ == 0) std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLook));
        throw Error(ExitCode::kHang,
                    fmt::format("{} while the ranks were joining at {}: its own last message says why; run again",
                                (*lost)[0], place_));
      }
      // Rank 0 knows the missing ranks. The others wait for it longer.
      if (steady_seconds() - began < (rank_ == 0 ? limit : 2 * limit)) continue;
      std::vector<std::string> missing;
      for (const std::string& each : keys)
        if (!store_->get({each}, 0)) missing.push_back(each.substr(each.rfind('/') + 1));
      if (!missing.empty())
        store_->set(stored::kLost, fmt::format("rank{} {} did not answer for {:g} s", missing.size() > 1 ? "s" : "",
                                               join(missing, ", "), limit));
    }
  }

  void set(const std::string& key, const std::string& value) {
    set_.push_back(key);
    store_->set(key, value);
  }

  void remove_read() {
    store_->remove(set_);
    set_.clear();
  }

  StorePtr store_;
  std::string place_, prefix_;
  WaitLimit limit_;
  uint64_t next_ = 0;
  std::vector<std::string> set_;  // by this rank, not removed yet
};

/// Seconds for which rank 0 keeps its store open for ranks that have not called leave(). They have finished all other
/// work.
constexpr double kLeaving = 60;
/// Seconds for which rank 0 keeps the store open after a rendezvous without all ranks, until the others have read which
/// ranks are absent.
constexpr double kTelling = 10;
constexpr const char* kVerdict = "verdict";
/// The key under which torchrun's agent has the address of rank 0. It does not contain TORCHELASTIC_RESTART_COUNT:
/// every agent counts its own failures, and an agent that restarts its ranks because another host's ranks failed does
/// not count.
constexpr const char* kRank0 = "trireme/rank_0";
/// Interval at which a rank asks torchrun's agent again for the address of rank 0.
constexpr double kStaleSeconds = 2;

/// PyTorch's rule: MASTER_PORT is a store that the agent serves, and rank 0 does not listen there.
bool agent_serves_port() { return environment("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

/// Equal on the ranks of one job, different in other jobs.
std::string job_identity(const Launch& launch) {
  const auto variable = [](const char* name) { return environment(name, "-"); };
  if (launch.kind == Launch::Kind::kSlurm)
    return fmt::format("{} ranks, Slurm step {}.{}", launch.world_size, variable("SLURM_JOB_ID"),
                       variable("SLURM_STEP_ID"));
  return fmt::format("{} ranks, run {}", launch.world_size, variable("TORCHELASTIC_RUN_ID"));
}

}  // namespace

std::unique_ptr<HostExchange> make_store_exchange(StorePtr store, std::string place, std::string prefix, int rank,
                                                  int size, WaitLimit limit) {
  return std::make_unique<StoreExchange>(std::move(store), std::move(place), std::move(prefix), rank, size,
                                         std::move(limit));
}

namespace {

class TcpStoreWorld final : public StoreWorld {
 public:
  explicit TcpStoreWorld(const Launch& launch)
      : launch_(launch), limit_(positive_seconds("TRIREME_RENDEZVOUS_SECONDS", 300)) {
    const double deadline = steady_seconds() + limit_;
    if (agent_serves_port())
      meet_at_agent(deadline);
    else {
      if (launch.rank == 0) listen(launch_.master_address, launch_.master_port);
      store_ = connect(limit_);
    }
    if (store_->add(fmt::format("here/{}", launch.rank), 1) > 1)
      throw ConfigError(
          fmt::format("two processes say they are rank {} at {}: another job uses this port, or RANK is the same for "
                      "several; set MASTER_PORT to a free port",
                      launch.rank, place()));
    try {
      wait_for_others(deadline);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(ExitCode::kHang, fmt::format("rank {}: the store of rank 0 at {} is lost while ranks are missing "
                                               "({}): rank 0's message names them",
                                               launch_.rank, place(), error.what()));
    }
    if (agent_ && launch.rank == 0) forget_at_agent();
    agent_.reset();
  }

  std::unique_ptr<HostExchange> exchange() override {
    return make_store_exchange(store_, place(), "world", launch_.rank, launch_.world_size, unwatched_);
  }
  void watched() override { *unwatched_ = 0; }
  void part() override {
    const auto parting = make_store_exchange(store_, place(), "part", launch_.rank, launch_.world_size);
    block_in_collective("part", 0, "world", [&parting] { parting->barrier(); });
  }
  std::string address() const override { return store_->local_address(); }
  void leave() override {
    try {
      store_->set(left_key(launch_.rank), "");
      if (launch_.rank != 0) return;
      std::vector<std::string> keys;
      for (int rank = 0; rank < launch_.world_size; ++rank) keys.push_back(left_key(rank));
      if (!store_->get(keys, kLeaving)) throw std::runtime_error("they are still there after a minute");
    } catch (const std::exception& error) {
      log_warn(
          fmt::format("rank {} leaves the store at {} before the others: {}", launch_.rank, place(), error.what()));
    }
  }

 private:
  std::string place() const { return fmt::format("{}:{}", launch_.master_address, launch_.master_port); }

  void listen(const std::string& host, int port) {
    try {
      server_ = std::make_unique<KeyServer>(host, port, job_identity(launch_));
    } catch (const std::exception& error) {
      throw ConfigError(fmt::format("rank 0 cannot listen on {}:{}: {}", host, port, error.what()));
    }
  }

  /// The agent may run on another host than rank 0 and outlives its workers: the address of an earlier rank 0, which
  /// ended before all had met, may still be there when the others look.
  void meet_at_agent(double deadline) {
    const std::string agent = place();
    const auto left = [&] { return std::max(0.1, deadline - steady_seconds()); };
    try {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(launch_.master_port);
      options.waitWorkers = false;
      options.timeout = std::chrono::milliseconds(static_cast<int64_t>(limit_ * 1000));
      agent_ = c10::make_intrusive<c10d::TCPStore>(launch_.master_address, options);
      if (launch_.rank == 0) {
        const std::vector<std::string> own = own_addresses(), theirs = addresses_of(launch_.master_address);
        const bool here = std::any_of(theirs.begin(), theirs.end(), [&](const std::string& address) {
          return is_loopback_address(address) || std::find(own.begin(), own.end(), address) != own.end();
        });
        listen(here || theirs.empty() ? launch_.master_address : address_towards(theirs[0]), 0);
        const std::string text = fmt::format("{} {}", server_->addresses(), server_->port());
        agent_->set(kRank0, std::vector<uint8_t>(text.begin(), text.end()));
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw ConfigError(agent_lost(agent, error));
    }
    for (;;) {
      try {
        const std::vector<uint8_t> text = agent_->get(kRank0);
        const auto words = split(std::string(text.begin(), text.end()), ' ');
        launch_.master_address = words.at(0);
        launch_.master_port = std::stoi(words.at(1));
      } catch (const std::exception& error) {
        throw ConfigError(agent_lost(agent, error));
      }
      try {
        store_ = connect(std::min(left(), kStaleSeconds));
        return;
      } catch (const ConfigError&) {
        if (steady_seconds() >= deadline) throw;
      }
    }
  }

  void forget_at_agent() {
    try {
      agent_->deleteKey(kRank0);
    } catch (const std::exception&) {  // later ranks find that this one is gone
    }
  }

  std::string agent_lost(const std::string& agent, const std::exception& error) const {
    const std::string text = error.what();
    return fmt::format(
        "rank {} cannot meet the others through torchrun's agent at {} within {:g} s (TRIREME_RENDEZVOUS_SECONDS): {}; "
        "does rank 0 run, and does another process use MASTER_PORT?",
        launch_.rank, agent, limit_, text.substr(0, text.find('\n')));
  }

  std::shared_ptr<KeyStore> connect(double seconds) const {
    const std::string own = job_identity(launch_);
    try {
      return connect_key_store(server_ ? server_->address() : launch_.master_address, launch_.master_port, own,
                               launch_.rank, launch_.world_size, seconds);
    } catch (const NoKeyStore& error) {
      switch (error.why) {
        case NoKeyStore::kUnreachable:
          throw ConfigError(fmt::format(
              "rank {} cannot reach rank 0 at {} within {:g} s (TRIREME_RENDEZVOUS_SECONDS): {}; has rank 0 started, "
              "is MASTER_ADDR right, and is MASTER_PORT this job's alone?",
              launch_.rank, place(), limit_, error.what()));
        case NoKeyStore::kAlien:
          throw ConfigError(fmt::format(
              "{} accepts connections but does not answer as rank 0 of a Trireme job ({}); set MASTER_PORT to a free "
              "port",
              place(), error.what()));
        case NoKeyStore::kOtherJob: break;
      }
      throw ConfigError(fmt::format(
          "rank {} belongs to a job of {}, but {} serves one of {}: set MASTER_PORT to a free port, or make "
          "WORLD_SIZE the same everywhere",
          launch_.rank, own, place(), error.what()));
    }
  }

  /// One rank writes the verdict, for which all wait: the last to arrive an empty one, or the first whose time is up
  /// the message that names the absent ranks. Only that rank asks for all other ranks: if all did, the load of rank 0
  /// would grow with the square of their number.
  void wait_for_others(double deadline) const {
    const bool last = store_->add("arrived", 1) == launch_.world_size;
    auto verdict = store_->get({kVerdict}, last ? 0 : std::max(0.0, deadline - steady_seconds()));
    if (!verdict && store_->add("judges", 1) == 1) store_->set(kVerdict, last ? "" : absence());
    if (!verdict) verdict = store_->get({kVerdict}, kTelling);
    if (verdict && (*verdict)[0].empty()) return;
    const std::string told = "told";
    try {
      if (store_->add("readers", 1) == store_->add("arrived", 0)) store_->set(told, "");
      if (launch_.rank == 0) (void)store_->get({told}, kTelling);
    } catch (const std::exception&) {
      // The store ends when the last reader has counted itself; an earlier one may still wait for "arrived".
      if (!verdict) throw;
    }
    throw Error(
        ExitCode::kHang,
        fmt::format("rank {}: {}", launch_.rank,
                    verdict ? (*verdict)[0] : "ranks are absent, and another one that was to name them is lost"));
  }

  /// Empty when the last rank came just now.
  std::string absence() const {
    std::vector<int> absent;
    for (int rank = 0; rank < launch_.world_size; ++rank)
      if (!store_->get({fmt::format("here/{}", rank)}, 0)) absent.push_back(rank);
    if (absent.empty()) return "";
    return fmt::format(
        "rank{} {} of {} did not arrive at {} within {:g} s (TRIREME_RENDEZVOUS_SECONDS); the other ranks did",
        absent.size() > 1 ? "s" : "", fmt::join(absent, ", "), launch_.world_size, place(), limit_);
  }

  Launch launch_;
  double limit_;
  std::shared_ptr<std::atomic<double>> unwatched_ = std::make_shared<std::atomic<double>>(limit_);
  c10::intrusive_ptr<c10d::TCPStore> agent_;  // torchrun's, until all have met
  std::unique_ptr<KeyServer> server_;         // rank 0 only; ends after its client
  std::shared_ptr<KeyStore> store_;
};

}  // namespace

std::unique_ptr<StoreWorld> join_store(const Launch& launch) { return std::make_unique<TcpStoreWorld>(launch); }

}  // namespace trireme
