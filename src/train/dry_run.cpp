#include "trireme/train/dry_run.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <cstdio>

namespace trireme {

namespace {

std::vector<std::string> cost_lines(const Config& config, const TrainingTask& task, int ranks) {
  const double flops = task.flops_per_sample();
  const int64_t gbs = config.batch.global_batch_size;
  const double epochs = static_cast<double>(config.train.max_steps * gbs) / static_cast<double>(task.train_samples());
  return {
      fmt::format("parameters: {} ({} trained)", format_count(task.num_parameters()),
                  format_count(task.num_trained_parameters())),
      fmt::format("steps: {} of {} samples ({} per rank, {} micro-batches of {}): {} samples, {:.2f} epochs of {} rows",
                  config.train.max_steps, gbs, gbs / ranks, gbs / ranks / config.batch.micro_batch_size,
                  config.batch.micro_batch_size, format_count(config.train.max_steps * gbs), epochs,
                  format_count(task.train_samples())),
      fmt::format("cost: {}FLOP per sample, {}FLOP per step, {} tokens per step", format_short(flops),
                  format_short(flops * static_cast<double>(gbs)), format_count(gbs * config.data.seq_length)),
  };
}

}  // namespace

at::ScalarType compute_dtype(const Config& config, bool use_gpu) {
  const std::string name = config.precision.compute.value_or(use_gpu ? "bf16" : "fp32");
  return name == "fp32" ? at::kFloat : name == "fp16" ? at::kHalf : at::kBFloat16;
}

PlanInput plan_input(const Config& config, const TrainingTask& task, int world_size, at::ScalarType dtype) {
  PlanInput input;
  task.fill_plan(input);
  input.world_size = world_size;
  input.compute_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  input.micro_batches = static_cast<int>(config.batch.global_batch_size / world_size / config.batch.micro_batch_size);
  if (config.parallel.shard_size == "world")
    input.shard_size = world_size;
  else if (config.parallel.shard_size != "auto")
    input.shard_size = std::stoi(config.parallel.shard_size);
  if (config.parallel.reduce_dtype == "compute") input.gradient_bytes = input.compute_bytes;
  input.frozen_fp8 = config.precision.frozen == "fp8";
  const std::string& recompute = config.parallel.recompute;
  if (recompute != "auto")
    input.recompute = recompute == "full" ? Recompute::kFull : recompute == "mlp" ? Recompute::kMlp : Recompute::kNone;
  return input;
}

std::vector<std::string> run_banner(const Config& config, const TrainingTask& task, const MemoryPlan& plan,
                                    const DeviceInfo& device, World& world) {
  const int ranks = world.communicator().size();
  std::vector<std::string> lines = {fmt::format("Trireme {} ({}), {}, {} rank{} on {} ({})", kVersion, kCommit,
                                                world.launch().description(), ranks, ranks == 1 ? "" : "s", device.name,
                                                world.communicator().backend())};
  for (const std::string& line : task.describe()) lines.push_back(line);
  for (const std::string& line : cost_lines(config, task, ranks)) lines.push_back(line);
  for (const std::string& line : split(describe_plan(plan, task.units()), '\n'))
    if (!line.empty()) lines.push_back(line);
  return lines;
}

int dry_run(const Config& config, const CommandLine& line, const Launch& launch, const TaskFactory& make_task) {
  const int ranks = line.ranks.value_or(launch.world_size);
  std::vector<std::string> problems = check_against_world(config, ranks);
  if (!problems.empty()) throw ConfigError(join(problems, "\n"));
  if (launch.rank != 0) return 0;
  const bool gpu = line.device_memory_gib.has_value();
  const at::ScalarType dtype = compute_dtype(config, gpu);
  const auto task = make_task(config, 0, ranks, at::kCPU, dtype);
  PlanInput input = plan_input(config, *task, ranks, dtype);
  if (gpu) {
    input.device_memory = static_cast<int64_t>(*line.device_memory_gib * (1 << 30));
    input.overhead = gpu_overhead(ranks);
  } else {
    input.device_memory =
        describe_device(at::kCPU, dtype, launch.world_size > 1 ? launch.local_world_size : ranks).total_memory;
  }
  std::string text =
      fmt::format("dry run: {} rank{} on {}, {}\n", ranks, ranks == 1 ? "" : "s",
                  gpu ? fmt::format("GPUs of {:.1f} GiB", *line.device_memory_gib) : "CPUs", c10::toString(dtype));
  for (const std::string& description : task->describe()) text += description + '\n';
  for (const std::string& cost : cost_lines(config, *task, ranks)) text += cost + '\n';
  text += describe_plan(make_plan(input), task->units());
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace trireme
