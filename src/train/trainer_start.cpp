// What happens before the first step: shards, optimizer, weights or a checkpoint, warm-up.
#include "trainer.h"

#include "trireme/config/keys.h"

#include "checkpoint.h"
#include "checkpoint_space.h"
#include "collective_check.h"
#include "fms_report.h"
#include "megatron_rows.h"
#include "metrics_reader.h"
#include "nonfinite.h"
#include "profiler.h"
#include "run_clock.h"
#include "run_summary.h"
#include "step_guard.h"
#include "stop_vote.h"
#include "tensorboard_log.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/time.h"
#include "trireme/plan/precision.h"
#include "trireme/version.h"
#include "trireme/watchdog/progress.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace trireme {

namespace {

/// What a checkpoint says about its run; the inputs' fingerprints only where they are needed, on rank 0.
CheckpointOptions checkpoint_options(const Config& config, const RunDirectory& directory, const MemoryPlan& plan,
                                     const RankGrid& grid, at::ScalarType dtype, bool fingerprints) {
  CheckpointOptions options;
  options.grid = grid.with_shard_size(plan.state_shards());
  options.keep_last = config.output.keep_last;
  options.run_id = directory.run_id();
  options.config = print_config(config);
  options.config_hash = configuration_hash(config);
  options.compute_dtype = type_name(dtype);
  options.seed = config.train.seed;
  options.samples_after = [batches = BatchSizes(config.batch)](int64_t steps) { return batches.before(steps); };
  options.tokens_per_sample = config.data.seq_length;
  options.allow_fresh = directory.choices().allow_fresh;
  options.allow_changed_data = directory.choices().allow_changed_data;
  options.nulls = directory.choices().nulls;
  if (!fingerprints) return options;
  for (const std::string& path : train_files(config))
    options.data.push_back({path, fingerprint_input(path, ExitCode::kData)});
  if (config.lora)
    options.base = fingerprint_model(config.model.path, config.model.init == ModelSection::Init::kCheckpoint);
  return options;
}

}  // namespace

Trainer::Trainer(const Config& config, World& world, TrainingTask& task, const MemoryPlan& plan,
                 at::ScalarType compute_dtype, const DeviceInfo& device, RunDirectory& directory, MlperfEvents& mlperf,
                 const RankGrid& grid, std::function<void()> loaded)
    : config_(config),
      world_(world),
      comm_(world.communicator()),
      grid_(grid),
      task_(task),
      plan_(plan),
      compute_dtype_(compute_dtype),
      device_info_(device),
      directory_(directory),
      mlperf_(mlperf),
      loaded_(std::move(loaded)) {
  const at::Device target = world.device();
  stop_vote_ = std::make_unique<StopVote>(comm_, target);
  units_ = std::make_unique<ShardedUnits>(
      task.units(), comm_, grid_, target,
      ShardingOptions{
          compute_dtype, plan.resident, frozen_recipe(config), trained_recipe(config, task.facts().automatic_fp8),
          config.parallel.reduce_dtype == ParallelSection::ReduceDtype::kCompute ? compute_dtype : at::kFloat,
          plan.policy, config.precision.fp8_skip_first, config.precision.fp8_skip_last,
          config.model.read == ModelSection::Read::kPerHost});
  if (!units_->gather_path().empty()) log_info("frozen shards are " + units_->gather_path());
  optimizer_ = make_optimizer(config.optimizer, units_->trained(), comm_);
  const auto event = [this](const std::string& json_object) { write_event(json_object); };
  guard_ = std::make_unique<StepGuard>(config, compute_dtype, target, event);
  clock_ = std::make_unique<RunClock>(config, task.nominal_samples_per_step(), target);
  in_flight_ = std::make_unique<MetricsReader>();
  totals_ = std::make_unique<RunTotals>();
  observe_gradient_faults(*units_, comm_.rank(), [this] { return progress_.completed + 1; });
  if (clips_locally()) units_->clip_before_reduction([this](const at::Tensor& square) { return local_clip(square); });
  checkpoints_ = std::make_unique<Checkpoints>(
      directory.checkpoints(), comm_, units_->units(),
      checkpoint_options(config, directory, plan, grid_, compute_dtype, comm_.rank() == 0), event);
}

