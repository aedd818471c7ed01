#include "report_chart.h"

#include "trireme/base/html.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace trireme {

namespace {

// Units of a drawing; it is scaled to the width of its place.
constexpr double kChartWidth = 500, kChartHeight = 230, kLeft = 56, kRight = 8, kTop = 8, kBottom = 24;
constexpr double kPlotWidth = kChartWidth - kLeft - kRight, kPlotHeight = kChartHeight - kTop - kBottom;

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  /// 0 at the lower end, 1 at the upper.
  double part(double value) const {
    if (logarithmic) return (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
    return (value - low) / (high - low);
  }
};

double y_of(const Axis& axis, double value) {
  return kTop + kPlotHeight * (1 - std::clamp(axis.part(value), 0.0, 1.0));
}

double x_of(const Axis& axis, double step) { return kLeft + kPlotWidth * std::clamp(axis.part(step), 0.0, 1.0); }

/// Between the ticks of an axis that is not logarithmic: 1, 2 or 5 times a power of ten, about a fourth of its range.
double step_of(const Axis& axis) {
  const double rough = (axis.high - axis.low) / 4, power = std::pow(10, std::floor(std::log10(rough)));
  return power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
}

/// Round values on the axis, about four; powers of ten on a logarithmic one.
std::vector<double> ticks(const Axis& axis) {
  std::vector<double> found;
  if (axis.logarithmic) {
    const double first = std::ceil(std::log10(axis.low)), last = std::floor(std::log10(axis.high));
    const double apart = std::max(1.0, std::ceil((last - first) / 5));
    for (double power = first; power <= last; power += apart) found.push_back(std::pow(10, power));
    return found;
  }
  const double apart = step_of(axis);
  for (double i = std::ceil(axis.low / apart); i * apart <= axis.high && found.size() < 12; ++i)
    found.push_back(i * apart);
  return found;
}

/// From 10,000 on all values of an axis are short ("5k", "10k"). About six characters fit beside it, so small values
/// have an exponent: "4e-4". Ticks that are closer than a thousandth of the largest value have as many digits as tell
/// them apart.
std::string tick_text(double value, const Axis& axis) {
  const double size = std::abs(value), largest = std::max(std::abs(axis.low), std::abs(axis.high));
  if (size == 0) return "0";
  if (!axis.logarithmic && step_of(axis) < 1e-3 * largest) {
    const auto decimals = static_cast<int>(-std::floor(std::log10(step_of(axis)) + 1e-9));
    return decimals > 8 ? fmt::format("{:.12g}", value) : fmt::format("{:.{}f}", value, std::max(decimals, 0));
  }
  if (largest >= 1e4 && size >= 1000) return format_short(value);
  if (size >= 1e-2) return fmt::format("{:.4g}", value);
  const double exponent = std::floor(std::log10(size) + 1e-9);
  return fmt::format("{:.3g}e{:.0f}", value / std::pow(10, exponent), exponent);
}

using Marks = std::vector<std::pair<double, std::string>>;

std::string grid(const Axis& x, const Axis& y, const Marks& marks = {}) {
  std::string text;
  for (const double value : ticks(y))
    text += fmt::format(
        R"(<line class="g" x1="{0:.0f}" x2="{1:.0f}" y1="{2:.1f}" y2="{2:.1f}"/><text x="{3:.0f}" y="{4:.1f}" class="v">{5}</text>)",
        kLeft, kChartWidth - kRight, y_of(y, value), kLeft - 5, y_of(y, value) + 4, tick_text(value, y));
  Marks shown = marks;
  if (shown.empty())
    for (const double value : ticks(x)) shown.emplace_back(value, tick_text(value, x));
  for (const auto& [value, name] : shown) {
    const bool at_edge = x_of(x, value) > kChartWidth - 24;  // the text would be cut off
    text += fmt::format(R"(<text x="{:.1f}" y="{:.0f}" class="{}">{}</text>)", at_edge ? kChartWidth : x_of(x, value),
                        kChartHeight - 7, at_edge ? "v" : "s", name);
  }
  return text;
}

std::string figure(const std::string& title, const std::string& drawing, const std::string& note) {
  return fmt::format(
      "<figure><figcaption>{}{}</figcaption><svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">{}</svg></figure>\n",
      html_escaped(title), note.empty() ? "" : " <small>" + html_escaped(note) + "</small>", kChartWidth, kChartHeight,
      drawing);
}

/// What the value of a column belongs to: "step 12", or the mark at it.
std::string column_name(double step, const Marks& marks) {
  const auto found = std::find_if(marks.begin(), marks.end(), [&](const auto& mark) { return mark.first == step; });
  return found == marks.end() ? fmt::format("step {:.0f}", step) : found->second;
}

/// The mean as a line; where columns hold several values, lowest to highest as a band behind it.
/// `lines`: how many the drawing has; the bands of many runs lie over each other and must not hide the lines.
std::string curve(const std::vector<ChartColumn>& columns, const Axis& x, const Axis& y, const ChartLine& line,
                  size_t lines, const Marks& marks) {
  std::string path, upper, lower, dots;
  bool band = false;
  for (size_t i = 0; i < columns.size(); ++i) {
    const ChartColumn& column = columns[i];
    const double at = x_of(x, column.step);
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 || column.after_gap ? 'M' : 'L', at, y_of(y, column.mean));
    upper += fmt::format("{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L', at, y_of(y, column.high));
    band |= column.high > column.low;
    if (line.points && columns.size() <= 100)
      dots += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>{} {}: {:.6g}</title></circle>)", at,
                          y_of(y, column.mean), html_escaped(line.label), column_name(column.step, marks), column.mean);
  }
  for (size_t i = columns.size(); i-- > 0;)
    lower += fmt::format("L{:.1f} {:.1f}", x_of(x, columns[i].step), y_of(y, columns[i].low));
  std::string text = fmt::format("<g style=\"--c:var(--c{});--b:{:.2g}\">", line.colour % kChartColours,
                                 0.22 / static_cast<double>(std::max<size_t>(1, lines - lines / 4)));
  if (band) text += fmt::format(R"(<path class="b" d="{}{}Z"/>)", upper, lower);
  if (columns.size() == 1 && dots.empty())
    text +=
        fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3"/>)", x_of(x, columns[0].step), y_of(y, columns[0].mean));
  return text + fmt::format(R"(<path class="{}" d="{}"/>{}</g>)", line.points ? "c d" : "c", path, dots);
}

}  // namespace

