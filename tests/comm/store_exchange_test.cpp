// Exchanges through a c10d store: number of requests, values of any size, ranks that do not arrive. The ranks are
// threads that share one store of this process.
#include "store_exchange.h"

#include "trireme/base/error.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <vector>

namespace trireme {
namespace {

/// Counts the load of the store's server: one per request and one per key in it.
class CountingStore final : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  int64_t operations() const { return operations_; }
  /// Bytes of the longest stored value.
  size_t longest() const { return longest_; }

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<CountingStore>(store_); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(1);
    for (size_t seen = longest_; seen < value.size() && !longest_.compare_exchange_weak(seen, value.size());) {
    }
    store_->set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    count(1);
    return store_->get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    count(keys.size());
    return store_->multiGet(keys);
  }
  int64_t add(const std::string& key, int64_t value) override {
    count(1);
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    count(1);
    return store_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    count(keys.size());
    return store_->check(keys);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override {
    count(keys.size());
    store_->wait(keys);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    count(keys.size());
    store_->wait(keys, timeout);
  }

 private:
  void count(size_t keys) { operations_ += static_cast<int64_t>(keys); }
  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<int64_t> operations_ = 0;
  std::atomic<size_t> longest_ = 0;
};

c10::intrusive_ptr<CountingStore> make_store() {
  return c10::make_intrusive<CountingStore>(c10::make_intrusive<c10d::HashStore>());
}

/// Runs `body` with the exchange of each of `size` ranks at the same time.
void on_ranks(const c10::intrusive_ptr<CountingStore>& store, int size,
              const std::function<void(HostExchange&)>& body) {
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto exchange = make_store_exchange(store, "this process", "world", rank, size);
      body(*exchange);
    }));
  for (auto& rank : ranks) rank.get();
}

/// 1,024 ranks request some thousand keys per exchange from rank 0's store, not a million.
TEST(StoreExchange, OperationsGrowWithTheRanksNotWithTheirSquare) {
  constexpr int kExchanges = 10;
  for (const int ranks : {2, 8, 64}) {
    const auto store = make_store();
    on_ranks(store, ranks, [&](HostExchange& exchange) {
      for (int i = 0; i < kExchanges; ++i)
        ASSERT_EQ(exchange.all_gather(std::to_string(exchange.rank())).back(), std::to_string(ranks - 1));
    });
    EXPECT_LE(store->operations(), 6 * ranks * kExchanges) << ranks << " ranks";
  }
}

TEST(StoreExchange, EveryStepGivesItsOwnValues) {
  constexpr int kRanks = 5;
  const auto store = make_store();
  on_ranks(store, kRanks, [&](HostExchange& exchange) {
    const int rank = exchange.rank();
    for (int round = 0; round < 20; ++round) {
      // Lengths differ by rank; the empty value and NUL bytes are values too.
      const auto value_of = [&](int peer) {
        return std::string(static_cast<size_t>(peer), '\0') + (peer == 3 ? "" : std::to_string(round));
      };
      std::vector<std::string> expected;
      for (int peer = 0; peer < kRanks; ++peer) expected.push_back(value_of(peer));
      ASSERT_EQ(exchange.all_gather(value_of(rank)), expected);
      ASSERT_EQ(exchange.gather(value_of(rank)), rank == 0 ? expected : std::vector<std::string>{});
      ASSERT_EQ(exchange.broadcast(rank == 0 ? "from 0, round " + std::to_string(round) : "not read"),
                "from 0, round " + std::to_string(round));
      const auto sums = exchange.all_reduce({1.0, rank + 0.5 * round}, ReduceOp::kSum);
      ASSERT_EQ(sums, (std::vector<double>{kRanks, 10 + 2.5 * round}));
      ASSERT_EQ(exchange.all_reduce({-1.0 * rank, 1.0 * rank}, ReduceOp::kMax), (std::vector<double>{0, kRanks - 1}));
      exchange.barrier();
    }
  });
  // Only the keys of the last steps remain.
  EXPECT_LE(store->getNumKeys(), 3 * kRanks);
}

TEST(StoreExchange, RenumberedRanksGiveTheirValuesInTheNewOrder) {
  const std::vector<int> numbers = {0, 2, 1, 3};
  on_ranks(make_store(), 4, [&](HostExchange& exchange) {
    const std::string mine = std::to_string(exchange.rank());
    (void)exchange.all_gather(mine);
    const auto ordered = exchange.renumber(numbers[static_cast<size_t>(exchange.rank())]);
    EXPECT_EQ(ordered->rank(), numbers[static_cast<size_t>(exchange.rank())]);
    EXPECT_EQ(ordered->all_gather(mine), (std::vector<std::string>{"0", "2", "1", "3"}));
    EXPECT_EQ(ordered->split(ordered->rank() / 2)->all_gather(mine).size(), 2u);
    ordered->barrier();
  });
}

/// As in a checkpoint: several gathers to rank 0 in a row, then a barrier.
TEST(StoreExchange, GathersInARowKeepTheirValues) {
  constexpr int kRanks = 3, kGathers = 4;
  const auto store = make_store();
  on_ranks(store, kRanks, [&](HostExchange& exchange) {
    for (int i = 0; i < kGathers; ++i) {
      const auto all = exchange.gather(std::to_string(10 * i + exchange.rank()));
      if (exchange.rank() != 0) continue;
      for (int peer = 0; peer < kRanks; ++peer)
        ASSERT_EQ(all[static_cast<size_t>(peer)], std::to_string(10 * i + peer));
    }
    exchange.barrier();
  });
}

/// c10d's server closes the connection of a client that sets a value of more than 8 MiB.
TEST(StoreExchange, LongValuesTravelInPieces) {
  constexpr int kRanks = 3;
  const auto store = make_store();
  const auto value_of = [](int rank) {
    std::string value(static_cast<size_t>(rank) * 5'000'000 + (rank == 2 ? 1 : 0), static_cast<char>('a' + rank));
    if (!value.empty()) value.back() = '.';
    return value;
  };
  on_ranks(store, kRanks, [&](HostExchange& exchange) {
    const auto all = exchange.all_gather(value_of(exchange.rank()));
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(all[static_cast<size_t>(rank)], value_of(rank));
  });
  EXPECT_LE(store->longest(), size_t{4} << 20);
}

TEST(StoreExchange, DifferentNumbersOfValuesAreAnErrorOnAllRanks) {
  std::atomic<int> told = 0;
  on_ranks(make_store(), 3, [&](HostExchange& exchange) {
    try {
      (void)exchange.all_reduce(std::vector<double>(exchange.rank() == 2 ? 3 : 2, 1.0), ReduceOp::kSum);
    } catch (const InternalError& error) {
      told += std::string(error.what()).find("rank 2 reduces 3 values, rank 0 reduces 2") != std::string::npos;
    }
  });
  EXPECT_EQ(told, 3);
}

TEST(StoreExchange, ABarrierWithATimeLimitEndsWithoutTheRankThatNeverComes) {
  constexpr int kRanks = 4;
  const auto store = make_store();
  for (const int absent : {0, 2, -1}) {
    std::atomic<int> all_came = 0;
    const auto began = std::chrono::steady_clock::now();
    on_ranks(store, kRanks, [&](HostExchange& exchange) {
      const auto group =
          make_store_exchange(store, "this process", "absent" + std::to_string(absent), exchange.rank(), kRanks);
      if (exchange.rank() != absent) all_came += group->barrier_within(absent == -1 ? 20 : 0.3);
    });
    EXPECT_EQ(all_came, absent == -1 ? kRanks : 0) << "without rank " << absent;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace trireme
