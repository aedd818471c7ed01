// `trireme report`: runs as one HTML page.
#include "report_chart.h"
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/html.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

namespace {

constexpr size_t kMostReportRuns = 16;

constexpr const char* kReportStyle = R"(
:root{--save:#8a93a0;--spike:#d08a00;--stop:#7a4fc9;--fail:#c8372d}
@media (prefers-color-scheme:dark){:root{--save:#7d8794;--spike:#f0b429;--stop:#a98af0;--fail:#f0665c}}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr));gap:1em 1.6em}
figure{margin:0;min-width:0}figcaption{font-weight:600}figcaption small{font-weight:400}
svg{width:100%;height:auto;display:block}
.e{stroke-width:1.4;opacity:.8}.save{stroke:var(--save)}.spike,.skip{stroke:var(--spike)}.skip{stroke-dasharray:6 3}.stop,.resume{stroke:var(--stop)}.resume{stroke-dasharray:2 3}.fail{stroke:var(--fail)}
@media(max-width:600px){svg text{font-size:15px}}
div.wide{overflow-x:auto;white-space:nowrap}td.name{text-align:left;font-family:ui-monospace,monospace;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere}
p.key{line-height:2}p.key span{white-space:nowrap;margin-left:1em}
p.key svg{display:inline-block;width:10px;height:18px;vertical-align:-4px;margin-right:3px}
)";

std::string run_label(const std::vector<ReportRun>& runs, size_t index) {
  size_t same = 0;
  for (const ReportRun& run : runs) same += run.name == runs[index].name ? 1 : 0;
  return same > 1 ? fmt::format("{} ({})", runs[index].name, index + 1) : runs[index].name;
}

/// The lines of a drawing: the same series of every run.
std::vector<ChartLine> lines_of(const std::vector<ReportRun>& runs, ReportSeries ReportRun::* series,
                                bool points = false) {
  std::vector<ChartLine> lines;
  for (size_t i = 0; i < runs.size(); ++i) lines.push_back({run_label(runs, i), i, &(runs[i].*series), points});
  return lines;
}

std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : std::midpoint(*std::max_element(values.begin(), middle), *middle);
}

std::string or_dash(const std::optional<double>& value, const auto& format) {
  return value ? format(*value) : std::string("–");
}

/// Tokens per second and rank of each step, by the ranks of the process that computed it.
std::vector<double> rates_per_rank(const ReportRun& run) {
  std::vector<double> rates = run.tokens_per_s.values;
  for (size_t i = 0; i < run.processes.size(); ++i) {
    const size_t end = i + 1 < run.processes.size() ? run.processes[i + 1].first : rates.size();
    for (size_t at = run.processes[i].first; at < end; ++at) rates[at] /= static_cast<double>(run.processes[i].ranks);
  }
  return rates;
}

/// "8", or "8, then 4" where a resume changed them.
std::string ranks_cell(const ReportRun& run) {
  std::vector<std::string> found;
  for (const ReportProcess& process : run.processes)
    if (const std::string ranks = std::to_string(process.ranks); found.empty() || found.back() != ranks)
      found.push_back(ranks);
  return found.empty() ? "1" : join(found, ", then ");
}

std::string last_cell(const ReportSeries& series) {
  if (series.values.empty()) return "–";
  return std::isfinite(series.values.back()) ? fmt::format("{:.5g}", series.values.back()) : "not finite";
}

std::optional<double> lowest(const ReportSeries& series) {
  std::optional<double> found;
  for (const double value : series.values)
    if (std::isfinite(value) && (!found || value < *found)) found = value;
  return found;
}

std::string memory_cell(const ReportRun& run) {
  if (run.end && run.end->peak_memory) {
    std::string text = format_bytes(*run.end->peak_memory);
    if (run.end->planned_memory)
      text += fmt::format(" / {} <small>{:+.1f} %</small>", format_bytes(*run.end->planned_memory),
                          100 * (*run.end->peak_memory / *run.end->planned_memory - 1));
    return text;
  }
  double most = 0;
  for (const double value : run.memory_gib.values) most = std::max(most, std::isfinite(value) ? value : 0);
  return most > 0 ? fmt::format("{:.1f} GiB", most) : "–";
}

std::string runs_table(const std::vector<ReportRun>& runs) {
  const auto number = [](double value) { return fmt::format("{:.5g}", value); };
  std::string text =
      "<div class=\"wide\"><table><tr><th>run</th><th>end</th><th>steps</th><th>time</th><th>last loss</th>"
      "<th>best eval</th><th>last eval</th><th>test</th><th>median step</th><th>tok/s per rank</th><th>MFU</th>"
      "<th>memory peak / plan</th><th>ranks</th></tr>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const ReportRun& run = runs[i];
    const auto rate = median(rates_per_rank(run)), mfu = median(run.mfu.values), step = median(run.step_time.values);
    text += fmt::format(
        "<tr><th><i style=\"background:var(--c{})\"></i>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        i % kChartColours, html_escaped(run_label(runs, i)), run.end ? html_escaped(run.end->outcome) : "no end line",
        format_count(run.last_step), run.runtime_s > 0 ? format_duration(run.runtime_s) : "–", last_cell(run.loss),
        or_dash(lowest(run.eval_loss), number), last_cell(run.eval_loss), last_cell(run.test_loss),
        or_dash(step, format_duration), or_dash(rate, format_short),
        or_dash(mfu, [](double value) { return fmt::format("{:.1f} %", value * 100); }), memory_cell(run),
        ranks_cell(run));
  }
  text += "</table></div>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& losses :
         {not_finite_losses(runs[i].loss, "training"), not_finite_losses(runs[i].eval_loss, "evaluation")})
      if (!losses.empty())
        text += fmt::format("<p class=\"note\">{}: {}</p>\n", html_escaped(run_label(runs, i)), losses);
    text += fmt::format(
        "<p class=\"note\">{}: {} on {}, commit {}{}</p>\n", html_escaped(run_label(runs, i)),
        html_escaped(runs[i].devices.empty() ? "devices not known" : runs[i].devices),
        html_escaped(runs[i].hosts.empty() ? "hosts not known" : runs[i].hosts),
        html_escaped(runs[i].commit.empty() ? "not known" : runs[i].commit),
        runs[i].end && !runs[i].end->reason.empty() ? ". " + html_escaped(runs[i].end->reason, 600) : std::string());
  }
  return text;
}

