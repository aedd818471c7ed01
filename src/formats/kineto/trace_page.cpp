// The page of `trireme profile summarise`.
#include "range_sweep.h"
#include "trireme/base/html.h"
#include "trireme/base/text.h"
#include "trireme/formats/kineto/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace trireme {

namespace {

constexpr double kWidth = 1200;  // of a drawing, in its own units

/// Colours of classes: the same class has the same colour in all drawings.
class Colours {
 public:
  std::string of(const std::string& name) {
    const auto [entry, added] = numbers_.emplace(name, numbers_.size());
    // The golden angle keeps neighbours apart.
    return fmt::format("hsl({:.0f} 55% 55%)", std::fmod(static_cast<double>(entry->second) * 137.508 + 210, 360));
  }

 private:
  std::map<std::string, size_t> numbers_;
};

std::string rectangle(double x, double y, double width, double height, const std::string& fill, double opacity,
                      const std::string& title) {
  std::string text = fmt::format(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}")", x, y,
                                 std::max(width, 0.3), height, fill);
  if (opacity < 1) text += fmt::format(R"( fill-opacity="{:.2f}")", opacity);
  return title.empty() ? text + "/>" : text + fmt::format("><title>{}</title></rect>", html_escaped(title));
}

/// Intervals as columns of a fixed number, each as dark as it is covered: a page of bounded size.
std::string lane(const Intervals& intervals, const Interval& window, size_t columns, double y, double height,
                 const std::string& fill) {
  std::vector<double> covered(columns, 0);
  const double length = (window.end - window.begin) / static_cast<double>(columns);
  if (!(length > 0)) return "";
  for (const Interval& whole : intervals) {
    const double begin = std::max(whole.begin, window.begin), end = std::min(whole.end, window.end);
    if (begin >= end) continue;
    const auto column = [&](double at) {
      return std::min(columns - 1, static_cast<size_t>(std::max(0.0, (at - window.begin) / length)));
    };
    for (size_t i = column(begin); i <= column(end); ++i) {
      const double left = window.begin + static_cast<double>(i) * length;
      covered[i] += std::max(0.0, std::min(end, left + length) - std::max(begin, left));
    }
  }
  std::string text;
  const double width = kWidth / static_cast<double>(columns);
  for (size_t i = 0; i < columns;) {
    const int level = static_cast<int>(std::ceil(4 * std::min(1.0, covered[i] / length)));
    size_t end = i + 1;
    while (end < columns && static_cast<int>(std::ceil(4 * std::min(1.0, covered[end] / length))) == level) ++end;
    if (level > 0)
      text += rectangle(static_cast<double>(i) * width, y, static_cast<double>(end - i) * width, height, fill,
                        level / 4.0, "");
    i = end;
  }
  return text;
}

std::string parts_row(const std::string& head, const TimeParts& parts) {
  const auto cell = [&](double us) {
    return fmt::format("<td>{:.2f}<small> {:.1f}%</small></td>", us / 1e3, percentage(us, parts.window));
  };
  return fmt::format("<tr><th>{}</th><td>{:.2f}</td>{}{}{}{}{}</tr>\n", head, parts.window / 1e3,
                     cell(parts.computation), cell(parts.communication), cell(parts.exposed_communication),
                     cell(parts.copies), cell(parts.idle));
}

constexpr const char* kPartsHead =
    "<th>time ms</th><th>computation</th><th>communication</th><th>exposed communication</th><th>copies</th>"
    "<th>idle</th></tr>\n";

std::string class_bar(const TraceSummary& summary, Colours& colours) {
  double sum = 0;
  for (const ClassTime& entry : summary.classes) sum += entry.us;
  if (!(sum > 0)) return "";
  std::string text = fmt::format(R"(<svg viewBox="0 0 {:.0f} 26" preserveAspectRatio="none">)", kWidth);
  double x = 0;
  for (const ClassTime& entry : summary.classes) {
    const double width = kWidth * entry.us / sum;
    text += rectangle(x, 0, width, 26, colours.of(entry.name), 1,
                      fmt::format("{}: {:.2f} ms, {} calls", entry.name, entry.us / 1e3, entry.calls));
    x += width;
  }
  return text + "</svg>\n";
}

std::string class_table(const TraceSummary& summary, Colours& colours) {
  std::string text = fmt::format("<table><tr><th></th><th>ms</th><th>share</th><th>calls</th><th>{}</th></tr>\n",
                                 summary.gpu ? "largest kernel" : "largest part");
  for (const ClassTime& entry : summary.classes)
    text += fmt::format(
        "<tr><th><i style=\"background:{}\"></i>{}</th><td>{:.2f}</td><td>{:.1f}%</td><td>{}</td>"
        "<td class=\"name\">{:.2f} ms {}</td></tr>\n",
        colours.of(entry.name), html_escaped(entry.name), entry.us / 1e3, percentage(entry.us, summary.all.window),
        entry.calls, entry.largest_us / 1e3, html_escaped(entry.largest.substr(0, 90)));
  return text + "</table>\n";
}

/// Where communication runs and computation does not.
Intervals exposed(const TraceSummary& summary) {
  Intervals result;
  size_t next = 0;
  for (const Interval& one : summary.communication) {
    double begin = one.begin;
    while (next < summary.computation.size() && summary.computation[next].end <= begin) ++next;
    for (size_t i = next; i < summary.computation.size() && summary.computation[i].begin < one.end; ++i) {
      if (summary.computation[i].begin > begin) result.push_back({begin, summary.computation[i].begin});
      begin = std::max(begin, summary.computation[i].end);
    }
    if (begin < one.end) result.push_back({begin, one.end});
  }
  return result;
}