Trainer::~Trainer() = default;

void Trainer::start() {
  {
    const ProgressSection section("load", kStorageAllowance);
    fault_point("load", comm_.rank());
    load_or_resume();
    loaded_();
  }
  if (comm_.rank() == 0) {
    // Temporary files that a killed process of this run has left; output.dir is locked, so nobody else writes there.
    for (const char* folder : {"", "adapter", "model", "checkpoints"})
      remove_dead_temporaries(directory_.path() / folder);
    metrics_file_ =
        std::make_unique<MetricsFile>(directory_.path() / "metrics.jsonl",
                                      progress_.completed > 0 ? std::optional(progress_.completed) : std::nullopt,
                                      /*evaluated=*/!progress_.evaluation_open);
    metrics_file_->write_run(run_description());
    for (const EvalMetrics& evaluation : metrics_file_->earlier_evaluations()) totals_->add(evaluation);
    if (!TensorboardLog::folder(config_).empty())
      tensorboard_ = std::make_unique<TensorboardLog>(config_, progress_.completed,
                                                      nlohmann::json::parse(run_description()).dump(2));
  }
  if (config_.logging.mlperf) {
    const ProgressSection section("warm-up");
    fault_point("warm-up", comm_.rank());
    warm_up();
  }
  comm_.barrier();
  mlperf_.start_run();
  clock_->start_run(progress_.completed, progress_.samples);
  using Style = LoggingSection::Style;
  if (comm_.rank() == 0 && (config_.logging.style == Style::kFms || config_.logging.style == Style::kFms2024))
    fms_report_ = std::make_unique<FmsReport>(
        config_.logging.style == Style::kFms2024,
        static_cast<double>(config_.batch.global_batch_size * config_.data.seq_length) / grid_.world.size, comm_.size(),
        steady_seconds());
  start_block();
  profiler_ = Profiler::make(config_, world_, directory_.path() / "profile", progress_.completed);
  clock_->start_step();
  stop_vote_->decide(asked_to_stop());
}

void Trainer::load_or_resume() {
  const bool frozen =
      std::any_of(units_->units().begin(), units_->units().end(), [](const UnitSpec& unit) { return !unit.trained; });
  const bool periodic = config_.output.save_every_samples || config_.output.save_every_minutes;
  checkpoints_->open();
  std::string warning;
  collective_check(comm_, [&] {
    if (comm_.rank() == 0)
      warning = check_checkpoint_space(config_, directory_.checkpoints(), directory_.run_id(),
                                       checkpoint_bytes(units_->units(), grid_.world.size));
  });
  if (!warning.empty()) log_warn(warning);
  if (periodic) checkpoints_->prepare(state());
  // Where everything is trained a checkpoint holds every weight: the base model is not read.
  if (frozen) collective_check(comm_, [&] { task_.load_weights(*units_); });
  const auto resumed = checkpoints_->resume(state());
  if (!resumed) {
    if (!frozen) collective_check(comm_, [&] { task_.load_weights(*units_); });
    return;
  }
  for (const TrainedShard& shard : units_->trained()) shard.update_compute();
  units_->weights_changed();
  progress_.completed = progress_.reported = resumed->completed_steps;
  progress_.evaluations = resumed->evaluations;
  const bool extended = resumed->config && resumed->config->train.max_steps < config_.train.max_steps;
  restore(resumed->numbers, extended);
  if (extended) report_extension(*resumed->config);
  collective_check(comm_, [&] {
    if (comm_.rank() != 0 || !resumed->config) return;
    for (const std::string& sentence : changed_megatron_orders(*resumed->config, config_))
      log_info("warning: " + sentence);
  });
}

