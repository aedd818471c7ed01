#include "trireme/base/process.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"

#include <fmt/format.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

namespace trireme {

std::string host_name() {
  char name[256] = "unknown";
  (void)gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::string> command_line_words() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
  return words;
}

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return host_name() + ' ' + boot;
}

std::string environment(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

double positive_seconds(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0) || seconds > 1e6)
    throw ConfigError(fmt::format("{}='{}' is not a number of seconds above 0 and up to 1e6", variable, text));
  return seconds;
}

void parallel_for(size_t count, unsigned threads, const std::function<void(size_t)>& work) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  size_t failed_index = count;
  std::exception_ptr error;
  const auto run = [&] {
    while (!failed) {
      const size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        failed = true;
        if (i < failed_index) {
          failed_index = i;
          error = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) workers.emplace_back(run);
    run();
  }
  if (error) std::rethrow_exception(error);
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void print_line(const std::string& text) {
  if (std::printf("%s\n", text.c_str()) >= 0 && std::fflush(stdout) == 0) return;
  const int error = errno;
  __fpurge(stdout);  // else the line is tried again at the next flush
  std::clearerr(stdout);
  static std::once_flag warned;
  std::call_once(warned, [&] {
    log_warn(
        fmt::format("cannot write to stdout: {}. The run goes on; its lines are in output.dir", std::strerror(error)));
  });
}

void print_failure(int rank, const std::string& reason) {
  std::fflush(stdout);
  std::fputs(fmt::format("rank {} on {}: {}\n", rank, host_name(), reason).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace trireme
