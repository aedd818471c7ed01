// The start of a trainer. train_main() reads command line and configuration, join_and_train() joins the ranks, and
// train() goes through the stages of a start to the loop (Trainer).
#include "dry_run.h"
#include "memory_snapshot.h"
#include "run_plan.h"
#include "run_rows.h"
#include "trainer.h"
#include "trireme/base/cpu_binding.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/comm/collective_check.h"
#include "trireme/comm/launch.h"
#include "trireme/config/keys.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/dispatch.h"
#include "trireme/plan/precision.h"
#include "trireme/plan/rates.h"
#include "trireme/watchdog/watchdog.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>

namespace trireme {

namespace {

/// Whether OpenMP's threads sleep while they wait (OMP_WAIT_POLICY).
bool waits_passively() {
  const std::string policy = environment("OMP_WAIT_POLICY");
  return policy == "PASSIVE" || policy == "passive";
}

constexpr size_t kMostVariables = 8192;

char g_policy[] = "OMP_WAIT_POLICY=PASSIVE";

/// Executes the program again with OMP_WAIT_POLICY=PASSIVE (20 ms), unless OMP_WAIT_POLICY or GOMP_SPINCOUNT say
/// otherwise or OMP_NUM_THREADS is 1. libgomp's default is to spin for milliseconds after every operation. On a machine
/// that others use too, the spinning threads hold the cores that the working ones need, and a step takes many times as
/// long. libgomp reads the variable once, before main(). This function therefore runs before the constructors of all
/// libraries, libc's included: nothing but system calls, no allocation.
[[maybe_unused]] void restart_with_passive_waiting(int /*argc*/, char** argv, char** environment) {
  static char* extended[kMostVariables + 2];
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    const std::string_view variable = environment[count];
    if (variable.starts_with("OMP_WAIT_POLICY=") || variable.starts_with("GOMP_SPINCOUNT=") ||
        variable == "OMP_NUM_THREADS=1" || count == kMostVariables)
      return;
    extended[count] = environment[count];
  }
  extended[count] = g_policy;
  // By the name that it was started with: it says which program this is, to main() and in lists of processes.
  const auto* program = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (program != nullptr) execve(program, argv, extended);
  // execve failed: the run goes on with threads that spin.
}

// The sanitizers' own start comes later: code that they instrument must not run before it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((section(".preinit_array"), used)) void (*const g_before_all)(int, char**,
                                                                            char**) = restart_with_passive_waiting;
#endif

std::vector<std::string> weight_names(const TrainingTask& task) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : task.units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts) names.push_back(part.name);
  return names;
}

/// Logs whether the caches were dropped before the run; the script that drops them sets the variable
/// (scripts/slurm/run.sub).
void start_mlperf(MlperfLog& mlperf) {
  if (!mlperf.enabled()) return;
  const std::string said = environment("TRIREME_CACHES_CLEARED");
  if (said == "true" || said == "false")
    mlperf.event("cache_clear", said);
  else
    log_info(
        "mllog.log has no cache_clear: whoever starts the run says whether the caches were dropped, by "
        "TRIREME_CACHES_CLEARED=true or false");
  mlperf.start("init_start");
}

MlperfRun mlperf_run(const Config& config, RunRows& rows, const World& world) {
  const TaskFacts& facts = rows.task().facts();
  return {facts.train_samples,
          facts.eval_samples,
          config.batch.global_batch_size / rows.grid().data.size / config.batch.micro_batch_size,
          world.topology().hosts(),
          facts.mlperf_division,
          weight_names(rows.task())};
}

/// Libraries as the run needs them, on the device that this rank has.
void configure_device(const Config& config, World& world) {
  collective_check(world.communicator(), [&] { (void)kernel_class(world.device()); });
  configure_libraries(world.device(), world.launch().local_world_size, config.train.deterministic);
  if (world.device().is_cuda()) return;
  const int threads = at::get_num_threads();
  log_info(fmt::format("{} for each rank{}", counted(threads, "CPU thread"),
                       threads > 1 && waits_passively() ? ", which sleep while they wait" : ""));
}

/// The files that are started and checked before the weights load. An adapter always needs its base; where everything
/// is trained a checkpoint replaces every weight, and the base model need not be there any more.
void check_base(const Config& config, const RunDirectory& directory, TrainingTask& task, Communicator& comm) {
  const bool needed = config.lora || !directory.has_checkpoints();
  collective_check(comm, [&] {
    if (needed) task.check_weights();
  });
}

/// The reason why the loop ended, as text: where memory ran out with what would help, otherwise without LibTorch's
/// stack.
[[noreturn]] void rethrow_readably(const std::exception& error, const RunPlan& plan) {
  if (const auto message = plan.out_of_memory_message(error)) throw ConfigError(*message);
  if (const auto* library = dynamic_cast<const c10::Error*>(&error))
    throw InternalError(library->what_without_backtrace());
  if (const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) throw path_error(*path);
  throw;
}

