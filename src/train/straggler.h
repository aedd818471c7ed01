#pragma once
// Private to train/: ranks that are slower than the others, told by the host seconds they work between collectives.

#include "trireme/watchdog/progress.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// When to compare the ranks: after the first ten steps, then every fifty.
bool straggler_report_due(int64_t steps_since_start);

/// Text of one rank's times for the exchange.
std::string encode_section_times(const std::vector<SectionTime>& times);

/// `per_rank`: of every rank, what it exchanged; `steps`: how many steps they span. One sentence per rank and section
/// that takes more than twice the median of all ranks and makes a step of `step_seconds` at least a quarter longer.
std::vector<std::string> find_stragglers(const std::vector<std::string>& per_rank,
                                         const std::vector<std::string>& hosts, int64_t steps, double step_seconds);

}  // namespace trireme
