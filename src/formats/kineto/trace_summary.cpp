#include "trireme/formats/kineto/trace_summary.h"

#include "range_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace trireme {

const char* kernel_class(std::string_view name) {
  struct Class {
    const char* name;
    std::vector<std::string_view> parts;  // of kernels' names
  };
  // The first that matches.
  static const std::vector<Class> classes = {
      {"NCCL", {"nccl"}},
      {"peer copies", {"Memcpy PtoP"}},
      {"copies", {"Memcpy", "Memset"}},
      {"attention", {"cudnn_generated_fort_native_sdpa", "flash", "fmha", "kernels::forward::", "kernels::backward::"}},
      {"quantization", {"tile::kernel"}},
      {"FP8 products", {"e4m3"}},
      {"products", {"gemm", "nvjet", "cutlass", "splitK"}},
      {"quantization", {"quantize"}},
      {"FP8 weight transposition", {"transpose_bytes"}},
      {"SwiGLU", {"swiglu"}},
      {"GELU", {"Gelu"}},
      {"cross-entropy", {"CrossEntropy"}},
      {"optimizer", {"adamw_kernel", "moments_kernel", "apply_kernel", "squares_kernel"}},
      {"gradient norm", {"square_kernel"}},
      {"dropout", {"dropout"}},
      {"norms", {"rms_norm", "forward_kernel", "backward_kernel"}},
      {"rotary positions", {"rope", "rotate", "merge"}},
      {"embedding", {"embedding"}},
      {"LibTorch elementwise", {"elementwise"}}};
  for (const Class& each : classes)
    for (const std::string_view part : each.parts)
      if (name.find(part) != std::string_view::npos) return each.name;
  return "others";
}

Intervals merged(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals result;
  for (const Interval& interval : intervals) {
    if (!result.empty() && interval.begin <= result.back().end)
      result.back().end = std::max(result.back().end, interval.end);
    else
      result.push_back(interval);
  }
  return result;
}

double total(const Intervals& intervals) {
  double sum = 0;
  for (const Interval& interval : intervals) sum += interval.end - interval.begin;
  return sum;
}

Intervals intersection(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
    if (begin < end) result.push_back({begin, end});
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return result;
}

namespace {

class Classes {
 public:
  void add(const std::string& name, double us, bool counts, const std::string& part) {
    Entry& entry = entries_[name];
    entry.us += us;
    entry.calls += counts ? 1 : 0;
    entry.parts[part] += us;
  }
  void count(const std::string& name) { ++entries_[name].calls; }
  std::vector<ClassTime> sorted() const {
    std::vector<ClassTime> result;
    for (const auto& [name, entry] : entries_) {
      ClassTime time{name, entry.us, entry.calls, "", 0};
      for (const auto& [part, us] : entry.parts)
        if (us > time.largest_us) std::tie(time.largest, time.largest_us) = std::pair(part, us);
      result.push_back(std::move(time));
    }
    std::stable_sort(result.begin(), result.end(), [](const ClassTime& a, const ClassTime& b) { return a.us > b.us; });
    return result;
  }

