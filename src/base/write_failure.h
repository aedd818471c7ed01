#pragma once
// Private to base/: the message for a failed system call that writes.

#include <filesystem>

namespace trireme {

/// WriteError "cannot WHAT PATH: reason of errno; advice".
[[noreturn]] void write_failed(const char* what, const std::filesystem::path& path);

}  // namespace trireme
