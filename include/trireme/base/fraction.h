#pragma once
// A share written as people write it.

#include <optional>
#include <string_view>

namespace trireme {

/// "1/3", "0.25", "1e-2", "2": the value as a double ("a/b": the double quotient, as Python computes it). A sign is
/// read. nullopt: not a number, not finite, or a denominator of 0.
std::optional<double> parse_fraction(std::string_view text);

}  // namespace trireme
