#include "range_sweep.h"

#include <algorithm>
#include <array>
#include <limits>

namespace trireme {

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
    // Rounding may let an event end after the one around it.
    if (!open.empty()) event.end = std::min(event.end, open.back().end);
    open.push_back(event);
  }
  close_until(std::numeric_limits<double>::infinity());
}

}  // namespace trireme
