#include "store_exchange.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace trireme {

namespace {

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
      // Rank 0 knows who is missing. The others wait for it longer.
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

}  // namespace

std::unique_ptr<HostExchange> make_store_exchange(StorePtr store, std::string place, std::string prefix, int rank,
                                                  int size, WaitLimit limit) {
  return std::make_unique<StoreExchange>(std::move(store), std::move(place), std::move(prefix), rank, size,
                                         std::move(limit));
}

}  // namespace trireme
