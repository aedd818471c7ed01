#include "passive_waiting.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace trireme {

bool waits_passively() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  return policy != nullptr && (std::string_view(policy) == "PASSIVE" || std::string_view(policy) == "passive");
}

namespace {

constexpr size_t kMostVariables = 8192;

char g_policy[] = "OMP_WAIT_POLICY=PASSIVE";

/// Runs before the constructors of all libraries, libc's included: nothing but system calls, no allocation.
[[maybe_unused]] void restart_with_passive_waiting(int /*argc*/, char** argv, char** environment) {
  static char* extended[kMostVariables + 2];
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    const std::string_view variable = environment[count];
    if (variable.starts_with("OMP_WAIT_POLICY=") || variable.starts_with("GOMP_SPINCOUNT=") ||
        variable == "OMP_NUM_THREADS=1" || count == kMostVariables)
      return;
    extended[count] = environment[count];
  }
  extended[count] = g_policy;
  // By the name that it was started with: it says which program this is, to main() and in lists of processes.
  const auto* program = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (program != nullptr) execve(program, argv, extended);
  // execve failed: the run goes on with threads that spin.
}

// The sanitizers' own start comes later: code that they instrument must not run before it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((section(".preinit_array"), used)) void (*const g_before_all)(int, char**,
                                                                            char**) = restart_with_passive_waiting;
#endif

}  // namespace

}  // namespace trireme
