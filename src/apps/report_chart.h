#pragma once
// SVG drawings of a report, of bounded size for any number of points.

#include "report_runs.h"

#include <optional>
#include <string>
#include <utility>
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
  /// Marks of the axis of steps with their texts, which values at them are called by; empty: round numbers.
  std::vector<std::pair<double, std::string>> marks = {};
};

/// The line that marks an event at `x`, for a drawing and for the key of its marks. `title`: escaped.
std::string event_mark(ReportEvent::Kind kind, double x, double top, double bottom, const std::string& title = "");

/// A figure with axes; empty where no line has a finite value. The axis is logarithmic where all values are positive
/// and the highest is more than 100 times the lowest.
std::string chart(const std::vector<ChartLine>& lines, const ChartOptions& options);

/// CSS of the drawings: colours of lines, text, grid. It needs kPageColours (base/html.h).
inline constexpr const char* kChartStyle = R"(
:root{--c0:#3566b8;--c1:#c4561c;--c2:#2f7d4f;--c3:#8e44ad;--c4:#a0781a;--c5:#c0326e;--c6:#1f8a99;--c7:#5f6b7a}
@media (prefers-color-scheme:dark){:root{--c0:#6c9bea;--c1:#f08a4b;--c2:#57b37c;--c3:#c08ae0;--c4:#d9b441;--c5:#ee6fa0;--c6:#4fc3d3;--c7:#a3adba}}
svg text{font-size:12px;fill:var(--faint)}text.v{text-anchor:end}text.s{text-anchor:middle}
.g{stroke:var(--line);stroke-width:.7}.c{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}.d{stroke-dasharray:5 3}
.b{fill:var(--c);opacity:var(--b,.22)}.h{opacity:.5;stroke:var(--c)}circle{fill:var(--c)}.p{stroke:var(--text);stroke-dasharray:2 4}
)";

struct ChartPanel {
  std::vector<ChartLine> lines;
  ChartOptions options;
};

/// A whole SVG file with the panels in two columns and one key of the lines, for light and dark. Panels without a
/// finite value are not drawn. `lines`: those of the key, whose series are not read.
std::string chart_file(const std::string& title, const std::string& note, const std::vector<ChartLine>& lines,
                       const std::vector<ChartPanel>& panels);

/// How many steps took how long, a line for each run; the longest hundredth lies beyond the axis, and a note says so.
std::string histogram(const std::vector<ChartLine>& lines, const std::string& title);

constexpr size_t kChartColours = 8;

}  // namespace trireme
