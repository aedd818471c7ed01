// Alternates between several implementations of the same work. At its power limit a GPU's clock depends on what ran
// before, so only measurements that are adjacent in time are comparable.

#include "kernels/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace trireme::kernels::bench {

namespace {

constexpr double kSettleSeconds = 0.5, kBatchMicroseconds = 4000;
constexpr int kRounds = 15, kMostInBatch = 16;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double time_device(const DeviceTimer& timer, const Contender& c, int count) {
  return timer.time(c.name, count, [&](int) { return c.launch(); });
}

/// Microseconds of one call on the host's clock, from an idle device to an idle device.
double time_whole(const Contender& c) {
  check(cudaDeviceSynchronize(), c.name.c_str());
  const Clock::time_point begin = Clock::now();
  check(c.whole_call ? c.whole_call() : c.launch(), c.name.c_str());
  check(cudaDeviceSynchronize(), c.name.c_str());
  return seconds_since(begin) * 1e6;
}

}  // namespace

void Recorder::alternate(std::vector<Contender> contenders, const std::string& shape, Element element, double bytes) {
  std::erase_if(contenders, [&](const Contender& c) { return !wants(c.name); });
  if (contenders.empty()) return;
  const DeviceTimer timer;
  const size_t count = contenders.size();
  std::vector<int> batch(count, 1);
  for (const Clock::time_point begin = Clock::now(); seconds_since(begin) < kSettleSeconds;)
    for (size_t i = 0; i < count; ++i)
      batch[i] = std::clamp(static_cast<int>(kBatchMicroseconds / time_device(timer, contenders[i], batch[i])), 1,
                            kMostInBatch);
  std::vector<std::vector<double>> device(count), whole(count), clocks(count);
  SmClock clock;
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < count; ++i) {
      clock.begin();
      device[i].push_back(time_device(timer, contenders[i], batch[i]));
      clock.end();
      clocks[i].push_back(clock.megahertz());
    }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < count; ++i) whole[i].push_back(time_whole(contenders[i]));

  const auto peer = std::find_if(contenders.begin(), contenders.end(), [](const Contender& c) { return c.peer; });
  for (size_t i = 0; i < count; ++i) {
    const Contender& c = contenders[i];
    Result r = summary(c.name, shape, element, bytes, device[i], percentile(clocks[i], 0.5));
    r.whole_microseconds = percentile(whole[i], 0.5);
    if (peer != contenders.end() && !c.peer) {
      // Ratios of measurements adjacent in time, then their median.
      const size_t p = static_cast<size_t>(peer - contenders.begin());
      std::vector<double> ratios, whole_ratios;
      for (int round = 0; round < kRounds; ++round) {
        const auto at = static_cast<size_t>(round);
        ratios.push_back(device[p][at] / device[i][at]);
        whole_ratios.push_back(whole[p][at] / whole[i][at]);
      }
      r.peer = peer->name;
      r.ratio = percentile(ratios, 0.5);
      r.whole_ratio = percentile(whole_ratios, 0.5);
    }
    keep(std::move(r));
  }
}

}  // namespace trireme::kernels::bench
