#include "collectives.h"

#include "trireme/base/error.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

namespace trireme {

namespace {

/// Sequence numbers are needed without a watchdog too: messages name collectives by them.
class Counter final : public CollectiveObserver {
 public:
  uint64_t begin(const char*, int64_t, const char*) override { return ++last_; }
  void wait(uint64_t) override {}
  void resume(uint64_t) override {}
  void end(uint64_t) override {}

 private:
  std::atomic<uint64_t> last_ = 0;
};

std::atomic<CollectiveObserver*>& installed() {
  static std::atomic<CollectiveObserver*> observer =
      new Counter;  // never destroyed: threads may use it until the process ends
  return observer;
}

}  // namespace

CollectiveObserver& collective_observer() { return *installed().load(std::memory_order_acquire); }

void set_collective_observer(CollectiveObserver& observer) { installed().store(&observer, std::memory_order_release); }

bool checking_collectives() {
  static const bool on = [] {
    const char* value = std::getenv("TRIREME_CHECK_COLLECTIVES");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return on;
}

void check_same_collective(const std::vector<std::string>& all, uint64_t sequence) {
  std::map<std::string, std::string> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank)
    ranks[all[rank]] += (ranks[all[rank]].empty() ? "" : ", ") + std::to_string(rank);
  if (ranks.size() == 1) return;
  std::string text;
  for (const auto& [what, who] : ranks) text += (text.empty() ? "" : "; ") + ("rank " + who + " at " + what);
  throw InternalError("the ranks issue different collectives at #" + std::to_string(sequence) +
                      " of this rank: " + text);
}

}  // namespace trireme
