#pragma once
// The training thread's progress, for the watchdogs of all ranks: the step, the section of its work, and the time limit
// of the section.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Step `step` (from 1) begins. The watchdog's time limit follows from the time between two calls: 300 s before the
/// first step has ended, then max(60 s, 10 × the median step); TRIREME_HANG_SECONDS replaces both.
void begin_progress_step(int64_t step);

/// A literal of one word: the texts in which ranks send each other their sections separate words by blanks.
struct SectionName {
  consteval SectionName(const char* literal) : text(literal) {
    const std::string_view word(literal);
    if (word.empty() || word.find(' ') != word.npos) throw "the name of a section is one word";
  }
  const char* text;
};

/// A section of the training thread's work: "data", "forward", "save", … A rank inside a section with an allowance
/// counts as hung only when so many seconds have passed since the section's start (slow storage, start-up).
class ProgressSection {
 public:
  explicit ProgressSection(SectionName name, double allowance_seconds = 0);
  ~ProgressSection();
  ProgressSection(const ProgressSection&) = delete;
  ProgressSection& operator=(const ProgressSection&) = delete;

 private:
  const char* previous_;
  double previous_began_, previous_allowance_, began_, blocked_;
};

/// Allowance in seconds for sections that read or write whole models on slow storage.
constexpr double kStorageAllowance = 1800;

/// Host seconds in each section since the last call, excluding the time blocked in collectives.
struct SectionTime {
  std::string name;
  double seconds = 0;
};
std::vector<SectionTime> take_section_times();

}  // namespace trireme
