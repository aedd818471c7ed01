#include "progress_ring.h"

#include "trireme/base/error.h"
#include "trireme/base/time.h"
#include "world_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace trireme {

ProgressRing& ProgressRing::instance() {
  static ProgressRing ring;
  return ring;
}

uint64_t ProgressRing::begin(const char* kind, int64_t elements, const char* group) {
  const std::lock_guard lock(mutex_);
  entries_[next_ % kEntries] = {next_, kind, group, elements, steady_seconds(), 0, 0};
  return next_++;
}

void ProgressRing::wait(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[sequence % kEntries];
  if (entry.sequence == sequence) entry.waited = steady_seconds();
}

void ProgressRing::end(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[sequence % kEntries];
  if (entry.sequence == sequence) entry.ended = steady_seconds();
}

double ProgressRing::longest_wait() {
  const std::lock_guard lock(mutex_);
  double longest = 0;
  for (const Entry& entry : entries_)
    if (entry.waited > 0 && entry.ended == 0) longest = std::max(longest, steady_seconds() - entry.waited);
  return longest;
}

ProgressRing::Position ProgressRing::position() {
  const std::lock_guard lock(mutex_);
  const Entry *blocked = nullptr, *unfinished = nullptr, *last = nullptr;
  for (uint64_t sequence = next_ > kEntries ? next_ - kEntries : 1; sequence < next_; ++sequence) {
    const Entry& entry = entries_[sequence % kEntries];
    last = &entry;
    if (entry.ended > 0) continue;
    if (unfinished == nullptr) unfinished = &entry;
    if (blocked == nullptr && entry.waited > 0) blocked = &entry;
  }
  if (last == nullptr) return {0, "before the first collective"};
  const Entry& at = blocked != nullptr ? *blocked : unfinished != nullptr ? *unfinished : *last;
  const double now = steady_seconds();
  const std::string state = at.ended > 0     ? fmt::format("finished {:.0f} s ago, none since", now - at.ended)
                            : at.waited > 0  ? fmt::format("waiting for {:.0f} s", now - at.waited)
                                             : fmt::format("begun {:.0f} s ago", now - at.began);
  return {at.sequence, fmt::format("#{} {}[{}] on {}, {}", at.sequence, at.kind, at.elements, at.group, state)};
}

Watchdog::Watchdog(int rank, Hooks hooks) {
  const double limit = positive_seconds("TRIREME_HANG_SECONDS", 600);
  thread_ = std::thread([this, rank, limit, hooks = std::move(hooks)] { run(rank, limit, hooks); });
}

void Watchdog::run(int rank, double limit, const Hooks& hooks) {
  for (;;) {
    for (int i = 0; i < 10; ++i) {
      if (stop_) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (hooks.poll) hooks.poll();
    const double stuck = std::max(ProgressRing::instance().longest_wait(), hooks.device_wait ? hooks.device_wait() : 0.0);
    if (stuck < limit) continue;
    const auto position = ProgressRing::instance().position();
    const std::string others = hooks.ask_others ? hooks.ask_others() : std::string();
    if (stop_) return;
    print_failure(rank, fmt::format("no progress for {:.0f} s at {}; {}another rank is dead or stuck, or the machine is slow and needs a "
                                    "longer TRIREME_HANG_SECONDS (now {:g})", stuck, position.text,
                                    others.empty() ? "" : "where the ranks stand:\n" + others, limit));
    _exit(static_cast<int>(ExitCode::kHang));
  }
}

Watchdog::~Watchdog() {
  stop_ = true;
  thread_.join();
}

}  // namespace trireme
