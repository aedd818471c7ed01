#include "trireme/watchdog/watchdog.h"

#include "progress_ring.h"
#include "rank_watch.h"

#include <utility>

namespace trireme {

namespace {

class TcpWatchdog final : public Watchdog {
 public:
  CollectiveObserver& observer() override { return ProgressRing::instance(); }
  std::unique_ptr<RankGuard> guard(int rank, int size, const AllGather& all_gather, Hooks hooks) override {
    return std::make_unique<RankWatch>(rank, size, all_gather, std::move(hooks));
  }
};

}  // namespace

Watchdog& rank_watchdog() {
  static TcpWatchdog watchdog;
  return watchdog;
}

}  // namespace trireme
