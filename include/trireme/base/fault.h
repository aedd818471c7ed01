#pragma once
// Fault injection for the tests of ctest label `faults`: named points in the code ask whether TRIREME_FAULT requests a
// fault at this point.
//
// TRIREME_FAULT holds one or more specifications, separated by commas: action@part:part:…
//   action  sigkill | sigstop | sigterm | crash (SIGSEGV) | abort (SIGABRT) | sleep (or sleep:SECONDS) |
//           fail (throws InternalError) | nan (the caller replaces a value by NaN) |
//           set:NUMBER (the caller uses NUMBER instead of its own value)
//   part    rankN    only on this rank                stepN   only at this step (1 = the first optimizer step)
//           1.5s     seconds of a sleep               xN      at most N times in this process
//           else     the name of the point; it may have several parts ("save:after_shards"). Default: "step".
//   e.g. sigkill@rank1:step7   sigkill@save:after_shards   sleep@save:write:2s   nan@gradient:rank0:step3:x1
//        set:20971520@device-memory:rank1
// Without the variable a point costs one comparison.

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

/// Executes the action that TRIREME_FAULT requests for the point `name` on `rank` (-1: unknown) at `step` (-1:
/// unknown). True when the action is `nan`: the caller replaces its value by NaN. Thread-safe.
bool fault_point(std::string_view name, int rank = -1, int64_t step = -1);

/// The number that a `set` of TRIREME_FAULT gives for the point `name` on `rank`, if there is one.
std::optional<double> fault_value(std::string_view name, int rank = -1);

/// ConfigError naming the first invalid specification in TRIREME_FAULT. Called at the start of a program.
void check_fault_specifications();

}  // namespace trireme
