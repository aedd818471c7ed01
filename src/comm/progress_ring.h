#pragma once
// Private to comm/: the last collectives of this process and where its training thread is, kept where other ranks can
// read it.

#include "rank_record.h"
#include "trireme/comm/progress.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace trireme {

/// All ranks of a job issue the same collectives in the same order, so equal sequence numbers mean the same one.
class ProgressRing {
 public:
  static ProgressRing& instance();
  ProgressRing();
  uint64_t begin(const char* kind, int64_t elements, const char* group);
  /// The host blocks on this collective from now on.
  void wait(uint64_t sequence);
  /// The host goes on although the collective has not ended.
  void resume(uint64_t sequence);
  void end(uint64_t sequence);

  /// Seconds that the host has been blocked on a collective; 0 when it is not.
  double longest_wait();
  RankView view();
  int record_fd() const { return shared_.fd(); }
  uint64_t record_token() { return shared_.record().token; }

  void set_rank(int rank);
  void begin_step(int64_t step);
  void set_section(const char* name, double began, double allowance);
  void beat();  // the watchdog is alive
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
  /// Brackets a change of the record for its readers.
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

/// A collective in which the host blocks from its start to its end. One that throws stays open: the last words then say
/// inside of what.
template <class Call>
void block_in_collective(const char* kind, int64_t elements, const char* group, const Call& call) {
  const uint64_t sequence = ProgressRing::instance().begin(kind, elements, group);
  ProgressRing::instance().wait(sequence);
  call();
  ProgressRing::instance().end(sequence);
}

/// Starts a collective: `launch(sequence)` queues it and returns its Work. The host counts as blocked until then:
/// NCCL's first call on a group waits for the peers.
template <class Launch>
auto launch_collective(const char* kind, int64_t elements, const char* group, const Launch& launch) {
  ProgressRing& ring = ProgressRing::instance();
  const uint64_t sequence = ring.begin(kind, elements, group);
  ring.wait(sequence);
  auto work = launch(sequence);
  ring.resume(sequence);
  return work;
}

/// TRIREME_CHECK_COLLECTIVES=1: before a collective starts the ranks compare what they are about to do.
bool checking_collectives();
/// InternalError naming the ranks whose text differs from the others'. `all`: of every rank of the group,
/// "all_reduce[1024] on world" and the like.
void check_same_collective(const std::vector<std::string>& all, uint64_t sequence);

}  // namespace trireme
