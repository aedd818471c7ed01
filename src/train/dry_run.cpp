#include "dry_run.h"

#include "checkpoint_folder.h"
#include "run_directory.h"
#include "run_rows.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/keys.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/ops/dispatch.h"
#include "trireme/plan/devices.h"
#include "trireme/plan/precision.h"
#include "trireme/plan/rates.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdio>

namespace trireme {

namespace {

/// 44.5e9 -> "44.5 G": the unit follows.
std::string before_unit(double value) {
  std::string text = format_short(value);
  const bool scaled = !text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0;
  text.insert(text.size() - (scaled ? 1 : 0), " ");
  return text;
}

/// `readers`: ranks, or groups of ranks that share their rows.
std::vector<std::string> cost_lines(const Config& config, const TrainingTask& task, int readers, bool groups) {
  const double flops = task.flops_per_row();
  const int64_t gbs = config.batch.global_batch_size;
  const BatchSizes batches(config.batch);
  const int64_t rows = batches.before(config.train.max_steps);
  const double epochs = static_cast<double>(rows) / static_cast<double>(task.facts().train_rows);
  std::vector<std::string> lines = {
      fmt::format("parameters: {} ({} trained)", format_count(task.num_parameters()),
                  format_count(task.num_trained_parameters())),
      fmt::format("steps: {} of {} ({} per {}, {} of {}): {}, {:.2f} epochs of {}", config.train.max_steps,
                  counted(gbs, "row"), gbs / readers, groups ? "group of ranks" : "rank",
                  counted(gbs / readers / config.batch.micro_batch_size, "micro-batch", "micro-batches"),
                  config.batch.micro_batch_size, counted(rows, "row"), epochs, counted(task.facts().train_rows, "row")),
      fmt::format("cost: {}FLOP per row, {}FLOP per step, {} tokens per step", before_unit(flops),
                  before_unit(flops * static_cast<double>(gbs)), format_count(gbs * config.data.seq_length)),
  };
  if (batches.ramps())
    lines.push_back(fmt::format("batch ramp: {} in step 1, {} more each {} rows, {} from step {} on",
                                counted(batches.of(0), "row"), config.batch.rampup[1],
                                format_short(static_cast<double>(config.batch.rampup[2]) /
                                             static_cast<double>((gbs - batches.of(0)) / config.batch.rampup[1])),
                                gbs, format_count(batches.first_largest() + 1)));
  return lines;
}

/// Which rates the prediction is made of; nothing where there is none and no file was asked for.
std::string rates_line(const Config& config, const TrainingPlan& plan, const MachineRates& rates,
                       const std::string& device_name) {
  if (!plan.cost.known && !config.parallel.rates) return "";
  return describe_rates(rates, device_name) +
         (plan.cost.known ? "" : "; steps of CPU ranks are not predicted, only their parts are compared");
}

}  // namespace

std::vector<std::string> run_banner(const Config& config, const TrainingTask& task, const TrainingPlan& plan,
                                    const DeviceInfo& device, World& world) {
  const int ranks = world.communicator().size();
  const std::string group = ranks == 1 ? ""
                                       : fmt::format(", started by {}, collectives of {}", world.launch().description(),
                                                     world.communicator().backend());
  std::vector<std::string> lines = {
      fmt::format("Trireme {} ({}): {} on {}{}", kVersion, kCommit, counted(ranks, "rank"), device.name, group)};
  if (world.device().is_cuda()) {
    const KernelClass kernels = kernel_class(world.device());
    lines.push_back(describe_kernels(kernels));
    if (const std::string why = missing_kernels(kernels, compute_capability(world.device())); !why.empty())
      lines.back() += ", slower: " + why;
  }
  const Topology& topology = world.topology();
  if (topology.hosts() > 1) {
    const int size = plan.shard_size;
    const bool inside = topology.largest_group() % size == 0;
    lines.push_back(describe_topology(topology) +
                    (size == 1 ? "; nothing is sharded"
                     : inside  ? fmt::format("; shard groups of {} within hosts, copies across", size)
                               : fmt::format("; shard groups of {} reach over several hosts", size)));
  }
  for (const std::string& line : task.facts().description) lines.push_back(line);
  for (const std::string& line : cost_lines(config, task, ranks / plan.context_size, plan.context_size > 1))
    lines.push_back(line);
  for (const std::string& line : split(describe_plan(plan, task.units()), '\n'))
    if (!line.empty()) lines.push_back(line);
  if (const std::string rates = rates_line(config, plan, run_rates(config, device.name), device.name); !rates.empty())
    lines.push_back(rates);
  return lines;
}

int dry_run(const Config& given, const CommandLine& line, const Launch& launch, const TrainingProgram& program) {
  const int ranks = line.ranks.value_or(launch.world_size);
  if (launch.rank != 0) return 0;
  // The order of a run, so that the dry run reports the same problem first.
  const Config config = resolve_epochs(given, program, ranks);
  for (const std::string& sentence : config_warnings(config, program.keys)) log_warn(sentence);
  // With --ranks the run is for other machines, whose disks this one does not show.
  const bool elsewhere = line.ranks.has_value();
  std::string disk;
  const auto check_disk = [&](const auto& check) {
    try {
      check();
    } catch (const WriteError& error) {
      if (!elsewhere) throw;
      disk += fmt::format("a run on this machine would end with exit code {}: {}\n", static_cast<int>(error.code()),
                          error.what());
    }
  };
  const bool named = !line.device.empty(), gpu = named || line.device_memory_gib.has_value();
  const MachineRates rates = named ? device_rates(line.device) : run_rates(config, "");
  const KernelClass kernels = gpu ? planned_kernel_class(rates.capability) : planned_kernel_class(at::kCPU);
  const double memory_gib = line.device_memory_gib.value_or(rates.memory_gib);
  const at::ScalarType dtype = compute_dtype(config, gpu);
  check_disk([&] {
    check_run_directory(config, {line.allow_fresh, line.allow_changed_data, null_values(config, program.keys, gpu)});
  });
  const int64_t memory =
      gpu ? static_cast<int64_t>(memory_gib * (1 << 30))
          : describe_device(at::kCPU, dtype, launch.world_size > 1 ? launch.local_world_size : ranks).total_memory;
  const int64_t host_memory =
      pinnable_memory(static_cast<int64_t>(line.host_memory_gib.value_or(rates.host_memory_gib) * (1 << 30)), 1);
  RankInfo rank{
      .grid = RankGrid(0, {.world = ranks}), .compute_dtype = dtype, .planned_capability = gpu ? rates.capability : 0};
  int context = 1;
  if (ranks > 1 && config.parallel.context_size != 1 && program.keys.features.has(Feature::kContext)) {
    rank.plan_only = true;
    const auto model = program.make_task(config, rank, program.keys);
    context = choose_context_size({config, *model, ranks, gpu, memory, host_memory, 0, rates, 0, kernels});
    rank.plan_only = false;
    rank.grid = RankGrid(0, {.world = ranks, .context = context});
  }
  const auto task = program.make_task(config, rank, program.keys);
  const std::filesystem::path checkpoints = std::filesystem::path(config.output.dir) / "checkpoints";
  if (config.lora || list_checkpoints(checkpoints).empty()) task->check_weights();
  const TrainingPlan plan = plan_run({config, *task, ranks, gpu, memory, host_memory, 0, rates, context, kernels});
  check_disk([&] {
    const std::string warning =
        check_checkpoint_space(config, checkpoints, known_run_id(config.output.dir), task->units(), ranks);
    if (!warning.empty()) log_warn(warning);
    check_result_space(config, task->artefact_bytes());
  });
  const RowScanReport report = scan_rows(*task);

  std::string text = fmt::format(
      "dry run: {} on {}, {}\n", counted(ranks, "rank"),
      gpu ? fmt::format("{} of {:.1f} GiB", named ? rates.name : "GPUs", memory_gib) : "CPUs", type_name(dtype));
  if (gpu) text += describe_kernels(kernels) + '\n';
  for (const std::string& description : task->facts().description) text += description + '\n';
  for (const std::string& cost : cost_lines(config, *task, ranks / context, context > 1)) text += cost + '\n';
  text += describe_plan(plan, task->units());
  if (const std::string told = rates_line(config, plan, rates, ""); !told.empty()) text += told + '\n';
  text += "data: " + report.summary() + '\n';
  if (const auto found = list_checkpoints(checkpoints); !found.empty())
    text += fmt::format(
        "output.dir holds this run: it goes on from the newest whole of {}, the last of step {}, which a dry run does "
        "not read\n",
        counted(found.size(), "checkpoint"), found.front().first);
  text += disk;
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace trireme