std::string timeline(const TraceSummary& summary, size_t columns, Colours& colours) {
  const Interval& window = summary.window;
  const double length = window.end - window.begin;
  if (!(length > 0)) return "";
  const auto x = [&](double at) { return kWidth * std::clamp((at - window.begin) / length, 0.0, 1.0); };
  std::string text = fmt::format(R"(<svg class="time" viewBox="0 0 {:.0f} 118" preserveAspectRatio="none">)", kWidth);
  for (const auto& step : summary.steps)
    text += fmt::format(R"(<line x1="{0:.2f}" x2="{0:.2f}" y1="0" y2="118" class="step"/>)", x(step.window.begin));
  for (const auto& step : summary.steps)
    text += rectangle(x(step.window.begin), 0, x(step.window.end) - x(step.window.begin), 14, "var(--step)", 1,
                      fmt::format("{}: {:.2f} ms", step.name, step.parts.window / 1e3));
  const size_t phases = std::min<size_t>(summary.phases.size(), 5000);
  for (size_t i = 0; i < phases; ++i) {
    const auto& phase = summary.phases[i];
    if (phase.window.end < window.begin || phase.window.begin > window.end) continue;
    text +=
        rectangle(x(phase.window.begin), 18, x(phase.window.end) - x(phase.window.begin), 18, colours.of(phase.name), 1,
                  fmt::format("{} (host): {:.2f} ms", phase.name, (phase.window.end - phase.window.begin) / 1e3));
  }
  text += lane(summary.computation, window, columns, 42, 22, "var(--computation)");
  text += lane(summary.communication, window, columns, 66, 16, "var(--communication)");
  text += lane(exposed(summary), window, columns, 84, 10, "var(--exposed)");
  text += lane(summary.copies, window, columns, 98, 16, "var(--copies)");
  return text + "</svg>\n";
}

std::string memory_curve(const TraceSummary& summary) {
  if (summary.memory.size() < 2) return "";
  const double begin = summary.memory.front().at, length = summary.memory.back().at - begin;
  int64_t peak = 1;
  for (const auto& point : summary.memory) peak = std::max(peak, point.allocated);
  // The highest value of each column.
  std::vector<int64_t> columns(600, -1);
  for (const auto& point : summary.memory) {
    const double part = length > 0 ? (point.at - begin) / length : 0;
    auto& column = columns[std::min<size_t>(599, static_cast<size_t>(part * 600))];
    column = std::max(column, point.allocated);
  }
  std::string points;
  int64_t last = summary.memory.front().allocated;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i] >= 0) last = columns[i];
    points += fmt::format("{:.1f},{:.1f} ", static_cast<double>(i) * kWidth / 600,
                          100 - 96 * static_cast<double>(last) / static_cast<double>(peak));
  }
  return fmt::format(
      "<p>Allocated memory over the trace, at most {}:</p><svg class=\"time\" viewBox=\"0 0 {:.0f} 100\" "
      "preserveAspectRatio=\"none\"><polyline points=\"{}\" class=\"memory\"/></svg>\n",
      format_bytes(peak), kWidth, points);
}

constexpr const char* kStyle = R"(
:root{--step:#c3cad4;--computation:#2f7d4f;--communication:#3566b8;--exposed:#c8372d;--copies:#a06a12}
@media (prefers-color-scheme:dark){:root{--step:#4a525d;--computation:#57b37c;--communication:#6c9bea;--exposed:#f0665c;--copies:#d9a441}}
td.name{text-align:left;font-family:monospace;font-size:12px}
svg{width:100%;height:26px;display:block;margin:.4em 0}svg.time{height:118px;background:color-mix(in srgb,var(--line) 35%,transparent)}
line.step{stroke:var(--line);vector-effect:non-scaling-stroke}
polyline.memory{fill:none;stroke:var(--communication);stroke-width:1.5;vector-effect:non-scaling-stroke}
)";

std::string key(const char* colour, const char* text) {
  return fmt::format("<i style=\"background:var(--{})\"></i>{} &nbsp; ", colour, text);
}

}  // namespace

std::string summary_page(const std::string& title, const std::vector<TraceSummary>& summaries) {
  Colours colours;
  const size_t columns = summaries.size() > 16 ? 300 : 1200;
  std::string page = html_head("Profile " + title, kStyle);
  page += fmt::format("<table><tr><th>rank</th>{}", kPartsHead);
  for (const TraceSummary& s : summaries)
    page +=
        parts_row(fmt::format("{} <small>{}</small>", trace_label(s), html_escaped(s.file.filename().string())), s.all);
  page +=
      "</table>\n<p class=\"note\">Percentages are of the time in the first column. Exposed communication runs while "
      "no computation runs. Idle: nothing runs.</p>\n<p>";
  page += key("step", "step") + key("computation", "computation") + key("communication", "communication") +
          key("exposed", "exposed communication") + key("copies", "copies") + "</p>\n";
  for (const TraceSummary& s : summaries) {
    page += fmt::format("<h2>Rank {} of {}{} <small>{}, {}</small></h2>\n", s.rank, s.world_size,
                        s.cycle > 0 ? fmt::format(", cycle {}", s.cycle) : "", s.gpu ? "GPU" : "CPU",
                        html_escaped(s.backend.empty() ? "backend not known" : s.backend));
    page += timeline(s, columns, colours);
    page += class_bar(s, colours) + class_table(s, colours);
    if (!s.steps.empty()) {
      page += fmt::format("<table><tr><th>step</th>{}", kPartsHead);
      for (const auto& step : s.steps) page += parts_row(html_escaped(step.name), step.parts);
      page += "</table>\n";
    }
    page += memory_curve(s);
  }
  return page + "</body></html>\n";
}

}  // namespace trireme
