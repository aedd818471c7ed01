// trireme-calibrate: what `trireme calibrate` starts. It joins ranks, so unlike trireme it needs MPI and NCCL.
#include "calibrate_options.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/comm/launch.h"
#include "trireme/train/calibration.h"
#include "trireme/train/device.h"
#include "trireme/train/rates_file.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>

namespace trireme {

namespace {

void write_rates(const Calibration& calibration, const std::string& output) {
  std::vector<std::string> notes = {fmt::format("trireme {} ({}) calibrate", kVersion, kCommit)};
  notes.insert(notes.end(), calibration.notes.begin(), calibration.notes.end());
  const std::string text = rates_text(calibration.rates, calibration.measured, notes);
  std::fputs(text.c_str(), stdout);
  if (output.empty()) return;
  if (const auto folder = std::filesystem::path(output).parent_path(); !folder.empty()) make_directories(folder);
  write_file_atomic(output, text);
  std::printf("written: %s; parallel.rates: %s loads it, and so does trireme simulate --rates\n", output.c_str(),
              output.c_str());
}

void measure(const CalibrateOptions& options) {
  const Launch launch = detect_launch();
  const int gpus = visible_gpus();
  if (launch.world_size == 1 && launch.kind == Launch::Kind::kAlone && gpus > 1)
    log_info(
        fmt::format("one GPU of {} is measured, and no link: mpirun -n {} trireme calibrate measures all", gpus, gpus));
  set_log_rank(launch.rank, launch.world_size);
  set_library_environment(/*gpu=*/true, /*deterministic=*/false);
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

}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_main("trireme calibrate", [&] {
    CLI::App app("Measures this machine's rates; started by `trireme calibrate`.");
    trireme::CalibrateOptions options;
    trireme::add_calibrate_options(app, options);
    CLI11_PARSE(app, argc, argv);
    trireme::measure(options);
    return 0;
  });
}