 private:
  struct Entry {
    double us = 0;
    int64_t calls = 0;
    std::map<std::string, double> parts;
  };
  std::map<std::string, Entry> entries_;
};

Interval cover(const Intervals& intervals) {
  return intervals.empty() ? Interval{} : Interval{intervals.front().begin, intervals.back().end};
}

Intervals joined(const Intervals& a, const Intervals& b) {
  Intervals both = a;
  both.insert(both.end(), b.begin(), b.end());
  return merged(std::move(both));
}

TimeParts parts_of(const TraceSummary& summary, const Interval& window) {
  const Intervals whole = {window};
  const Intervals computation = intersection(summary.computation, whole),
                  communication = intersection(summary.communication, whole),
                  copies = intersection(summary.copies, whole);
  TimeParts parts;
  parts.window = window.end - window.begin;
  parts.computation = total(computation);
  parts.communication = total(communication);
  parts.exposed_communication = parts.communication - total(intersection(communication, computation));
  parts.copies = total(copies);
  parts.idle = parts.window - total(joined(joined(computation, communication), copies));
  return parts;
}

void read_device(const Trace& trace, TraceSummary& summary) {
  Classes classes;
  Intervals computation, communication, copies;
  for (const Trace::Event& event : trace.events) {
    if (event.kind != Trace::Kind::kKernel && event.kind != Trace::Kind::kCopy) continue;
    const std::string& name = trace.names[event.name];
    const std::string_view kind = kernel_class(name);
    classes.add(std::string(kind), event.end - event.begin, true, name);
    const bool moves = kind == "NCCL" || kind == "peer copies";
    (moves                              ? communication
     : event.kind == Trace::Kind::kCopy ? copies
                                        : computation)
        .push_back({event.begin, event.end});
  }
  summary.computation = merged(std::move(computation));
  summary.communication = merged(std::move(communication));
  summary.copies = merged(std::move(copies));
  summary.window = cover(joined(joined(summary.computation, summary.communication), summary.copies));
  summary.classes = classes.sorted();
}

void read_host(const Trace& trace, TraceSummary& summary) {
  Classes classes;
  Intervals computation, communication;
  for (const auto& thread : host_threads(trace)) {
    for (const Trace::Event& event : thread)
      if (event.kind == Trace::Kind::kRange) classes.count(range_class(trace.names[event.name]));
    sweep(thread, [&](double begin, double end, const std::vector<Trace::Event>& open) {
      std::string name = "outside ranges";
      for (const Trace::Event& event : open)
        if (event.kind == Trace::Kind::kRange) name = range_class(trace.names[event.name]);
      const bool moves = std::any_of(open.begin(), open.end(),
                                     [&](const Trace::Event& event) { return is_communication(trace, event); });
      if (moves) name = "communication";
      classes.add(name, end - begin, false, trace.names[open.back().name]);
      if (moves)
        communication.push_back({begin, end});
      else if (open.back().kind == Trace::Kind::kOperation)
        computation.push_back({begin, end});
    });
  }
  summary.computation = merged(std::move(computation));
  summary.communication = merged(std::move(communication));
  summary.window = cover(joined(summary.computation, summary.communication));
  summary.classes = classes.sorted();
}

/// Steps by the device's clock where it has them: the host runs ahead.
void read_steps(const Trace& trace, TraceSummary& summary) {
  std::map<std::string, Interval> steps;
  const auto collect = [&](Trace::Kind kind) {
    for (const Trace::Event& event : trace.events) {
      const std::string& name = trace.names[event.name];
      if (event.kind != kind || !name.starts_with("ProfilerStep")) continue;
      const auto [entry, added] = steps.emplace(name, Interval{event.begin, event.end});
      if (added) continue;
      entry->second.begin = std::min(entry->second.begin, event.begin);
      entry->second.end = std::max(entry->second.end, event.end);
    }
  };
  if (summary.gpu) collect(Trace::Kind::kGpuRange);
  if (steps.empty()) collect(Trace::Kind::kRange);
  for (const auto& [name, window] : steps) summary.steps.push_back({name, window, {}});
  std::sort(summary.steps.begin(), summary.steps.end(),
            [](const auto& a, const auto& b) { return a.window.begin < b.window.begin; });
  if (!summary.gpu && !summary.steps.empty())
    summary.window = {summary.steps.front().window.begin, summary.steps.back().window.end};
  for (auto& step : summary.steps) step.parts = parts_of(summary, step.window);
}

void read_phases(const Trace& trace, TraceSummary& summary) {
  for (const Trace::Event& event : trace.events)
    if (event.kind == Trace::Kind::kRange && is_phase(trace.names[event.name]))
      summary.phases.push_back({trace.names[event.name], {event.begin, event.end}});
}

void read_memory(const Trace& trace, TraceSummary& summary) {
  const bool gpu = std::any_of(trace.allocations.begin(), trace.allocations.end(), [](const auto& a) { return a.gpu; });
  for (const Trace::Allocation& allocation : trace.allocations)
    if (allocation.gpu == gpu) summary.memory.push_back({allocation.at, allocation.allocated});
  std::stable_sort(summary.memory.begin(), summary.memory.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
}

}  // namespace

std::string trace_label(const TraceSummary& summary) {
  return fmt::format("rank {}{}", summary.rank, summary.cycle > 0 ? fmt::format(", cycle {}", summary.cycle) : "");
}

TraceSummary summarise(const Trace& trace) {
  TraceSummary summary;
  summary.file = trace.file;
  // The profiler's names: rank0.2.pt.trace.json.gz.
  int rank = 0;
  if (std::sscanf(trace.file.filename().c_str(), "rank%d.%d.pt.trace", &rank, &summary.cycle) != 2) summary.cycle = 0;
  summary.rank = trace.rank;
  summary.world_size = trace.world_size;
  summary.backend = trace.backend;
  summary.gpu = std::any_of(trace.events.begin(), trace.events.end(),
                            [](const Trace::Event& event) { return event.kind == Trace::Kind::kKernel; });
  if (summary.gpu)
    read_device(trace, summary);
  else
    read_host(trace, summary);
  read_steps(trace, summary);
  read_phases(trace, summary);
  read_memory(trace, summary);
  summary.all = parts_of(summary, summary.window);
  return summary;
}

std::string range_class(std::string_view name) {
  if (name.starts_with("ProfilerStep")) return "rest of the step";
  if (name.starts_with("wait for ")) return "communication";
  return std::string(name.substr(0, name.find_first_of(" .")));
}

bool is_phase(std::string_view name) {
  constexpr std::array<std::string_view, 7> kPhases = {"data",      "forward",    "backward",  "finish_backward",
                                                       "optimizer", "checkpoint", "evaluation"};
  return std::find(kPhases.begin(), kPhases.end(), name) != kPhases.end();
}

bool is_communication(const Trace& trace, const Trace::Event& event) {
  const std::string& name = trace.names[event.name];
  return name == "record_param_comms" || name.starts_with("wait for ") || name.starts_with("c10d::") ||
         name.starts_with("nccl:");
}

std::vector<std::vector<Trace::Event>> host_threads(const Trace& trace) {
  std::vector<std::vector<Trace::Event>> threads;
  for (const Trace::Event& event : trace.events) {
    if (event.kind != Trace::Kind::kOperation && event.kind != Trace::Kind::kRange) continue;
    if (event.thread >= threads.size()) threads.resize(event.thread + 1);
    threads[event.thread].push_back(event);
  }
  for (auto& thread : threads)
    std::stable_sort(thread.begin(), thread.end(), [](const Trace::Event& a, const Trace::Event& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  return threads;
}

void sweep(const std::vector<Trace::Event>& thread, const SweepVisit& visit) {
  constexpr size_t kMostOpen = 1024;  // time of events deeper than that is their outer one's
  std::vector<Trace::Event> open;
  double now = 0;
  const auto advance = [&](double to) {
    if (!open.empty() && to > now) visit(now, to, open);
    now = std::max(now, to);
  };
  const auto close_until = [&](double time) {
    while (!open.empty() && open.back().end <= time) {
      advance(open.back().end);
      open.pop_back();
    }
  };
  for (Trace::Event event : thread) {
    close_until(event.begin);
    if (open.empty())
      now = event.begin;
    else
      advance(event.begin);
    if (open.size() == kMostOpen) continue;
    // Rounding may let an event end after the one around it.
    if (!open.empty()) event.end = std::min(event.end, open.back().end);
    open.push_back(event);
  }
  close_until(std::numeric_limits<double>::infinity());
}

}  // namespace trireme
