#include "trireme/train/run.h"

#include "collective_check.h"
#include "data_scan.h"
#include "dry_run.h"
#include "megatron_rows.h"
#include "memory_snapshot.h"
#include "nemo_results.h"
#include "out_of_memory.h"
#include "passive_waiting.h"
#include "rank_plan.h"
#include "run_length.h"
#include "signals.h"
#include "trainer.h"
#include "trireme/base/cpu_binding.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/stack.h"
#include "trireme/base/time.h"
#include "trireme/comm/launch.h"
#include "trireme/ops/device.h"
#include "trireme/plan/rates.h"
#include "trireme/train/command_line.h"
#include "trireme/version.h"
#include "trireme/watchdog/progress.h"
#include "trireme/watchdog/watchdog.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace trireme {

namespace {

std::vector<std::string> weight_names(const TrainingTask& task) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : task.units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) names.push_back(part.name);
  return names;
}

/// What is known of the caches before the run; whoever drops them says so (scripts/slurm/run.sub).
void log_cache_clear(MlperfLog& mlperf) {
  const char* cleared = std::getenv("TRIREME_CACHES_CLEARED");
  const std::string_view said = cleared == nullptr ? "" : cleared;
  if (said == "true" || said == "false")
    mlperf.event("cache_clear", std::string(said));
  else
    log_info(
        "mllog.log has no cache_clear: whoever starts the run says whether the caches were dropped, by "
        "TRIREME_CACHES_CLEARED=true or false");
}

ExitCode train(const Config& given, World& world, const ModelFamily& family, const CommandLine& line) {
  Communicator& comm = world.communicator();
  Config config;
  collective_check(comm, [&] { config = resolve_epochs(given, family, comm.size()); });
  const bool gpu = world.device().is_cuda();
  const at::ScalarType dtype = compute_dtype(config, gpu);
  configure_libraries(world.device(), world.launch().local_world_size, config.train.deterministic);
  const int threads = at::get_num_threads();
  if (!gpu)
    log_info(fmt::format("{} CPU thread{} for each rank{}", threads, threads == 1 ? "" : "s",
                         threads > 1 && waits_passively() ? ", which sleep while they wait" : ""));
  RunDirectory directory(config, world, {line.allow_fresh, line.allow_changed_data, null_values(family.config, dtype)});
  if (config.logging.style == LoggingSection::Style::kNemo) open_nemo_results(config, world);
  const bool log_here = config.logging.mlperf && comm.rank() == 0;
  MlperfLog mlperf(log_here ? directory.path() / "mllog.log" : std::filesystem::path());
  if (log_here) log_cache_clear(mlperf);
  mlperf.start("init_start");

  // One rank writes the index maps that all of them read.
  {
    const ProgressSection section("index maps", kStorageAllowance);
    collective_check(comm, [&] {
      if (comm.rank() == 0) fill_index_caches(config);
    });
  }
  const RankGrid rows(comm.rank(), {.world = comm.size(), .ranks_per_host = world.topology().ranks_per_host});
  std::unique_ptr<TrainingTask> task;
  collective_check(comm, [&] { task = family.make_task(config, {rows, world.device(), dtype}, family.config); });
  const std::unique_ptr<MlperfEvents> events = family.mlperf_events(mlperf, config);
  events->configuration(config, {task->facts().train_samples, task->facts().eval_samples,
                                 config.batch.global_batch_size / rows.data.size / config.batch.micro_batch_size,
                                 world.topology().hosts(), task->facts().mlperf_division, weight_names(*task)});
  // Where everything is trained a checkpoint replaces every weight: the base model need not be there any more.
  const bool needs_base = config.lora || !directory.has_checkpoints();
  collective_check(comm, [&] {
    if (needs_base) task->check_weights();
  });
  DeviceInfo device = describe_device(world.device(), dtype, world.launch().local_world_size);
  if (const auto bytes = fault_value("device-memory", comm.rank())) device.total_memory = static_cast<int64_t>(*bytes);
  const PlanQuestion question{config,
                              *task,
                              comm.size(),
                              gpu,
                              device.total_memory,
                              device.name,
                              world.topology().largest_group(),
                              configured_rates(config)};
  const MemoryPlan plan = plan_for_all_ranks(question, world);
  task->set_rows_per_pass(plan.rows_per_pass);
  // An MLPerf run touches no data before its clock runs.
  std::unique_ptr<RowScan> scan;
  if (!config.logging.mlperf) {
    task->prefetch(0);
    scan = std::make_unique<RowScan>(task->row_sets(),
                                     RowScanOptions{.threads = scan_threads(world.launch().local_world_size),
                                                    .part = rows.world.rank,
                                                    .parts = rows.world.size,
                                                    .seconds = kLongestScan});
  }
  const auto loaded = [&] {
    if (scan) finish_scan(std::exchange(scan, nullptr), comm);
  };
  watch_out_of_memory(world.device(), directory.path() / "profile", comm.rank());
  for (const std::string& text : run_banner(config, *task, plan, device, world)) log_info(text);
  try {
    Trainer trainer(config, world, *task, plan, dtype, device, directory, *events,
                    rows.with_shard_size(plan.shard_size), loaded);
    return trainer.run();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto message = out_of_memory_message(error, question, plan, world.device(), comm.rank());
    if (message) throw ConfigError(*message);
    // The last line is for people: LibTorch's stack frames are not.
    if (const auto* library = dynamic_cast<const c10::Error*>(&error))
      throw InternalError(library->what_without_backtrace());
    throw;
  }
}

