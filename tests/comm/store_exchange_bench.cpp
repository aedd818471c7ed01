// Measures exchanges through rank 0's key store. Every rank is a thread with its own connection:
//   store_exchange_bench RANKS [ROUNDS [BYTES]]
#include "key_server.h"
#include "store_world.h"

#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  using namespace trireme;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 256, rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::string value(argc > 3 ? std::stoul(argv[3]) : 24, 'x');
  const KeyServer server("127.0.0.1", 0, "bench");

  struct Case {
    const char* name;
    std::function<void(HostExchange&)> exchange;
  };
  const std::vector<Case> cases = {
      {"all_gather", [&](HostExchange& exchange) { (void)exchange.all_gather(value); }},
      {"gather", [&](HostExchange& exchange) { (void)exchange.gather(value); }},
      {"all_reduce", [&](HostExchange& exchange) { (void)exchange.all_reduce({1, 2, 3}, ReduceOp::kSum); }},
  };
  std::vector<std::vector<double>> seconds(cases.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const auto exchange = make_store_exchange(connect_key_store("127.0.0.1", server.port(), "bench", rank, ranks, 60),
                                                "this process", "world", rank, ranks);
      (void)exchange->all_gather("");
      for (size_t c = 0; c < cases.size(); ++c)
        for (int round = 0; round < rounds; ++round) {
          const double began = steady_seconds();
          cases[c].exchange(*exchange);
          // Rank 0 ends a round when all ranks have their values.
          (void)exchange->all_gather("");
          if (rank == 0) seconds[c].push_back(steady_seconds() - began);
        }
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t c = 0; c < cases.size(); ++c) {
    std::sort(seconds[c].begin(), seconds[c].end());
    fmt::print("{} ranks, {} of {} bytes and an empty all_gather: median {:.4f} s, least {:.4f} s\n", ranks,
               cases[c].name, value.size(), seconds[c][seconds[c].size() / 2], seconds[c].front());
  }
}
