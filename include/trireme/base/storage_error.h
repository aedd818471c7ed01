#pragma once
// Files that are there and cannot be opened or read.

#include "trireme/base/error.h"

#include <filesystem>

namespace trireme {

/// The system could not open or read what is there, for now or for this user: it tells nothing of the content.
/// MappedFile and read_text_file() throw it too.
struct StorageError : Error {
  using Error::Error;
};

/// Whether `error` tells nothing of what is at a path: none of those that say that no such file is there.
bool is_storage_failure(int error);

/// Throws "cannot WHAT PATH: reason", a StorageError where is_storage_failure(error), with `code`.
[[noreturn]] void read_failed(ExitCode code, const char* what, const std::filesystem::path& path, int error);

}  // namespace trireme