std::string charts(const std::vector<ReportRun>& runs) {
  ChartOptions options;
  options.columns = runs.size() > 4 ? 440 * 4 / runs.size() : 440;
  const auto draw = [&](const char* title, const char* unit, ReportSeries ReportRun::* series, bool from_zero = false) {
    options.title = title;
    options.unit = unit;
    options.from_zero = from_zero;
    return chart(lines_of(runs, series), options);
  };
  std::vector<ReportEvent> events;
  for (const ReportRun& run : runs)
    for (const ReportEvent& event : run.events) events.push_back(event);
  std::string text = "<main>\n";
  options.events = events;
  text += draw("Training loss", "over steps", &ReportRun::loss);
  options.title = "Evaluation loss";
  options.unit = "over steps";
  text += chart(lines_of(runs, &ReportRun::eval_loss, /*points=*/true), options);
  options.events = {};
  options.title = "Evaluation accuracy";
  text += chart(lines_of(runs, &ReportRun::eval_accuracy, /*points=*/true), options);
  text += draw("Reward accuracy", "part of the pairs", &ReportRun::reward_accuracy);
  text += draw("Reward margin", "chosen over rejected", &ReportRun::reward_margin);
  options.title = "Evaluation reward margin";
  options.unit = "over steps";
  text += chart(lines_of(runs, &ReportRun::eval_margin, /*points=*/true), options);
  text += draw("Learning rate", "", &ReportRun::lr, /*from_zero=*/true);
  options.events = events;
  text += draw("Gradient norm", "before clipping", &ReportRun::grad_norm);
  options.events = {};
  text += draw("Throughput", "tokens per second, all ranks", &ReportRun::tokens_per_s, /*from_zero=*/true);
  text += draw("MFU", "part of the device's peak", &ReportRun::mfu, /*from_zero=*/true);
  text += histogram(lines_of(runs, &ReportRun::step_time), "Step times");
  for (const ReportRun& run : runs)
    if (runs.size() == 1 && run.end && run.end->planned_memory) options.level = *run.end->planned_memory / (1 << 30);
  text += draw("Peak memory of rank 0", options.level ? "GiB; dotted: the plan" : "GiB", &ReportRun::memory_gib, true);
  return text + "</main>\n";
}

std::string event_key(const std::vector<ReportRun>& runs) {
  std::string text;
  for (size_t kind = 0; kind < std::size(kReportEvents); ++kind) {
    int64_t count = 0;
    for (const ReportRun& run : runs)
      count += std::count_if(run.events.begin(), run.events.end(),
                             [&](const auto& event) { return static_cast<size_t>(event.kind) == kind; });
    if (count > 0)
      text += fmt::format(R"(<span><svg viewBox="0 0 10 18">{}</svg>{} ({})</span> )",
                          event_mark(static_cast<ReportEvent::Kind>(kind), 5, 1, 17), kReportEvents[kind].name,
                          format_count(count));
  }
  return text.empty() ? "" : "<p class=\"key\">Marks: " + text + "</p>\n";
}

std::string escaped_lines(const std::string& text, size_t limit) {
  std::vector<std::string> lines = split(text.substr(0, limit), '\n');
  for (std::string& line : lines) line = html_escaped(line, limit);
  return join(lines, "\n");
}

