#pragma once
// The resolution of dropout: a decision compares a draw of 7 or 16 bits with a whole threshold, so that a probability
// is rounded to steps of 1/128 (attention probabilities) or 1/65536 (activations).

#include <cstdint>
#include <string>

namespace trireme {

constexpr int64_t kActivationDropoutSteps = 65536, kAttentionDropoutSteps = 128;

/// p in [0, 1) as a number of steps, 0 to steps - 1.
uint32_t dropout_threshold(double p, int64_t steps);

/// Why p in [0, 1) cannot be rounded to steps, as the rest of a sentence that begins with the name of the setting: p is
/// not 0 but would drop nothing, or it would drop everything. Empty where it can.
std::string dropout_problem(double p, int64_t steps);

}  // namespace trireme
