#pragma once
// Private to comm/: the last collectives of this process, and the thread that notices when one of them never ends.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace trireme {

/// Where this process stands: a ring of the last collectives, each with its sequence number. All ranks of a job issue the same
/// collectives in the same order, so equal numbers mean the same one.
class ProgressRing {
 public:
  static ProgressRing& instance();
  /// `kind` and `group` must outlive the ring (literals).
  uint64_t begin(const char* kind, int64_t elements, const char* group);
  /// The host blocks on this collective from now on.
  void wait(uint64_t sequence);
  void end(uint64_t sequence);

  struct Position {
    uint64_t sequence = 0;
    std::string text;  // "#412 all_reduce[1024] on world, waiting for 61 s"
  };
  /// The collective that this process is blocked on, else its oldest unfinished one, else the last it finished.
  Position position();
  /// Seconds that the host has been blocked on a collective; 0 when it is not.
  double longest_wait();

 private:
  struct Entry {
    uint64_t sequence = 0;
    const char* kind = "";
    const char* group = "";
    int64_t elements = 0;
    double began = 0, waited = 0, ended = 0;
  };
  static constexpr size_t kEntries = 64;
  std::mutex mutex_;
  Entry entries_[kEntries];
  uint64_t next_ = 1;
};

/// Ends the process with exit code 71 when a collective makes no progress for TRIREME_HANG_SECONDS (600).
class Watchdog {
 public:
  struct Hooks {
    /// Every second, e.g. to leave with a rank that has failed.
    std::function<void()> poll;
    /// Seconds that collectives queued on a GPU have made no progress.
    std::function<double()> device_wait;
    /// Finds out where the other ranks stand: lines for the report, or empty. Called once, before the process ends.
    std::function<std::string()> ask_others;
  };
  Watchdog(int rank, Hooks hooks);
  ~Watchdog();

 private:
  void run(int rank, double limit, const Hooks& hooks);
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace trireme