std::string event_mark(ReportEvent::Kind kind, double x, double top, double bottom, const std::string& title) {
  return fmt::format(R"(<line class="e {}" x1="{:.1f}" x2="{:.1f}" y1="{:.0f}" y2="{:.0f}">{}</line>)",
                     kReportEvents[static_cast<size_t>(kind)].style, x, x, top, bottom,
                     title.empty() ? "" : "<title>" + title + "</title>");
}

namespace {

/// One mark a kind and pixel, however many events there are.
std::string marks(const std::vector<ReportEvent>& events, const Axis& x) {
  std::string text;
  std::set<std::pair<ReportEvent::Kind, int>> drawn;
  for (const ReportEvent& event : events) {
    const double at = x_of(x, event.step);
    if (!drawn.insert({event.kind, static_cast<int>(at)}).second) continue;
    // Checkpoints are many and ordinary: a short mark at the axis.
    const double top = event.kind == ReportEvent::Kind::kSave ? kTop + kPlotHeight - 7 : kTop;
    text += event_mark(event.kind, at, top, kTop + kPlotHeight,
                       fmt::format("step {:.0f}: {}", event.step, html_escaped(event.text, 160)));
  }
  return text;
}

Axis value_axis(double low, double high, bool from_zero) {
  Axis axis;
  axis.logarithmic = low > 0 && high / low > 100;
  if (axis.logarithmic) {
    axis.low = low / 1.1;
    axis.high = high * 1.1;
    return axis;
  }
  if (from_zero) low = std::min(low, 0.0);
  const double room = high > low ? (high - low) * 0.04 : std::max(std::abs(high) * 0.05, 1e-12);
  axis.low = from_zero && low == 0 ? 0 : low - room;
  axis.high = high + room;
  return axis;
}

}  // namespace

