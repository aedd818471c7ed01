#pragma once
// Clocks: durations from the steady clock, stamps from the system clock.

#include <cstdint>
#include <string>

namespace trireme {

double steady_seconds();      // monotonic, arbitrary origin
int64_t unix_milliseconds();  // wall clock
std::string utc_timestamp();  // "2026-11-21T07:00:05Z"

}  // namespace trireme