void Trainer::restore(const std::map<std::string, std::vector<double>>& numbers, bool extended) {
  // Checkpoints of earlier versions lack some of these.
  const auto number = [&](const char* name) -> std::optional<double> {
    const auto found = numbers.find(name);
    if (found == numbers.end() || found->second.empty()) return std::nullopt;
    return found->second[0];
  };
  progress_.samples = clock_->batches().before(progress_.completed);
  if (const auto samples = number("samples")) progress_.samples = std::llround(*samples);
  if (const auto open = number("evaluation_left")) progress_.evaluation_open = *open > 0;
  if (const auto step = number("evaluated_step")) progress_.evaluated_step = std::llround(*step);
  if (const auto reached = number("reached_target")) progress_.reached_target = *reached > 0 && !extended;
  guard_->restore(numbers);
  const auto data = numbers.find("data");
  task_.restore_data_state(progress_.completed, data == numbers.end() ? std::vector<double>() : data->second);
  if (const auto scales = numbers.find("task"); scales != numbers.end() && !units_->restore_scales(scales->second))
    throw ModelError(fmt::format(
        "the checkpoint of step {} has {} numbers of a task, which are not this run's: it is of another model or "
        "program",
        progress_.completed, scales->second.size()));
}

void Trainer::report_extension(const Config& before) const {
  const int64_t now = config_.train.max_steps, counted = progress_.completed - guard_->steps_skipped();
  const char* schedule = word_of(config_.schedule.name);
  const auto rate = [](const Config& config, int64_t step) {
    return learning_rate(config.schedule, config.optimizer.lr, config.train.max_steps, std::max<int64_t>(0, step));
  };
  bool unchanged = true;  // constant, and wsd before its decay
  for (int64_t step = 0; unchanged && step < counted; ++step) unchanged = rate(before, step) == rate(config_, step);
  const std::string consequence =
      unchanged ? fmt::format("the {} schedule is that of a run which had this many steps from the start", schedule)
                : fmt::format(
                      "the {} schedule now ends at step {}: the learning rate was {:.3g} in step {} and is {:.3g} in "
                      "step {}, and the steps before followed the shorter one",
                      schedule, now, rate(before, counted - 1), progress_.completed, rate(config_, counted),
                      progress_.completed + 1);
  log_info(fmt::format("the run is extended from {} to {} steps and goes on after step {}; {}", before.train.max_steps,
                       now, progress_.completed, consequence));
}

void Trainer::warm_up() {
  // Twice: the first pass loads kernels and lets libraries choose theirs; in the second the allocator is as in later
  // steps.
  for (int pass = 0; pass < 2; ++pass) {
    (void)forward_backward(task_.synthetic_batch());
    units_->clear_gradients();
  }
}

std::string Trainer::run_description() const {
  nlohmann::json devices = nlohmann::json::array();
  for (int rank = 0; rank < comm_.size(); ++rank) devices.push_back(device_info_.name);
  const nlohmann::json run = {
      {"event", "run"},
      {"time", utc_timestamp()},
      {"commit", kCommit},
      {"version", kVersion},
      {"world_size", comm_.size()},
      {"launch", world_.launch().description()},
      {"hosts", world_.hosts()},
      {"devices", devices},
      {"device_type", world_.device().is_cuda() ? "gpu" : "cpu"},
      {"compute_dtype", type_name(compute_dtype_)},
      {"shard_size", plan_.shard_size},
      {"parameters", task_.num_parameters()},
      {"trained_parameters", task_.num_trained_parameters()},
      {"libraries", {{"libtorch", TORCH_VERSION}, {"gpu", gpu_library_versions() + nccl_version_text()}}},
      {"resumed_after_step", progress_.completed}};
  return run.dump();
}

}  // namespace trireme
