#pragma once
// Private to train/: the rows of a run are looked at before its first step, beside the loading of the weights.

#include "data/row_scan.h"
#include "trireme/comm/communicator.h"

#include <memory>

namespace trireme {

/// A dry run looks at rows for at most so long; a run for as long as its weights load, but no longer than this.
constexpr double kLongestScan = 10;

/// Threads that look at rows on one rank.
int scan_threads(int local_world_size);

/// Collective, when the weights are there: ends the scans of all ranks, after a second at least if they are not through
/// by then. CollectiveError (kData) for a bad row. Says how many rows were looked at.
void finish_scan(std::unique_ptr<RowScan> scan, Communicator& comm);

}  // namespace trireme
