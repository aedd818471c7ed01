#pragma once
// The format of --help of all programs.

#include <memory>

namespace CLI {
class FormatterBase;
}  // namespace CLI

namespace trireme {

/// Set on an app before its subcommands are added. An option is one line, "--gpus-per-host N", with its meaning, limits
/// and default on its right, wrapped for a terminal of 100 columns.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace trireme