/// Joins the world, trains, and sees to it that a failure of one rank ends all of them.
int join_and_train(const Config& config, const Launch& launch, const ModelFamily& family, const CommandLine& line) {
  install_signal_handlers();
  const bool gpu = visible_gpus() > 0;
  set_library_environment(gpu, config.train.deterministic);
  const std::unique_ptr<World> world = World::join(launch, gpu, &rank_watchdog());
  const int rank = world->communicator().rank(), size = world->communicator().size();
  set_log_rank(rank, size);
  if (const auto bound = bind_cpus(world->launch().local_rank, world->launch().local_world_size)) log_info(*bound);
  set_stack_speaker(fmt::format("rank {} on {}", rank, world->hosts()[static_cast<size_t>(size > 1 ? rank : 0)]));
  try {
    // MPI may know of more ranks than the environment told.
    if (size != launch.world_size) (void)load_config(line.config, line.overrides, family.config, size);
    const ExitCode code = train(config, *world, family, line);
    world->leave();
    return static_cast<int>(code);
  } catch (const CollectiveError& error) {
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

int train_main(int argc, char** argv, const ModelFamily& family) {
  return run_main(family.config.program.c_str(), [&]() -> int {
    install_stack_handlers();
    check_fault_specifications();
    const Launch launch = detect_launch();
    set_log_rank(launch.rank, launch.world_size);
    bool joining = false;  // until then the ranks mostly find the same problems: the others say the first one
    try {
      const CommandLine line = parse_command_line(argc, argv, family);
      if (line.handled) return line.exit_code;
      // --print-config by itself may prepare a run of any number of ranks.
      std::optional<int64_t> ranks = line.dry_run ? line.ranks.value_or(launch.world_size) : launch.world_size;
      if (line.print_config && !line.dry_run && launch.world_size == 1) ranks = std::nullopt;
      const Config config = load_config(line.config, line.overrides, family.config, ranks);
      if (line.print_config) {
        std::fputs(print_config(config).c_str(), stdout);
        return 0;
      }
      (void)configured_rates(config);  // what is wrong with the file is found before the ranks join
      if (line.dry_run) return dry_run(config, line, launch, family);
      joining = true;
      return join_and_train(config, launch, family, line);
    } catch (const Error& error) {
      const std::string text = error.what();
      const auto more = std::count(text.begin(), text.end(), '\n');
      if (joining || launch.rank == 0 || more == 0) throw;
      throw Error(error.code(),
                  fmt::format("{} (and {} more line{})", text.substr(0, text.find('\n')), more, more == 1 ? "" : "s"));
    }
  });
}

}  // namespace trireme
