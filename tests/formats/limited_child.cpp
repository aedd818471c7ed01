#include "limited_child.h"

#include "trireme/base/error.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

namespace {

std::atomic<size_t> largest{0};

// The address sanitizer replaces these operators itself, and all of them.
#if defined(__SANITIZE_ADDRESS__)
}  // namespace
#else
void* counted(size_t size) {
  size_t seen = largest;
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
  if (void* memory = std::malloc(std::max<size_t>(size, 1))) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return counted(size); }
void* operator new[](size_t size) { return counted(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace trireme {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimited = false;
#else
constexpr bool kLimited = true;
#endif

constexpr int kOther = 99;  // ended by an exception other than Error

void limit_memory(size_t memory) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + memory;
  const rlimit both{limit, limit};
  setrlimit(RLIMIT_AS, &both);
}

int run_here(const std::function<void()>& action, std::string& message) {
  try {
    action();
    return 0;
  } catch (const Error& error) {
    message = error.what();
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    message = std::string("not an Error: ") + error.what();
    return kOther;
  }
}

}  // namespace

ChildResult run_limited(size_t memory, const std::function<void()>& action) {
  ChildResult result;
  int ends[2];
  if (pipe(ends) != 0) return result;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    if (kLimited) limit_memory(memory);
    largest = 0;
    std::string message;
    const int code = run_here(action, message);
    const size_t seen = largest;
    const bool sent = write(ends[1], &seen, sizeof seen) == sizeof seen &&
                      write(ends[1], message.data(), message.size()) == static_cast<ssize_t>(message.size());
    _exit(sent ? code : kOther);
  }
  close(ends[1]);
  char buffer[4096];
  std::string received;
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    received.append(buffer, static_cast<size_t>(count));
  close(ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  if (received.size() >= sizeof result.largest_allocation) {
    std::memcpy(&result.largest_allocation, received.data(), sizeof result.largest_allocation);
    result.message = received.substr(sizeof result.largest_allocation);
  }
  if (WIFSIGNALED(status)) result.message += "killed by signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != kOther) result.exit_code = WEXITSTATUS(status);
  result.seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  return result;
}

}  // namespace trireme
