#pragma once
// Private to watchdog/: the last collectives of this process and the section of its training thread, written into a
// record that other ranks read.

#include "rank_record.h"
#include "trireme/comm/watch.h"
#include "trireme/watchdog/progress.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {

class ProgressRing final : public CollectiveObserver {
 public:
  static ProgressRing& instance();
  ProgressRing();
  uint64_t begin(const char* kind, int64_t elements, const char* group) override;
  void wait(uint64_t sequence) override;
  void resume(uint64_t sequence) override;
  void end(uint64_t sequence) override;

  /// Seconds for which the host has been blocked in a collective; 0 if it is not blocked.
  double longest_wait();
  RankView view();
  int record_fd() const { return shared_.fd(); }
  uint64_t record_token() { return shared_.record().token; }

  void set_rank(int rank);
  void begin_step(int64_t step);
  void set_section(const char* name, double began, double allowance);
  void beat();  // the watch's server runs
  void set_overdue(bool overdue);
  void add_section_time(const char* name, double seconds);
  std::vector<SectionTime> take_section_times();
  /// Seconds that the host has spent blocked in collectives so far.
  double blocked_seconds();
  struct Section {
    const char* name = "";
    double began = 0, allowance = 0;
  };
  Section section();

 private:
  /// Locks the record and makes its version odd while it is written.
  class Writing;
  static constexpr size_t kEntries = RankRecord::kEntries;
  CollectiveEntry* find(uint64_t sequence);

  std::mutex mutex_;
  SharedRecord shared_;
  Section section_;
  double blocked_ = 0, step_began_ = 0;
  std::deque<double> step_times_;
  std::map<std::string, double> section_times_;
};

}  // namespace trireme
