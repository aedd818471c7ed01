// The tables of traces, as text.
#include "range_sweep.h"
#include "trireme/base/text.h"
#include "trireme/formats/kineto/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace trireme {

namespace {

double ms(double us) { return us / 1e3; }

/// Names from a trace may hold anything: control characters would act on a terminal.
std::string printable(std::string_view text, size_t most) {
  std::string result(text.substr(0, most));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return result;
}

/// The innermost range around each allocation, and the phase of the step.
std::vector<std::string> ranges_of_allocations(const Trace& trace) {
  struct Phase {
    double begin, end;
    std::string name;
  };
  std::vector<Phase> phases;
  for (const Trace::Event& event : trace.events)
    if (event.kind == Trace::Kind::kRange && is_phase(trace.names[event.name]))
      phases.push_back({event.begin, event.end, trace.names[event.name]});
  std::sort(phases.begin(), phases.end(), [](const Phase& a, const Phase& b) { return a.begin < b.begin; });
  const auto phase_at = [&](double at) -> std::string {
    auto next =
        std::upper_bound(phases.begin(), phases.end(), at, [](double t, const Phase& p) { return t < p.begin; });
    if (next == phases.begin()) return "";
    --next;
    return at <= next->end ? next->name : "";
  };

  std::vector<std::string> result(trace.allocations.size());
  std::map<uint32_t, std::vector<size_t>> by_thread;
  for (size_t i = 0; i < trace.allocations.size(); ++i) by_thread[trace.allocations[i].thread].push_back(i);
  const auto threads = host_threads(trace);
  for (auto& [thread, of_thread] : by_thread) {
    std::vector<size_t>& members = of_thread;
    std::stable_sort(members.begin(), members.end(),
                     [&](size_t a, size_t b) { return trace.allocations[a].at < trace.allocations[b].at; });
    size_t next = 0;
    if (thread < threads.size())
      sweep(threads[thread], [&](double begin, double end, const std::vector<Trace::Event>& open) {
        std::string inner;
        for (const Trace::Event& event : open) {
          const std::string& name = trace.names[event.name];
          if (event.kind == Trace::Kind::kRange && !name.starts_with("ProfilerStep") && !is_phase(name))
            inner = range_class(name);
        }
        for (; next < members.size() && trace.allocations[members[next]].at < end; ++next)
          if (trace.allocations[members[next]].at >= begin) result[members[next]] = inner;
      });
  }
  for (size_t i = 0; i < result.size(); ++i) {
    const std::string phase = phase_at(trace.allocations[i].at);
    if (phase.empty())
      result[i] = result[i].empty() ? "outside ranges" : result[i];
    else
      result[i] = result[i].empty() ? phase : phase + " > " + result[i];
  }
  return result;
}

}  // namespace

std::string summary_table(const TraceSummary& summary) {
  if (summary.classes.empty()) return "the trace has neither kernels nor operations\n";
  const double window = summary.all.window;
  std::string text = fmt::format("{:<28}{:>10}{:>8}{:>8}   {}\n", summary.gpu ? "kernels of" : "time in", "ms", "share",
                                 "calls", summary.gpu ? "largest kernel" : "largest part");
  for (const ClassTime& entry : summary.classes)
    text += fmt::format("{:<28}{:>10.2f}{:>7.1f}%{:>8}   {:.1f} ms {}\n", printable(entry.name, 27), ms(entry.us),
                        percentage(entry.us, window), entry.calls, ms(entry.largest_us), printable(entry.largest, 60));
  const TimeParts& all = summary.all;
  // On a CPU the classes hold all time of their ranges.
  text += fmt::format("{:<28}{:>10.2f}{:>7.1f}%{}\n", summary.gpu ? "no kernel running" : "no operation running",
                      ms(all.idle), percentage(all.idle, window), summary.gpu ? "" : "   part of the rows above");
  text +=
      fmt::format("{:<28}{:>10.2f}{:>7.1f}%   of {:.2f} ms of communication\n", "exposed communication",
                  ms(all.exposed_communication), percentage(all.exposed_communication, window), ms(all.communication));
  text += fmt::format("{:<28}{:>10.2f}\n", summary.gpu ? "first to last kernel" : "first to last step", ms(window));
  return text;
}

std::string ranks_table(const std::vector<TraceSummary>& summaries) {
  std::string text = fmt::format("{:<6}{:>6}{:>7}{:>12}{:>13}{:>15}{:>10}{:>10}{:>10}  {}\n", "rank", "cycle", "steps",
                                 "time ms", "computation", "communication", "exposed", "copies", "idle", "file");
  for (const TraceSummary& s : summaries) {
    const auto percent = [&](double us) { return fmt::format("{:.1f}%", percentage(us, s.all.window)); };
    text += fmt::format("{:<6}{:>6}{:>7}{:>12.2f}{:>13}{:>15}{:>10}{:>10}{:>10}  {}\n", s.rank,
                        s.cycle > 0 ? std::to_string(s.cycle) : "–", s.steps.size(), ms(s.all.window),
                        percent(s.all.computation), percent(s.all.communication), percent(s.all.exposed_communication),
                        percent(s.all.copies), percent(s.all.idle), printable(s.file.filename().string(), 80));
  }
  return text;
}

std::string memory_table(const Trace& trace) {
  const bool gpu = std::any_of(trace.allocations.begin(), trace.allocations.end(), [](const auto& a) { return a.gpu; });
  struct Row {
    int64_t count = 0;
    double bytes = 0, net = 0, peak = 0;
  };
  std::map<std::string, Row> rows;
  const std::vector<std::string> ranges = ranges_of_allocations(trace);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Trace::Allocation& allocation = trace.allocations[i];
    if (allocation.gpu != gpu) continue;
    Row& row = rows[ranges[i]];
    row.count += allocation.bytes > 0 ? 1 : 0;
    row.bytes += static_cast<double>(std::max<int64_t>(allocation.bytes, 0));
    row.net += static_cast<double>(allocation.bytes);
    row.peak = std::max(row.peak, static_cast<double>(allocation.allocated));
  }
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.peak > b.second.peak; });
  std::string text = fmt::format(
      "Memory of the {} by range, from the allocator's events in the trace\n\n{:<40}{:>12}{:>14}{:>14}{:>14}\n",
      gpu ? "GPU" : "CPU", "range", "allocations", "allocated", "stays", "peak");
  for (const auto& [name, row] : sorted)
    text += fmt::format("{:<40}{:>12}{:>14}{:>14}{:>14}\n", printable(name, 39), row.count, format_bytes(row.bytes),
                        row.net < 0 ? "-" + format_bytes(-row.net) : format_bytes(row.net), format_bytes(row.peak));
  return text;
}

std::string memory_timeline(const Trace& trace) {
  const std::vector<std::string> ranges = ranges_of_allocations(trace);
  std::vector<size_t> order(trace.allocations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return trace.allocations[a].at < trace.allocations[b].at; });
  std::string text = "us\tdevice\tbytes\tallocated\treserved\trange\n";
  for (const size_t i : order) {
    const Trace::Allocation& a = trace.allocations[i];
    text += fmt::format("{:.3f}\t{}\t{}\t{}\t{}\t{}\n", a.at - trace.allocations[order[0]].at, a.gpu ? "gpu" : "cpu",
                        a.bytes, a.allocated, a.reserved, printable(ranges[i], 200));
  }
  return text;
}

}  // namespace trireme
