#pragma once
// The page of `trireme report`: one file, nothing fetched from elsewhere.

#include "report_runs.h"

#include <string>
#include <vector>

namespace trireme {

/// HTML; below 1 MB for up to kMostReportRuns runs of any length.
std::string report_page(const std::vector<ReportRun>& runs);

constexpr size_t kMostReportRuns = 16;

}  // namespace trireme
