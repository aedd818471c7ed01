#pragma once
// Common code of the fuzz targets. A target defines LLVMFuzzerTestOneInput (libFuzzer's entry point): it gives the
// bytes to one reader, as a file. For any bytes the reader must succeed or throw an Error with one of the expected exit
// codes.

#include "trireme/base/error.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace trireme::fuzz {

/// A file in memory that has a path, for readers that open files themselves.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, content.data(), content.size()) != static_cast<ssize_t>(content.size())) std::abort();
    path_ = fmt::format("/proc/self/fd/{}", fd_);
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  int fd_;
  std::filesystem::path path_;
};

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the process, as a finding, unless the action succeeds or throws an Error with an expected code and a message.
inline void expect_only(std::initializer_list<ExitCode> codes, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    for (const ExitCode code : codes)
      if (error.code() == code && error.what()[0] != '\0') return;
    fmt::print(stderr, "unexpected exit code {}: {}\n", static_cast<int>(error.code()), error.what());
    std::abort();
  } catch (const std::exception& error) {
    fmt::print(stderr, "not one of ours: {}\n", error.what());
    std::abort();
  }
}

inline void require(bool condition, const char* what) {
  if (condition) return;
  fmt::print(stderr, "violated: {}\n", what);
  std::abort();
}

}  // namespace trireme::fuzz
