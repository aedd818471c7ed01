#pragma once
// Clocks: durations from the steady clock, stamps from the system clock.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

double steady_seconds();      // monotonic, arbitrary origin
double process_begin();       // steady_seconds() when this process began
int64_t unix_milliseconds();  // wall clock
std::string utc_timestamp();  // "2026-11-21T07:00:05Z"

/// Seconds of "DD:HH:MM:SS" (days of one or more digits; hours, minutes and seconds of two digits, below 24, 60 and
/// 60); nullopt for other texts and for 0.
std::optional<int64_t> parse_day_time(std::string_view text);

}  // namespace trireme
