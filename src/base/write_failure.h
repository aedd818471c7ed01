#pragma once
// Private to base/: the sentence about a system call that could not write.

#include <filesystem>

namespace trireme {

/// WriteError "cannot WHAT PATH: reason of errno; advice".
[[noreturn]] void write_failed(const char* what, const std::filesystem::path& path);

}  // namespace trireme
