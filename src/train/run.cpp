#include "trireme/train/run.h"

#include "agree.h"
#include "llama_task.h"
#include "out_of_memory.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/launch.h"
#include "trireme/train/command_line.h"
#include "trireme/train/device.h"
#include "trireme/train/dry_run.h"
#include "trireme/train/signals.h"
#include "trireme/train/trainer.h"
#include "trireme/version.h"
#include "trireme/watchdog/watchdog.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <set>

namespace trireme {

std::unique_ptr<TrainingTask> make_llama_task(const Config& config, int rank, int world_size, at::Device device,
                                              at::ScalarType compute_dtype) {
  return std::make_unique<LlamaTask>(config, RankInfo{rank, world_size, device, compute_dtype});
}

namespace {

/// Settings that the schema knows and this version cannot do: saying so beats ignoring them.
std::vector<std::string> unavailable(const Config& config) {
  if (!config.logging.tensorboard) return {};
  return {"logging.tensorboard: true is not available in this version; metrics.jsonl has every number"};
}

void throw_problems(const std::vector<std::string>& problems) {
  if (!problems.empty()) throw ConfigError(join(problems, "\n"));
}

int count_nodes(World& world) {
  const auto& hosts = world.hosts();
  return static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size());
}

std::vector<std::string> weight_names(const TrainingTask& task) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : task.units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) names.push_back(part.name);
  return names;
}

ExitCode train(const Config& config, World& world, const TaskFactory& make_task, const CommandLine& line) {
  Communicator& comm = world.communicator();
  const bool gpu = world.device().is_cuda();
  const at::ScalarType dtype = compute_dtype(config, gpu);
  configure_libraries(world.device(), world.launch().local_world_size);
  RunDirectory directory(config, world, {line.allow_fresh, line.allow_changed_data});
  const bool log_here = config.logging.mlperf && comm.rank() == 0;
  MlperfLog mlperf(log_here ? directory.path() / "mllog.log" : std::filesystem::path());
  mlperf.event("cache_clear", "true");
  mlperf.start("init_start");

  std::unique_ptr<TrainingTask> task;
  agree(comm, [&] { task = make_task(config, comm.rank(), comm.size(), world.device(), dtype); });
  const std::unique_ptr<MlperfEvents> events = task->mlperf_events(mlperf);
  events->configuration(config, {task->train_samples(), task->eval_samples(),
                                 config.batch.global_batch_size / comm.size() / config.batch.micro_batch_size,
                                 count_nodes(world), weight_names(*task)});
  const DeviceInfo device = describe_device(world.device(), dtype, world.launch().local_world_size);
  PlanInput input = plan_input(config, *task, comm.size(), dtype);
  input.device_memory = device.total_memory;
  input.overhead = gpu ? gpu_overhead(comm.size()) : 0;
  const MemoryPlan plan = make_plan(input);
  // An MLPerf run touches no data before its clock runs.
  if (!config.logging.mlperf) task->prefetch(0);
  for (const std::string& text : run_banner(config, *task, plan, device, world)) log_info(text);
  try {
    Trainer trainer(config, world, *task, plan, dtype, device, directory, *events);
    return trainer.run();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto message = out_of_memory_message(error, config, plan, world.device(), comm.rank());
    if (message) throw ConfigError(*message);
    // The last line is for people: LibTorch's stack frames are not.
    if (const auto* library = dynamic_cast<const c10::Error*>(&error))
      throw InternalError(library->what_without_backtrace());
    throw;
  }
}

/// Joins the world, trains, and sees to it that a failure of one rank ends all of them.
int join_and_train(const Config& config, const Launch& launch, const TaskFactory& make_task, const CommandLine& line) {
  install_signal_handlers();
  set_log_rank(launch.rank, launch.world_size);
  const std::unique_ptr<World> world = World::join(launch, visible_gpus() > 0, &rank_watchdog());
  const int rank = world->communicator().rank(), size = world->communicator().size();
  set_log_rank(rank, size);
  set_stack_speaker(fmt::format("rank {} on {}", rank, world->hosts()[static_cast<size_t>(size > 1 ? rank : 0)]));
  try {
    throw_problems(check_against_world(config, size));
    const ExitCode code = train(config, *world, make_task, line);
    world->leave();
    return static_cast<int>(code);
  } catch (const AgreedError& error) {
    world->leave();
    if (rank == 0) throw;
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    if (size > 1) world->abort(error.what(), static_cast<int>(error.code()));
    throw;
  } catch (const std::exception& error) {
    if (size > 1) world->abort(error.what(), static_cast<int>(ExitCode::kInternal));
    throw;
  }
}

}  // namespace

int train_main(int argc, char** argv, const Application& application) {
  const char* program = application.name;
  const TaskFactory& make_task = application.make_task;
  return run_main(program, [&]() -> int {
    install_stack_handlers();
    check_fault_specifications();
    const Launch launch = detect_launch();
    bool joining = false;  // until then every rank finds the same problems, and one of them says them
    try {
      const CommandLine line = parse_command_line(argc, argv, program);
      if (line.handled) return line.exit_code;
      const Config config = load_config(line.config, line.overrides, application.program);
      if (line.print_config) {
        std::fputs(print_config(config).c_str(), stdout);
        return 0;
      }
      throw_problems(unavailable(config));
      if (line.dry_run) return dry_run(config, line, launch, make_task);
      throw_problems(check_against_world(config, launch.world_size));
      joining = true;
      return join_and_train(config, launch, make_task, line);
    } catch (const Error&) {
      if (joining || launch.rank == 0) throw;
      return static_cast<int>(ExitCode::kConfig);
    }
  });
}

}  // namespace trireme
