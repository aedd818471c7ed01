#pragma once
// Private to ops/: who computes attention on a GPU.

#include "trireme/base/error.h"

#include <cstdlib>
#include <string_view>

namespace trireme {

/// TRIREME_ATTENTION=library: LibTorch's kernels everywhere; ours: our kernels wherever they take the shape; measured,
/// the default: ours where they were measured to be right and faster.
enum class AttentionChoice { kMeasured, kLibrary, kOurs };

inline AttentionChoice attention_choice() {
  static const AttentionChoice choice = [] {
    const char* value = std::getenv("TRIREME_ATTENTION");
    if (value == nullptr || std::string_view(value) == "measured") return AttentionChoice::kMeasured;
    if (std::string_view(value) == "library") return AttentionChoice::kLibrary;
    if (std::string_view(value) == "ours") return AttentionChoice::kOurs;
    throw ConfigError(std::string("TRIREME_ATTENTION is '") + value + "'; use measured, library or ours");
  }();
  return choice;
}

}  // namespace trireme
