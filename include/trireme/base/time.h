#pragma once
// Clocks: durations from the steady clock, stamps from the system clock.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

double steady_seconds();      // monotonic, arbitrary origin
int64_t unix_milliseconds();  // wall clock
std::string utc_timestamp();  // "2026-11-21T07:00:05Z"

/// Seconds of "DD:HH:MM:SS" (days of one digit or more, then two each, below 24, 60, 60); nothing where the text is
/// none, or is 0.
std::optional<int64_t> parse_day_time(std::string_view text);

}  // namespace trireme
