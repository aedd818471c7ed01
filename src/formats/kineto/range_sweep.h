#pragma once
// Private to formats/kineto: which ranges and operations are open on a host thread at a time, and their classes.

#include "trireme/formats/kineto/trace.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

inline double percentage(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/// "all_gather layers.3" -> "all_gather", "layers.3" -> "layers".
std::string range_class(std::string_view name);
/// Ranges that divide a step: "forward", "backward", …
bool is_phase(std::string_view name);
/// Collectives, and waits for them.
bool is_communication(const Trace& trace, const Trace::Event& event);

/// Host events by thread, outer events before inner events.
std::vector<std::vector<Trace::Event>> host_threads(const Trace& trace);

/// Calls `visit` for each piece of time between two changes of what is open; `open`: outermost first, not empty.
using SweepVisit = std::function<void(double begin, double end, const std::vector<Trace::Event>& open)>;
void sweep(const std::vector<Trace::Event>& thread, const SweepVisit& visit);

}  // namespace trireme
