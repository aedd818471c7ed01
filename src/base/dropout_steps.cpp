#include "trireme/base/dropout_steps.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

uint32_t dropout_threshold(double p, int64_t steps) {
  const double most = static_cast<double>(steps) - 1;
  return static_cast<uint32_t>(std::min(most, std::round(p * static_cast<double>(steps))));
}

std::string dropout_problem(double p, int64_t steps) {
  const auto n = static_cast<double>(steps);
  const double rounded = std::round(p * n);
  if (p > 0 && rounded < 1)
    return fmt::format("{} is less than half a step of 1/{} and would drop nothing: nearest are 0 and {}",
                       format_exact(p), steps, format_exact(1 / n));
  if (rounded >= n)
    return fmt::format("{} is less than half a step of 1/{} below 1 and would drop everything: the nearest is {}",
                       format_exact(p), steps, format_exact((n - 1) / n));
  return {};
}

}  // namespace trireme
