#pragma once
// Private to watchdog/: the state of one rank, in memory that the other ranks of its host can read even when the rank
// is stopped or dead.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct CollectiveEntry {
  uint64_t sequence = 0;
  int64_t elements = 0;
  double began = 0, waited = 0, ended = 0;  // steady seconds; 0: not yet
  char kind[20] = {}, group[12] = {};
};

/// Fixed layout, written by one process under its own lock and read by others without one.
struct RankRecord {
  static constexpr size_t kEntries = 64;
  uint64_t token = 0;                // identifies this process: readers compare it
  std::atomic<uint32_t> version{0};  // odd while it is being written
  int32_t rank = 0, pid = 0;
  int64_t step = 0;         // under way, from 1; 0: before the first
  double step_seconds = 0;  // median of the last steps; 0: none ended yet
  double heartbeat = 0;     // the last round of the watch's server, steady seconds
  /// The watchdog's last round in which this rank waited longer than its limit, steady seconds; 0: it does not.
  std::atomic<double> overdue{0};
  char section[24] = {};  // what the training thread does
  double section_began = 0, section_allowance = 0;
  uint64_t next = 1;  // sequence number of the next collective
  CollectiveEntry entries[kEntries];
};

/// A copy of a record. Times are ages in seconds at the moment of copying.
struct RankView {
  int rank = -1;
  std::string host;
  bool answered = false;  // false: neither its host's memory nor another rank gave its state
  int pid = 0;
  bool stopped = false, dead = false;  // from /proc: same host only
  int64_t step = 0;
  double step_seconds = 0, silent_for = 0;
  double overdue_ago = -1;  // -1: it does not wait beyond its limit
  std::string section;
  double section_for = 0, section_allowance = 0;
  struct Collective {
    uint64_t sequence = 0;
    int64_t elements = 0;
    std::string kind, group;
    double waiting_for = -1, ended_ago = -1, began_ago = 0;  // -1: no
    std::string name() const;                                // "#412 all_reduce[1024] on world"
  };
  std::vector<Collective> history;  // ascending
  /// The collective that the host is blocked on, else the oldest unfinished one, else the last it finished; null before
  /// the first.
  const Collective* position() const;
  /// The oldest collective that has begun and not ended.
  const Collective* unfinished() const;
  uint64_t last_begun() const { return history.empty() ? 0 : history.back().sequence; }
};

/// Copies a record, which its owner may be writing at the same time.
RankView view_of(const RankRecord& record, double now);

/// A view as text for other hosts: numbers and words. decode() returns false for any other text.
std::string encode(const RankView& view);
bool decode(const std::string& text, RankView& view);

/// A record in anonymous shared memory, which others open as /proc/<pid>/fd/<fd>. It has no name in any file system, so
/// no file can remain.
class SharedRecord {
 public:
  SharedRecord();
  RankRecord& record() { return *record_; }
  int fd() const { return fd_; }  // -1: not shared

 private:
  RankRecord* record_;
  int fd_ = -1;
};

/// Maps the record of a process on this host for reading, until this process ends. Null when it cannot be opened or has
/// another token.
const RankRecord* map_record(int pid, int fd, uint64_t token);

}  // namespace trireme