std::vector<ChartColumn> downsample(const ReportSeries& series, double first, double last, size_t columns) {
  struct Sum {
    double steps = 0, values = 0, low = 0, high = 0, count = 0;
    bool gap = false;
  };
  std::vector<Sum> sums(columns);
  const double scale = last > first ? static_cast<double>(columns) / (last - first) : 0;
  for (size_t i = 0; i < series.steps.size(); ++i) {
    const double step = series.steps[i], value = series.values[i];
    Sum& sum = sums[std::min(columns - 1, static_cast<size_t>(std::max(0.0, (step - first) * scale)))];
    if (!std::isfinite(value)) {
      sum.gap = true;
      continue;
    }
    sum.low = sum.count == 0 ? value : std::min(sum.low, value);
    sum.high = sum.count == 0 ? value : std::max(sum.high, value);
    ++sum.count;
    sum.steps += (step - sum.steps) / sum.count;
    sum.values += (value - sum.values) / sum.count;
  }
  std::vector<ChartColumn> found;
  bool gap = false;
  for (const Sum& sum : sums) {
    gap |= sum.gap;
    if (sum.count == 0) continue;
    found.push_back({sum.steps, sum.low, sum.high, sum.values, gap && !found.empty()});
    gap = sum.gap;
  }
  return found;
}

namespace {

struct Drawing {
  std::string elements, note;  // elements: empty where no line has a finite value
};

Drawing draw(const std::vector<ChartLine>& lines, const ChartOptions& options) {
  double first = std::numeric_limits<double>::infinity(), last = -first, low = first, high = -first;
  int64_t missing = 0;
  for (const ChartLine& line : lines)
    for (size_t i = 0; i < line.series->steps.size(); ++i) {
      const double value = line.series->values[i];
      first = std::min(first, line.series->steps[i]);
      last = std::max(last, line.series->steps[i]);
      if (!std::isfinite(value)) {
        ++missing;
        continue;
      }
      low = std::min(low, value);
      high = std::max(high, value);
    }
  if (!(low <= high)) return {};
  if (options.level) high = std::max(high, *options.level);
  const Axis x{first, last > first ? last : first + 1, false};
  const Axis y = value_axis(low, high, options.from_zero);
  std::string drawing = grid(x, y, options.marks) + marks(options.events, x);
  for (const ChartLine& line : lines) {
    const auto columns = downsample(*line.series, x.low, x.high, options.columns);
    if (!columns.empty()) drawing += curve(columns, x, y, line, lines.size(), options.marks);
  }
  if (options.level)
    drawing += fmt::format(R"(<line class="p" x1="{0:.0f}" x2="{1:.0f}" y1="{2:.1f}" y2="{2:.1f}"/>)", kLeft,
                           kChartWidth - kRight, y_of(y, *options.level));
  std::string note = options.unit;
  if (y.logarithmic) note += note.empty() ? "logarithmic" : ", logarithmic";
  if (missing > 0)
    note += fmt::format("{}{} {} not finite", note.empty() ? "" : ", ", counted(missing, "value"),
                        missing == 1 ? "is" : "are");
  return {drawing, note};
}

}  // namespace

std::string chart(const std::vector<ChartLine>& lines, const ChartOptions& options) {
  const Drawing drawing = draw(lines, options);
  return drawing.elements.empty() ? "" : figure(options.title, drawing.elements, drawing.note);
}

