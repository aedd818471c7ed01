#pragma once
// Errors and checks. User-facing failures are typed and carry the process exit code (docs/errors.md); everything else
// is a bug and is reported through TRIREME_CHECK with both values. run_main() catches them all.

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>

namespace trireme {

enum class ExitCode : int {
  kDone = 0,
  kConfig = 2,        // configuration or command line
  kData = 3,          // data files
  kModel = 4,         // model, adapter or checkpoint files
  kInternal = 70,     // a bug, or numbers that are not finite
  kHang = 71,         // a rank stopped making progress
  kCannotWrite = 73,  // disk full, read-only, output directory taken
  kStopped = 75,      // stopped by a signal after saving a checkpoint: the same command resumes from it
};

/// A failure with the exit code it ends the process with. The message says what failed, where, and what to try.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(ExitCode::kConfig, message) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(ExitCode::kData, message) {}
};
struct ModelError : Error {
  explicit ModelError(const std::string& message) : Error(ExitCode::kModel, message) {}
};
struct WriteError : Error {
  explicit WriteError(const std::string& message) : Error(ExitCode::kCannotWrite, message) {}
};
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

/// Of a path that the system does not let a program look at: a folder without permission, links in a circle, a name
/// that is too long.
ConfigError path_error(const std::filesystem::filesystem_error& error);

/// Throws WriteError "cannot WHAT PATH: reason of errno; advice".
[[noreturn]] void write_failed(const char* what, const std::string& path);

namespace detail {
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace trireme

/// TRIREME_CHECK(a == b, "shard has ", a, " elements, unit expects ", b): throws InternalError with file:line.
#define TRIREME_CHECK(condition, ...)                                                                          \
  do {                                                                                                         \
    if (!(condition)) [[unlikely]]                                                                             \
      ::trireme::detail::check_failed(__FILE__, __LINE__, #condition, ::trireme::detail::concat(__VA_ARGS__)); \
  } while (false)