/// The answers to each prompt: after the first evaluation and after the newest ones.
std::string samples(const std::vector<ReportRun>& runs) {
  constexpr size_t kMostPrompts = 16, kMostAnswers = 6, kBytes = 150'000;
  size_t cells = 0;
  std::string text;
  const auto shown = [&](size_t run, size_t limit) {
    std::vector<std::pair<std::string, std::vector<const ReportSample*>>> prompts;
    for (const ReportSample& sample : runs[run].samples) {
      auto found =
          std::find_if(prompts.begin(), prompts.end(), [&](const auto& each) { return each.first == sample.prompt; });
      if (found == prompts.end()) {
        if (prompts.size() == kMostPrompts) continue;
        found = prompts.insert(prompts.end(), {sample.prompt, {}});
      }
      if (found->second.size() == kMostAnswers) found->second.erase(found->second.begin() + 1);
      found->second.push_back(&sample);
    }
    for (const auto& [prompt, answers] : prompts) {
      cells += 1 + answers.size();
      if (limit == 0) continue;
      text += fmt::format("<div class=\"wide\"><table><tr><th>{}</th><td class=\"name\"><b>{}</b></td></tr>\n",
                          html_escaped(run_label(runs, run)), escaped_lines(prompt, limit));
      for (const ReportSample* answer : answers)
        text += fmt::format("<tr><th>step {}</th><td class=\"name\">{}</td></tr>\n",
                            format_count(static_cast<int64_t>(answer->step)), escaped_lines(answer->text, limit));
      text += "</table></div>\n";
    }
  };
  for (size_t i = 0; i < runs.size(); ++i) shown(i, 0);
  if (cells == 0) return "";
  for (size_t i = 0; i < runs.size(); ++i) shown(i, std::min<size_t>(2000, kBytes / cells));
  return "<h2>Answers to the prompts</h2>\n" + text;
}

std::string value_in(const ReportRun& run, const std::string& key) {
  for (const auto& [name, value] : run.config)
    if (name == key) return value;
  return "–";
}

std::string config_table(const std::vector<ReportRun>& runs, const std::vector<std::string>& keys) {
  std::string text = "<div class=\"wide\"><table><tr><th>key</th>";
  for (size_t i = 0; i < runs.size(); ++i)
    text += fmt::format("<td class=\"name\"><b>{}</b></td>", html_escaped(run_label(runs, i)));
  text += "</tr>\n";
  for (const std::string& key : keys) {
    text += fmt::format("<tr><th>{}</th>", html_escaped(key));
    for (const ReportRun& run : runs)
      text += fmt::format("<td class=\"name\">{}</td>", html_escaped(value_in(run, key), 400));
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

std::string configuration(const std::vector<ReportRun>& runs) {
  std::vector<std::string> keys, different;
  for (const ReportRun& run : runs)
    for (const auto& [key, value] : run.config)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  if (keys.empty()) return "<p class=\"note\">No config.yaml beside metrics.jsonl.</p>\n";
  for (const std::string& key : keys)
    for (const ReportRun& run : runs)
      if (value_in(run, key) != value_in(runs.front(), key)) {
        different.push_back(key);
        break;
      }
  std::string text = "<h2>Configuration</h2>\n";
  if (runs.size() > 1)
    text += different.empty() ? "<p>All keys are equal.</p>\n"
                              : "<p>Keys that differ:</p>\n" + config_table(runs, different);
  const std::vector<ReportRun> one(runs.begin(), runs.begin() + 1);
  return text + fmt::format("<details{}><summary>{} keys</summary>\n{}</details>\n", runs.size() == 1 ? " open" : "",
                            keys.size(), config_table(runs.size() > 4 ? one : runs, keys));
}

/// One file, nothing fetched from elsewhere; below 1 MB for up to kMostReportRuns runs of any length.
std::string report_page(const std::vector<ReportRun>& runs) {
  std::string title = "Report of " + run_label(runs, 0);
  if (runs.size() > 1) title += fmt::format(" and {} more", runs.size() - 1);
  std::string page = html_head(title, std::string(kChartStyle) + kReportStyle);
  page += runs_table(runs);
  page += event_key(runs);
  page += charts(runs);
  page +=
      "<p class=\"note\">Lines are means of the steps in a pixel column, the bands behind them reach from the lowest "
      "value to the highest.</p>\n";
  page += samples(runs);
  page += configuration(runs);
  return page + "</body></html>\n";
}

}  // namespace

void add_report_tool(CLI::App& app) {
  struct Options {
    std::vector<std::string> runs;
    std::string output = "report.html";
  };
  auto options = std::make_shared<Options>();
  CLI::App* tool =
      app.add_subcommand("report", "Draw runs on one HTML page: curves, throughput, memory, configuration");
  tool->add_option("runs", options->runs, "output.dir of each run, or its metrics.jsonl")->required();
  tool->add_option("--output", options->output, "HTML page to write")->capture_default_str();
  tool->callback([options] {
    if (options->runs.size() > kMostReportRuns)
      throw ConfigError(fmt::format("report: {} runs; a page shows at most {}", options->runs.size(), kMostReportRuns));
    require_output("report", "--output", options->output, kPageOutput);
    std::vector<ReportRun> runs;
    for (const std::string& path : options->runs) runs.push_back(read_report_run(path, /*with_config=*/true));
    const std::string page = report_page(runs);
    write_output(options->output, page);
    fmt::print("{}, page: {} ({})\n", counted(runs.size(), "run"), options->output, format_bytes(page.size()));
  });
}

}  // namespace trireme
