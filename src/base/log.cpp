#include "trireme/base/log.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace trireme {

namespace {

int g_rank = 0, g_world_size = 1;

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("trireme", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%H:%M:%S %v");
    made->set_level(spdlog::get_level());  // fuzz targets switch it off
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

void log_run_warn(const std::string& message) { log_info("warning: " + message); }

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

/// Opens the descriptors 0 to 2 that were closed when the process started: else the next file that is opened gets the
/// number, and what is printed lands in it. Not opened for writing: stdout that is closed is output that cannot be
/// written.
void open_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor)
    if (fcntl(descriptor, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);  // the lowest number that is free
}

/// Runs before the constructors of all libraries, because some of these open files.
[[gnu::section(".preinit_array"), gnu::used]] void (*g_open_standard_descriptors)() = open_standard_descriptors;

/// Why stdout does not have all that was printed; empty where it has. close() reports late errors of a file system.
std::string stdout_problem() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  int error = errno;
  if (flushed) {
    const int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (copy < 0 || close(copy) == 0) return "";
    error = errno;
  }
  return fmt::format(
      "cannot write to stdout{}: what was printed is not whole; free some space or print to another place",
      error == 0 ? "" : fmt::format(": {}", std::strerror(error)));
}

}  // namespace

int run_main(const char* program, const std::function<int()>& body,
             const std::function<void(const std::string&)>& on_error) {
  std::signal(SIGXFSZ, SIG_IGN);  // writes beyond a limit of file sizes then fail, and say so
  std::string message;
  int code;
  try {
    if (std::error_code gone; std::filesystem::current_path(gone).empty())
      throw ConfigError("the working directory is gone (" + gone.message() + "): change into another one");
    code = body();
    if (message = stdout_problem(); message.empty()) {
      leave_exit_code(code);
      return code;
    }
    if (code == 0) code = static_cast<int>(ExitCode::kCannotWrite);
  } catch (const Error& error) {
    message = error.what();
    code = static_cast<int>(error.code());
  } catch (const std::filesystem::filesystem_error& error) {
    const ConfigError problem = path_error(error);
    message = problem.what();
    code = static_cast<int>(problem.code());
  } catch (const std::exception& error) {
    // what() of LibTorch's exceptions ends with a stack: it is printed first, so that the message is the last line.
    const std::string_view text = error.what();
    const size_t stack = std::min(text.find("\nException raised from"), text.size());
    if (stack < text.size()) message = fmt::format("{}\n", text.substr(stack + 1));
    message += fmt::format("internal error: {}", text.substr(0, stack));
    code = static_cast<int>(ExitCode::kInternal);
    if (const std::string problem = stdout_problem(); !problem.empty()) {  // fmt::print() throws it
      message = problem;
      code = static_cast<int>(ExitCode::kCannotWrite);
    }
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
  // Not fmt::print(), which throws where stderr cannot be written.
  std::fputs(fmt::format("{}{}: {}{}\n", message.substr(0, last_line), program, who, last).c_str(), stderr);
  std::fflush(stderr);
  leave_exit_code(code);
  return code;
}

}  // namespace trireme
