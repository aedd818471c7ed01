#pragma once
// torchtitan's TOML file: its keys and values.

#include "tree_options.h"

#include <filesystem>

namespace trireme {

class TitanOptions : public TreeOptions {
 public:
  /// A file that is no TOML is a ConfigError with line and column. Keys that torchtitan v0.2 does not know go to the
  /// draft as problems.
  TitanOptions(const std::filesystem::path& file, ImportDraft& draft);
};

}  // namespace trireme
