#pragma once
// Resolution of dropout probabilities. A dropout decision compares a random integer of 7 or 16 bits with an integer
// threshold, so a probability is rounded to a multiple of 1/128 (attention probabilities) or 1/65536 (activations).

#include <cstdint>
#include <string>

namespace trireme {

constexpr int64_t kActivationDropoutSteps = 65536, kAttentionDropoutSteps = 128;

/// p in [0, 1) as a number of steps, 0 to steps - 1.
uint32_t dropout_threshold(double p, int64_t steps);

/// The reason why p in [0, 1) has no rounding to steps: p is not 0 but would drop nothing, or p would drop everything.
/// A phrase that follows the setting's name in a message; empty if p can be rounded.
std::string dropout_problem(double p, int64_t steps);

}  // namespace trireme
