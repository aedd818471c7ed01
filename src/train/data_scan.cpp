#include "data_scan.h"

#include "collective_check.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"

#include <algorithm>
#include <thread>

namespace trireme {

namespace {

/// A scan gets so long even where the weights are there at once.
constexpr double kShortestScan = 1;

}  // namespace

int scan_threads(int local_world_size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / std::max(1, local_world_size), 1, 8);
}

void finish_scan(std::unique_ptr<RowScan> scan, Communicator& comm) {
  RowScanReport report;
  collective_check(comm, [&] {
    report = scan->finish(kShortestScan);
    if (report.bad_rows > 0) throw DataError(report.first_bad.front().what);
  });
  const auto sums = comm.all_reduce_host({static_cast<double>(report.rows), static_cast<double>(report.checked)});
  report.rows = static_cast<int64_t>(sums[0]);
  report.checked = static_cast<int64_t>(sums[1]);
  log_info("data: " + report.summary());
}

}  // namespace trireme
