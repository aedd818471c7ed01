#pragma once
// SVG drawings of a report, of bounded size whatever the number of points.

#include "report_runs.h"

#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// A pixel column of a drawing: lowest, highest and mean of the finite values whose steps lie in it.
struct ChartColumn {
  double step = 0;  // mean of theirs
  double low = 0, high = 0, mean = 0;
  bool after_gap = false;  // a value that is not finite lies between this column and the one before
};

/// At most `columns` columns over steps `first` to `last`, in ascending order of steps; empty ones are not there.
std::vector<ChartColumn> downsample(const ReportSeries& series, double first, double last, size_t columns);

struct ChartLine {
  std::string label;
  size_t colour = 0;  // of CSS variable --c<colour>
  const ReportSeries* series = nullptr;
  bool points = false;  // few values: dots joined by a dashed line
};

struct ChartOptions {
  std::string title, unit;
  size_t columns = 440;
  bool from_zero = false;                // the axis begins at 0
  std::optional<double> level;           // a dashed line across, such as a plan
  std::vector<ReportEvent> events = {};  // marked at their steps
};

/// A figure with axes; empty where no line has a finite value. The axis is logarithmic where all values are positive
/// and the highest is more than 100 times the lowest.
std::string chart(const std::vector<ChartLine>& lines, const ChartOptions& options);

/// How many steps took how long, a line for each run; the longest hundredth is left out of the axis and said.
std::string histogram(const std::vector<ChartLine>& lines, const std::string& title);

constexpr size_t kChartColours = 8;

}  // namespace trireme
