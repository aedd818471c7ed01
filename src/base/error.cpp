#include "trireme/base/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace trireme {

ConfigError path_error(const std::filesystem::filesystem_error& error) {
  return ConfigError(error.path1().string() + ": " + error.code().message() +
                     ": check the path, and the permissions of the folders that it leads through");
}

void write_failed(const char* what, const std::string& path) {
  const int error = errno;
  const char* advice = error == ENOSPC || error == EDQUOT  ? "; free some space or choose another place"
                       : error == EROFS || error == EACCES ? "; choose a place you may write to"
                       : error == EFBIG ? "; raise the limit on the size of files (ulimit -f), or choose another place"
                                        : "";
  throw WriteError(fmt::format("cannot {} {}: {}{}", what, path, std::strerror(error), advice));
}

void detail::check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view name(file);
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
  throw InternalError(concat(name, ":", line, ": ", message, " (", condition, " does not hold)"));
}

}  // namespace trireme
