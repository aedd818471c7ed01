#pragma once
// What the training thread tells the watchdogs of all ranks: the step, what it is doing, and how long that may take.

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// Step `step` (from 1) begins. The time between two calls feeds the watchdog's limit: 300 s before the first step has
/// ended, then max(60 s, 10 × the median step); TRIREME_HANG_SECONDS replaces both.
void begin_progress_step(int64_t step);

/// A part of the work of the training thread: "data", "forward", "save", … (a literal). Ranks that wait for one in a
/// section with an allowance give it that many seconds, counted from its start, before they call it hung: for slow
/// storage and start-up.
class ProgressSection {
 public:
  explicit ProgressSection(const char* name, double allowance_seconds = 0);
  ~ProgressSection();
  ProgressSection(const ProgressSection&) = delete;
  ProgressSection& operator=(const ProgressSection&) = delete;

 private:
  const char* previous_;
  double previous_began_, previous_allowance_, began_, blocked_;
};

/// Allowance of sections that read or write whole models: what a slow but working file system may take.
constexpr double kStorageAllowance = 1800;

/// Host seconds spent in each section since the last call, without the time blocked in collectives.
struct SectionTime {
  std::string name;
  double seconds = 0;
};
std::vector<SectionTime> take_section_times();

}  // namespace trireme
