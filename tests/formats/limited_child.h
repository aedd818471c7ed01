#pragma once
// Runs an action in a child process with limited memory, and reports how it ended.

#include <cstddef>
#include <functional>
#include <string>

namespace trireme {

struct ChildResult {
  int exit_code = -1;   // of the Error; 0 when there was none; -1 for anything else, with its reason in `message`
  std::string message;  // of the Error
  size_t largest_allocation = 0;  // the largest single operator new
  double seconds = 0;             // processor time of the child
};

/// `memory`: bytes of address space beyond what this process has when it forks (not limited under sanitizers, which
/// need terabytes).
ChildResult run_limited(size_t memory, const std::function<void()>& action);

}  // namespace trireme
