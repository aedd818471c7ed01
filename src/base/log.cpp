#include "trireme/base/log.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

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

spdlog::logger& file_logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("files");
    made->flush_on(spdlog::level::info);
    made->set_error_handler([](const std::string&) {});  // a full disk
    return made;
  }();
  return *instance;
}

}  // namespace

void add_log_file(const std::filesystem::path& path, LogFile what) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string(), /*truncate=*/false);
    sink->set_level(what == LogFile::kAll ? spdlog::level::info : spdlog::level::warn);
    sink->set_pattern("[NeMo %L %Y-%m-%d %H:%M:%S] %v");
    file_logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    throw WriteError(error.what());
  }
}

void log_to_files(const std::string& message) { file_logger().info("{}", message); }

void set_log_rank(int rank, int world_size) {
  g_rank = rank;
  g_world_size = world_size;
}

void log_info(const std::string& message) {
  if (g_rank == 0) logger().info("{}", message);
  log_to_files(message);
}

void log_warn(const std::string& message) {
  logger().warn("{}warning: {}", g_world_size > 1 ? fmt::format("rank {}: ", g_rank) : "", message);
  file_logger().warn("{}", message);
}

namespace {

/// TRIREME_EXIT_FILE: the job script reads the exit code of a rank from it. srun's own code is not enough: it is the
/// largest of all tasks, which is 143 if srun killed one task while it was loading, and may be 0 if srun could launch
/// none. A code other than 0 overwrites the 0 of other ranks.
void leave_exit_code(int code) {
  const char* path = std::getenv("TRIREME_EXIT_FILE");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, code == 0 ? "wx" : "w");
  if (file == nullptr) return;  // another rank wrote its code, or the script uses srun's code
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
    // what() of LibTorch's exceptions ends with a stack: it is printed first, so that the message is the last line.
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
  file_logger().error("{}", message);
  std::fflush(stdout);
  while (message.ends_with('\n')) message.pop_back();
  // Lines like file:line:column: … keep their form, which editors parse; only the last line gets the program's name,
  // and where there are several ranks the rank and host whose error it is.
  const size_t last_line = message.find_last_of('\n') + 1;
  const std::string last = message.substr(last_line);
  const bool named = last.starts_with("rank ") && last.find(" on ") == last.find(' ', 5);
  const std::string who = g_world_size == 1 || named ? "" : fmt::format("rank {} on {}: ", g_rank, host_name());
  fmt::print(stderr, "{}{}: {}{}\n", message.substr(0, last_line), program, who, last);
  std::fflush(stderr);
  leave_exit_code(code);
  return code;
}

}  // namespace trireme
