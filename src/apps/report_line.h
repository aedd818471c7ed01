#pragma once
// Lines of steps in metrics.jsonl; a long run has millions.

#include <array>
#include <optional>
#include <string_view>

namespace trireme {

/// The values of a step that a report draws, in the order of StepLine::values.
inline constexpr std::array<std::string_view, 9> kStepKeys = {
    "loss",       "lr",  "grad_norm",          "tokens_per_s",   "step_time_s",
    "memory_gib", "mfu", "rewards/accuracies", "rewards/margins"};

struct StepLine {
  double step = 0;
  /// Absent and null values have none; a value that is no number ("nan") is NaN.
  std::array<std::optional<double>, kStepKeys.size()> values;
};

/// Reads the form in which the trainer writes a step: `{"event":"train","step":1,…}`, one object without nesting and
/// blanks, keys and strings of printable ASCII without escapes. nullopt for any other text, valid JSON or not: that is
/// the JSON library's to read. The library accepts every text that this function accepts, with the same values; it is
/// ten times slower, because it makes a tree of objects on the heap.
std::optional<StepLine> read_step_line(std::string_view text);

}  // namespace trireme
