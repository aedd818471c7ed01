#include "trireme/base/log.h"

#include "trireme/base/error.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace trireme {

namespace {

int g_rank = 0, g_world_size = 1;

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_rank(int rank, int world_size) {
  g_rank = rank;
  g_world_size = world_size;
}

void log_info(const std::string& message) {
  if (g_rank == 0) logger().info("{}", message);
}

void log_warn(const std::string& message) {
  logger().warn("{}warning: {}", g_world_size > 1 ? fmt::format("rank {}: ", g_rank) : "", message);
}

namespace {

/// TRIREME_EXIT_FILE: where a job's script looks for the code of a rank that ended by itself. srun gives the largest
/// code of all, and one task that it had to kill while loading makes that 143; where it could launch none, it may give
/// 0. A code other than 0 wins over the 0 of others.
void leave_exit_code(int code) {
  const char* path = std::getenv("TRIREME_EXIT_FILE");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, code == 0 ? "wx" : "w");
  if (file == nullptr) return;  // another rank's 0 is there, or the script goes by srun's code
  std::fprintf(file, "%d\n", code);
  std::fclose(file);
}

}  // namespace

int run_main(const char* program, const std::function<int()>& body,
             const std::function<void(const std::string&)>& on_error) {
  std::string message;
  int code;
  try {
    code = body();
    leave_exit_code(code);
    return code;
  } catch (const Error& error) {
    message = error.what();
    code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    // LibTorch's exceptions go on with their stack: it comes first, the last line is the sentence.
    const std::string_view text = error.what();
    const size_t stack = std::min(text.find("\nException raised from"), text.size());
    if (stack < text.size()) message = fmt::format("{}\n", text.substr(stack + 1));
    message += fmt::format("internal error: {}", text.substr(0, stack));
    code = static_cast<int>(ExitCode::kInternal);
  } catch (...) {
    message = "internal error: an exception of unknown type";
    code = static_cast<int>(ExitCode::kInternal);
  }
  if (on_error) on_error(message);
  std::fflush(stdout);
  while (message.ends_with('\n')) message.pop_back();
  // Lists (file:line:column: …) stay as they are, for editors to follow; the last line carries the program's name.
  const size_t last_line = message.find_last_of('\n') + 1;
  fmt::print(stderr, "{}{}: {}\n", message.substr(0, last_line), program, message.substr(last_line));
  std::fflush(stderr);
  leave_exit_code(code);
  return code;
}

}  // namespace trireme
