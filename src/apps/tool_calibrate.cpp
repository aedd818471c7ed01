// `trireme calibrate`: the rates of this machine, for the plan's predictions. trireme-calibrate measures them.
#include "calibrate_options.h"
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/train/device.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme {

namespace {

[[noreturn]] void run_calibrate(const CalibrateOptions& options) {
  if (visible_gpus() == 0)
    throw ConfigError(
        "trireme calibrate measures GPUs, and this process sees none: steps of CPU ranks are not predicted, so that "
        "there are no rates of a CPU (trireme doctor says which GPUs are there)");
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").replace_filename("trireme-calibrate");
  const std::string seconds = fmt::format("{}", options.seconds);
  std::vector<const char*> words = {program.c_str(), "--seconds", seconds.c_str()};
  if (!options.output.empty()) words.insert(words.end(), {"--output", options.output.c_str()});
  words.push_back(nullptr);
  execv(program.c_str(), const_cast<char* const*>(words.data()));
  throw ConfigError(fmt::format("{} cannot be started: {}; it belongs beside trireme", program, std::strerror(errno)));
}

}  // namespace

void add_calibrate_tool(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* tool = app.add_subcommand("calibrate", "Measure this machine's rates, from which plans predict steps");
  add_calibrate_options(*tool, *options);
  tool->callback([options] { run_calibrate(*options); });
}

}  // namespace trireme
