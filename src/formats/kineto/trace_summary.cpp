#include "trireme/formats/kineto/trace_summary.h"

#include "range_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace trireme {

const char* kernel_class(std::string_view name) {
  // The first that matches.
  constexpr std::array<std::pair<std::string_view, const char*>, 34> kClasses = {{
      {"nccl", "NCCL"},
      {"Memcpy PtoP", "peer copies"},
      {"Memcpy", "copies"},
      {"Memset", "copies"},
      {"cudnn_generated_fort_native_sdpa", "attention"},
      {"flash", "attention"},
      {"fmha", "attention"},
      {"kernels::forward::", "attention"},
      {"kernels::backward::", "attention"},
      {"tile::kernel", "quantization"},
      {"e4m3", "FP8 products"},
      {"gemm", "products"},
      {"nvjet", "products"},
      {"cutlass", "products"},
      {"splitK", "products"},
      {"quantize", "quantization"},
      {"transpose_bytes", "FP8 weight transposition"},
      {"swiglu", "SwiGLU"},
      {"Gelu", "GELU"},
      {"CrossEntropy", "cross-entropy"},
      {"adamw_kernel", "optimizer"},
      {"moments_kernel", "optimizer"},
      {"apply_kernel", "optimizer"},
      {"squares_kernel", "optimizer"},
      {"square_kernel", "gradient norm"},
      {"dropout", "dropout"},
      {"rms_norm", "norms"},
      {"forward_kernel", "norms"},
      {"backward_kernel", "norms"},
      {"rope", "rotary positions"},
      {"rotate", "rotary positions"},
      {"merge", "rotary positions"},
      {"embedding", "embedding"},
      {"elementwise", "LibTorch elementwise"},
  }};
  for (const auto& [part, name_of_class] : kClasses)
    if (name.find(part) != std::string_view::npos) return name_of_class;
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

}  // namespace trireme
