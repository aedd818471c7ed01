#pragma once
// Private to fsdp/: the range of the unit whose backward runs in this thread, "layers.3 backward".

#include <string>

namespace trireme {

/// Ends the range of the unit before, if it is still open, and begins that of `unit`. It ends with
/// end_backward_range() or, where autograd has nothing to compute at the unit's input, with the whole backward. Without
/// a profile it costs a relaxed load.
void begin_backward_range(const std::string& unit);
void end_backward_range();

}  // namespace trireme
