#include "trireme/base/error.h"

#include <string_view>

namespace trireme::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view name(file);
  if (const size_t slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
  throw InternalError(concat(name, ":", line, ": ", message, " (", condition, " does not hold)"));
}

}  // namespace trireme::detail