/// The stages of a start, each with the results of earlier stages, then the loop. Each ends with the same error on all
/// ranks, or on none.
ExitCode train(const Config& given, World& world, const TrainingProgram& program, const CommandLine& line) {
  Communicator& comm = world.communicator();
  // Configuration: epochs become steps.
  Config config;
  collective_check(comm, [&] { config = resolve_epochs(given, program, comm.size()); });
  const at::ScalarType dtype = compute_dtype(config, world.device().is_cuda());
  configure_device(config, world);
  // Directory, and the logs in it.
  const NullValues nulls =
      comm.rank() == 0 ? null_values(config, program.keys, world.device().is_cuda()) : NullValues();
  RunDirectory directory(config, world, {line.allow_fresh, line.allow_changed_data, nulls});
  if (directory.nothing_left()) return ExitCode::kDone;
  if (comm.rank() == 0)
    for (const std::string& sentence : config_warnings(config, program.keys)) log_warn(sentence);
  if (config.logging.style == LoggingSection::Style::kNemo) open_nemo_results(config, world);
  MlperfLog mlperf(config.logging.mlperf && comm.rank() == 0 ? directory.path() / "mllog.log" : "",
                   /*append=*/directory.has_checkpoints());
  start_mlperf(mlperf);
  // Rows.
  RunRows rows(config, world, program, run_context_size(config, program, world, dtype), dtype);
  const std::unique_ptr<MlperfEvents> events = program.mlperf_events(mlperf, config);
  events->configuration(config, mlperf_run(config, rows, world));
  // Plan.
  check_base(config, directory, rows.task(), comm);
  const RunPlan run_plan(config, rows.task(), world, rows.grid(), dtype,
                         /*from_start=*/!directory.has_checkpoints() || line.allow_fresh);
  const TrainingPlan& plan = run_plan.plan();
  rows.start_reading(plan.rows_per_pass);
  watch_out_of_memory(world.device(), directory.path() / "profile", comm.rank());
  for (const std::string& text : run_banner(config, rows.task(), plan, run_plan.device_info(), world)) log_info(text);
  // Weights and loop.
  const RunParts parts{config,
                       world,
                       rows.grid().with_shard_size(plan.shard_size),
                       rows.task(),
                       plan,
                       dtype,
                       run_plan.device_info(),
                       directory,
                       *events,
                       [&] { rows.finish_scan(); }};
  std::optional<Trainer> trainer;
  try {
    try {
      return trainer.emplace(parts).run();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      rethrow_readably(error, run_plan);
    }
  } catch (const std::exception& error) {
    if (trainer) trainer->report_failure(error);
    throw;
  }
}

/// Joins the world, trains, and sees to it that a failure of one rank ends all of them.
int join_and_train(const Config& config, const Launch& launch, const TrainingProgram& program,
                   const CommandLine& line) {
  install_signal_handlers();
  const bool gpu = visible_gpus() > 0;
  set_library_environment(gpu);
  const std::unique_ptr<World> world = World::join(launch, gpu, &rank_watchdog());
  const int rank = world->communicator().rank(), size = world->communicator().size();
  set_log_rank(rank, size);
  if (const auto bound = bind_cpus(world->launch().local_rank, world->launch().local_world_size)) log_info(*bound);
  set_stack_speaker(fmt::format("rank {} on {}", rank, world->hosts()[static_cast<size_t>(size > 1 ? rank : 0)]));
  try {
    // MPI may have more ranks than the environment gave.
    if (size != launch.world_size) (void)load_config(line.config, line.overrides, program.keys, size);
    if (line.device_memory_gib) limit_device_memory(world->device(), *line.device_memory_gib);
    const ExitCode code = train(config, *world, program, line);
    world->leave();
    return static_cast<int>(code);
  } catch (const CollectiveError& error) {
    world->leave();
    if (rank == 0) throw;
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    if (size > 1) world->abort(error.what(), static_cast<int>(error.code()));
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    const ConfigError problem = path_error(error);
    if (size > 1) world->abort(problem.what(), static_cast<int>(problem.code()));
    throw problem;
  } catch (const std::exception& error) {
    if (size > 1) world->abort(error.what(), static_cast<int>(ExitCode::kInternal));
    throw;
  }
}

}  // namespace

int train_main(int argc, char** argv, const TrainingProgram& program) {
  return run_main(program.keys.name.c_str(), [&]() -> int {
    install_stack_handlers();
    check_fault_specifications();
    Launch launch;
    std::exception_ptr no_launch;  // --help and --version need none
    try {
      launch = detect_launch();
    } catch (const Error&) {
      no_launch = std::current_exception();
    }
    set_log_rank(launch.rank, launch.world_size);
    bool joining = false;  // until then the ranks mostly find the same problems: the others say the first one
    try {
      const CommandLine line = parse_command_line(argc, argv, program);
      if (line.handled) return line.exit_code;
      if (no_launch) std::rethrow_exception(no_launch);
      // --print-config by itself may prepare a run of any number of ranks.
      std::optional<int64_t> ranks = line.dry_run ? line.ranks.value_or(launch.world_size) : launch.world_size;
      if (line.print_config && !line.dry_run && launch.world_size == 1) ranks = std::nullopt;
      const Config config = load_config(line.config, line.overrides, program.keys, ranks);
      if (line.print_config) {
        if (launch.rank == 0) std::fputs(print_config(config).c_str(), stdout);
        return 0;
      }
      // What is wrong with the file and with variables is found before the ranks join.
      (void)run_rates(config, "");
      (void)planned_kernel_class(at::kCPU);
      check_attention_setting();
      (void)wanted_products();
      try {
        if (line.dry_run) return dry_run(config, line, launch, program);
        joining = true;
        return join_and_train(config, launch, program, line);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kConfig) throw;
        throw Error(error.code(), with_place(line.config, line.overrides, program.keys, error.what()));
      }
    } catch (const Error& error) {
      const std::string text = error.what();
      const auto more = std::count(text.begin(), text.end(), '\n');
      if (joining || launch.rank == 0 || more == 0) throw;
      // A launcher ends all ranks at the first that fails: rank 0, which lists all problems, comes first.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      throw Error(error.code(),
                  fmt::format("{} (and {})", text.substr(0, text.find('\n')), counted(more, "more line")));
    }
  });
}

}  // namespace trireme