std::string chart_file(const std::string& title, const std::string& note, const std::vector<ChartLine>& lines,
                       const std::vector<ChartPanel>& panels) {
  constexpr double kGap = 24, kHead = 84, kTitle = 22;
  std::string body;
  int shown = 0;
  for (const ChartPanel& panel : panels) {
    const Drawing drawing = draw(panel.lines, panel.options);
    if (drawing.elements.empty()) continue;
    const double left = kGap + (shown % 2) * (kChartWidth + kGap);
    const double top = kHead + (shown / 2) * (kChartHeight + kTitle + kGap);
    body += fmt::format(
        R"(<text x="{:.0f}" y="{:.0f}"><tspan class="t">{}</tspan> {}</text><svg x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}">{}</svg>)",
        left, top + 12, html_escaped(panel.options.title), html_escaped(drawing.note), left, top + kTitle, kChartWidth,
        kChartHeight, drawing.elements);
    ++shown;
  }
  double at = kGap;
  for (const ChartLine& line : lines) {
    body += fmt::format(
        R"x(<g style="--c:var(--c{})"><circle cx="{:.0f}" cy="64" r="5"/><text x="{:.0f}" y="68">{}</text></g>)x",
        line.colour % kChartColours, at + 5, at + 15, html_escaped(line.label));
    at += 40 + 7.5 * static_cast<double>(line.label.size());
  }
  const double width = 2 * kChartWidth + 3 * kGap;
  const double height = kHead + ((shown + 1) / 2) * (kChartHeight + kTitle + kGap);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\"><title>{2}</title><style>{3}{4}svg{{font-family:system-ui,sans-serif}}"
      ".t{{font-weight:600;fill:var(--text)}}text.head{{font-size:17px;font-weight:600;fill:var(--text)}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"var(--back)\"/>"
      "<text x=\"{5:.0f}\" y=\"26\" class=\"head\">{2}</text><text x=\"{5:.0f}\" y=\"46\">{6}</text>\n{7}</svg>\n",
      width, height, html_escaped(title), kPageColours, kChartStyle, kGap, html_escaped(note), body);
}

std::string histogram(const std::vector<ChartLine>& lines, const std::string& title) {
  constexpr size_t kBins = 60;
  std::vector<double> all;
  for (const ChartLine& line : lines)
    for (const double value : line.series->values)
      if (std::isfinite(value) && value >= 0) all.push_back(value);
  if (all.empty()) return "";
  const auto [lowest, longest] = std::minmax_element(all.begin(), all.end());
  const double low = *lowest, most_seconds = *longest;
  const auto hundredth = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size() - 1, all.size() * 99 / 100));
  std::nth_element(all.begin(), hundredth, all.end());
  const double high = *hundredth;
  const Axis x{low, high > low ? high : low + std::max(low * 0.1, 1e-6), false};
  const auto beyond = std::count_if(all.begin(), all.end(), [&](double value) { return value > x.high; });
  std::vector<std::vector<double>> bins;
  double most = 0;
  for (const ChartLine& line : lines) {
    std::vector<double>& bin = bins.emplace_back(kBins, 0.0);
    for (const double value : line.series->values)
      if (std::isfinite(value) && value >= 0 && value <= x.high)
        ++bin[std::min(kBins - 1, static_cast<size_t>(x.part(value) * kBins))];
    most = std::max(most, *std::max_element(bin.begin(), bin.end()));
  }
  const Axis y{0, std::max(1.0, most * 1.05), false};
  std::string drawing = grid(x, y);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string path = fmt::format("M{:.1f} {:.1f}", kLeft, y_of(y, 0));
    for (size_t b = 0; b < kBins; ++b) {
      const double left = kLeft + kPlotWidth * static_cast<double>(b) / kBins, top = y_of(y, bins[i][b]);
      path += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}", left, top, left + kPlotWidth / kBins, top);
    }
    path += fmt::format("L{:.1f} {:.1f}Z", kLeft + kPlotWidth, y_of(y, 0));
    drawing += fmt::format(R"x(<g style="--c:var(--c{})"><path class="b h" d="{}"/></g>)x",
                           lines[i].colour % kChartColours, path);
  }
  return figure(title, drawing,
                beyond > 0
                    ? fmt::format("steps over seconds; {} longer, up to {}", beyond, format_duration(most_seconds))
                    : "steps over seconds");
}

}  // namespace trireme
