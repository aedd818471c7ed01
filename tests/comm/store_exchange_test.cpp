// Exchanges through a key store: number of requests, values of any size, ranks that do not arrive. The ranks are
// threads with a connection each.
#include "key_server.h"
#include "store_world.h"

#include "../base/base_testing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme {
namespace {

/// Counts the load of the store's server: one per request and one per key in it.
class CountedKeys final : public KeyStore {
 public:
  CountedKeys(std::unique_ptr<KeyStore> store, std::atomic<int64_t>& operations)
      : store_(std::move(store)), operations_(operations) {}
  void set(const std::string& key, const std::string& value) override {
    ++operations_;
    store_->set(key, value);
  }
  std::optional<std::vector<std::string>> get(const std::vector<std::string>& keys, double seconds) override {
    operations_ += static_cast<int64_t>(keys.size());
    return store_->get(keys, seconds);
  }
  int64_t add(const std::string& key, int64_t number) override {
    ++operations_;
    return store_->add(key, number);
  }
  void remove(const std::vector<std::string>& keys) override {
    operations_ += static_cast<int64_t>(keys.size());
    store_->remove(keys);
  }

 private:
  std::unique_ptr<KeyStore> store_;
  std::atomic<int64_t>& operations_;
};

/// A server, and a connection to it for each rank of each call of on_ranks().
struct TestStore {
  KeyServer server{"127.0.0.1", 0, "test"};
  std::atomic<int64_t> operations = 0;
  std::shared_ptr<KeyStore> connect() {
    return std::make_shared<CountedKeys>(connect_key_store("127.0.0.1", server.port(), "test", 0, 1, 20), operations);
  }
};

/// Runs `body` with the exchange of each of `size` ranks at the same time.
void on_ranks(TestStore& store, int size, const std::function<void(HostExchange&)>& body) {
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto exchange = make_store_exchange(store.connect(), "this process", "world", rank, size);
      body(*exchange);
    }));
  for (auto& rank : ranks) rank.get();
}

/// 1,024 ranks request some thousand keys per exchange from rank 0's store, not a million.
TEST(StoreExchange, OperationsGrowWithTheRanksNotWithTheirSquare) {
  constexpr int kExchanges = 10;
  for (const int ranks : {2, 8, 64}) {
    TestStore store;
    on_ranks(store, ranks, [&](HostExchange& exchange) {
      for (int i = 0; i < kExchanges; ++i)
        ASSERT_EQ(exchange.all_gather(std::to_string(exchange.rank())).back(), std::to_string(ranks - 1));
    });
    EXPECT_LE(store.operations, 6 * ranks * kExchanges) << ranks << " ranks";
  }
}

TEST(StoreExchange, EveryStepGivesItsOwnValues) {
  constexpr int kRanks = 5;
  TestStore store;
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
  // Only the keys of the last steps remain; removals have no answer.
  for (int i = 0; i < 500 && store.server.keys() > 3 * kRanks; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LE(store.server.keys(), 3 * kRanks);
}

TEST(StoreExchange, RenumberedRanksGiveTheirValuesInTheNewOrder) {
  const std::vector<int> numbers = {0, 2, 1, 3};
  TestStore store;
  on_ranks(store, 4, [&](HostExchange& exchange) {
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
  TestStore store;
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

TEST(StoreExchange, LongValuesTravelWhole) {
  constexpr int kRanks = 3;
  TestStore store;
  const auto value_of = [](int rank) {
    std::string value(static_cast<size_t>(rank) * 5'000'000 + (rank == 2 ? 1 : 0), static_cast<char>('a' + rank));
    if (!value.empty()) value.back() = '.';
    return value;
  };
  on_ranks(store, kRanks, [&](HostExchange& exchange) {
    const auto all = exchange.all_gather(value_of(exchange.rank()));
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(all[static_cast<size_t>(rank)], value_of(rank));
  });
}

TEST(StoreExchange, DifferentNumbersOfValuesAreAnErrorOnAllRanks) {
  std::atomic<int> told = 0;
  TestStore store;
  on_ranks(store, 3, [&](HostExchange& exchange) {
    const auto reduce = [&] {
      return exchange.all_reduce(std::vector<double>(exchange.rank() == 2 ? 3 : 2, 1.0), ReduceOp::kSum);
    };
    told += contains(message_of<InternalError>(reduce), "rank 2 reduces 3 values, rank 0 reduces 2");
  });
  EXPECT_EQ(told, 3);
}

TEST(StoreExchange, ABarrierWithATimeLimitEndsWithoutTheRankThatNeverComes) {
  constexpr int kRanks = 4;
  TestStore store;
  for (const int absent : {0, 2, -1}) {
    std::atomic<int> all_came = 0;
    const auto began = std::chrono::steady_clock::now();
    on_ranks(store, kRanks, [&](HostExchange& exchange) {
      const auto group = make_store_exchange(store.connect(), "this process", "absent" + std::to_string(absent),
                                             exchange.rank(), kRanks);
      if (exchange.rank() != absent) all_came += group->barrier_within(absent == -1 ? 20 : 0.3);
    });
    EXPECT_EQ(all_came, absent == -1 ? kRanks : 0) << "without rank " << absent;
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  }
}

}  // namespace
}  // namespace trireme
