// `trireme calibrate`: the rates of this machine, for the plan's predictions. Several ranks measure their links too.
#include "tools.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/comm/launch.h"
#include "trireme/ops/device.h"
#include "trireme/plan/calibrate.h"
#include "trireme/plan/rates.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

namespace {

struct CalibrateOptions {
  std::string output;
  double seconds = 1;
};

void write_rates(const Calibration& calibration, const std::string& output) {
  std::vector<std::string> notes = {fmt::format("trireme {} ({}) calibrate", kVersion, kCommit)};
  notes.insert(notes.end(), calibration.notes.begin(), calibration.notes.end());
  const std::string text = rates_text(calibration.rates, calibration.measured, notes);
  std::fputs(text.c_str(), stdout);
  if (output.empty()) return;
  write_output(output, text);
  std::printf("written: %s; parallel.rates: %s loads it, and so does trireme simulate --rates\n", output.c_str(),
              output.c_str());
}

void run_calibrate(const CalibrateOptions& options) {
  require_output("calibrate", "--output", options.output,
                 {"file of `trireme calibrate`", "# trireme ", " calibrate\n"});
  const Launch launch = detect_launch();
  const int gpus = visible_gpus();
  if (gpus == 0)
    throw ConfigError(
        "trireme calibrate measures GPUs, and this process sees none: steps of CPU ranks are not predicted, so that "
        "there are no rates of a CPU (trireme doctor says which GPUs are there)");
  if (launch.world_size == 1 && launch.kind == Launch::Kind::kAlone && gpus > 1)
    log_info(
        fmt::format("one GPU of {} is measured, and no link: mpirun -n {} trireme calibrate measures all", gpus, gpus));
  set_library_environment(/*gpu=*/true);
  set_log_rank(launch.rank, launch.world_size);
  const std::unique_ptr<World> world = World::join(launch, /*use_gpu=*/true, nullptr);
  const bool several = world->communicator().size() > 1;
  try {
    configure_libraries(world->device(), world->launch().local_world_size, /*deterministic=*/false);
    const Calibration calibration = calibrate(*world, options.seconds);
    if (world->communicator().rank() == 0) write_rates(calibration, options.output);
  } catch (const Error& error) {
    if (several) world->abort(error.what(), static_cast<int>(error.code()));
    throw;
  } catch (const std::exception& error) {
    if (several) world->abort(error.what(), static_cast<int>(ExitCode::kInternal));
    throw;
  }
  world->leave();
}

}  // namespace

void add_calibrate_tool(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* tool = app.add_subcommand("calibrate", "Measure this machine's rates, from which plans predict steps");
  tool->add_option("--output", options->output, "YAML file to write, for parallel.rates");
  tool->add_option("--seconds", options->seconds, "Length of each measurement")
      ->check(CLI::Range(0.05, 60.0))
      ->capture_default_str();
  tool->callback([options] { run_calibrate(*options); });
}

}  // namespace trireme
