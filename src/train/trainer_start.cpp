// What happens before the first step: shards, optimizer, weights or a checkpoint, warm-up.
#include "trireme/train/trainer.h"

#include "agree.h"
#include "checkpoint.h"
#include "checkpoint_space.h"
#include "stop_vote.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/time.h"
#include "trireme/train/precision.h"
#include "trireme/version.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace trireme {

namespace {

constexpr double kInitialLossScale = 65536.0;

/// What a checkpoint says about its run; the inputs' fingerprints only where they are needed, on rank 0.
CheckpointOptions checkpoint_options(const Config& config, const RunDirectory& directory, const MemoryPlan& plan,
                                     at::ScalarType dtype, bool fingerprints) {
  CheckpointOptions options;
  options.shard_size = plan.shard_size;
  options.keep_last = config.output.keep_last;
  options.run_id = directory.run_id();
  options.config = print_config(config);
  options.config_hash = configuration_hash(config);
  options.compute_dtype = c10::toString(dtype);
  options.seed = config.train.seed;
  options.samples_per_step = config.batch.global_batch_size;
  options.tokens_per_sample = config.data.seq_length;
  options.allow_fresh = directory.choices().allow_fresh;
  options.allow_changed_data = directory.choices().allow_changed_data;
  if (!fingerprints) return options;
  for (const std::string& path : config.data.train)
    options.data.push_back({path, fingerprint_input(path, ExitCode::kData)});
  if (config.lora) options.base = fingerprint_model(config.model.path, config.model.init == "checkpoint");
  return options;
}

}  // namespace

Trainer::Trainer(const Config& config, World& world, TrainingTask& task, const MemoryPlan& plan,
                 at::ScalarType compute_dtype, const DeviceInfo& device, RunDirectory& directory, MlperfEvents& mlperf,
                 std::function<void()> loaded)
    : config_(config),
      world_(world),
      comm_(world.communicator()),
      task_(task),
      plan_(plan),
      device_(world.device()),
      compute_dtype_(compute_dtype),
      device_info_(device),
      directory_(directory),
      mlperf_(mlperf),
      loaded_(std::move(loaded)) {
  stop_vote_ = std::make_unique<StopVote>(comm_, device_);
  units_ = std::make_unique<ShardedUnits>(
      task.units(), comm_, device_,
      ShardingOptions{compute_dtype, plan.shard_size, plan.resident, frozen_recipe(config), trained_recipe(config),
                      config.parallel.reduce_dtype == "compute" ? compute_dtype : at::kFloat});
  if (!units_->gather_path().empty()) log_info("frozen shards are " + units_->gather_path());
  optimizer_ = make_optimizer(config.optimizer, units_->trained(), comm_);
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(device_);
  loss_scale_ =
      at::full({}, compute_dtype == at::kHalf ? config.precision.loss_scale.value_or(kInitialLossScale) : 1.0, scalar);
  growth_tracker_ = at::zeros({}, scalar.dtype(at::kInt));
  halted_ = at::zeros({}, scalar);
  skip_nonfinite_ = config.train.on_nonfinite == "skip" || compute_dtype == at::kHalf;
  if (std::getenv("TRIREME_FAULT") != nullptr) observe_gradients(nullptr);
  if (clips_locally()) units_->clip_before_reduction([this](const at::Tensor& square) { return local_clip(square); });
  checkpoints_ = std::make_unique<Checkpoints>(
      directory.checkpoints(), comm_, units_->units(),
      checkpoint_options(config, directory, plan, compute_dtype, comm_.rank() == 0), [this](const std::string& event) {
        if (metrics_) metrics_->write_run(event);
      });
}

Trainer::~Trainer() = default;

std::vector<std::pair<std::string, at::Tensor>> Trainer::state() {
  auto tensors = optimizer_->state();
  for (TrainedShard& shard : units_->trained()) tensors.emplace_back("master." + shard.name, shard.master);
  tensors.emplace_back("loss_scale", loss_scale_);
  tensors.emplace_back("growth_tracker", growth_tracker_);
  return tensors;
}

void Trainer::load_or_resume() {
  const bool frozen =
      std::any_of(units_->units().begin(), units_->units().end(), [](const UnitSpec& unit) { return !unit.trained; });
  const bool periodic = config_.output.save_every_samples || config_.output.save_every_minutes;
  checkpoints_->open();
  std::string warning;
  agree(comm_, [&] {
    if (comm_.rank() == 0)
      warning = check_checkpoint_space(config_, directory_.checkpoints(), directory_.run_id(),
                                       checkpoint_bytes(units_->units(), comm_.size()));
  });
  if (!warning.empty()) log_warn(warning);
  if (periodic) checkpoints_->prepare(state());
  // Where everything is trained a checkpoint holds every weight: the base model is not read.
  if (frozen) agree(comm_, [&] { task_.load_weights(*units_); });
  const auto resumed = checkpoints_->resume(state());
  if (!resumed) {
    if (!frozen) agree(comm_, [&] { task_.load_weights(*units_); });
    return;
  }
  for (TrainedShard& shard : units_->trained())
    if (!shard.compute.is_same(shard.master)) shard.compute.copy_(shard.master);
  completed_ = reported_ = last_saved_step_ = resumed->completed_steps;
  evaluations_ = resumed->evaluations;
  samples_ = completed_ * config_.batch.global_batch_size;
  // Checkpoints of earlier versions lack some of these.
  const auto number = [&](const char* name) -> std::optional<double> {
    const auto found = resumed->numbers.find(name);
    if (found == resumed->numbers.end() || found->second.empty()) return std::nullopt;
    return found->second[0];
  };
  if (const auto samples = number("samples")) samples_ = std::llround(*samples);
  if (const auto skips = number("consecutive_skips")) consecutive_skips_ = static_cast<int>(*skips);
  if (const auto steps = number("left_out")) steps_skipped_ = std::llround(*steps);
  if (const auto left = number("evaluation_left")) evaluation_left_ = *left > 0;
  if (const auto step = number("evaluated_step")) last_evaluated_step_ = std::llround(*step);
  const bool extended = resumed->max_steps > 0 && resumed->max_steps < config_.train.max_steps;
  if (const auto reached = number("reached_target")) reached_target_ = *reached > 0 && !extended;
  if (extended) report_extension(resumed->max_steps);
  if (const auto task = resumed->numbers.find("task");
      task != resumed->numbers.end() && !units_->restore_scales(task->second))
    throw ModelError(fmt::format(
        "the checkpoint of step {} has {} numbers of a task, which are not this run's: it is of another model or "
        "program",
        completed_, task->second.size()));
  if (const auto window = resumed->numbers.find("loss_window"); window != resumed->numbers.end())
    loss_window_.restore(window->second);
}

void Trainer::report_extension(int64_t max_steps_before) const {
  const int64_t now = config_.train.max_steps, counted = completed_ - steps_skipped_;
  const std::string& schedule = config_.schedule.name;
  const auto rate = [&](int64_t max_steps, int64_t step) {
    return learning_rate(config_.schedule, config_.optimizer.lr, max_steps, std::max<int64_t>(0, step));
  };
  const std::string consequence =
      schedule == "constant"
          ? std::string("the constant schedule is that of a run which had this many steps from the start")
          : fmt::format(
                "the {} schedule now ends at step {}: the learning rate was {:.3g} in step {} and is {:.3g} in "
                "step {}, and the steps before followed the shorter one",
                schedule, now, rate(max_steps_before, counted - 1), completed_, rate(now, counted), completed_ + 1);
  log_info(fmt::format("the run is extended from {} to {} steps and goes on after step {}; {}", max_steps_before, now,
                       completed_, consequence));
}

void Trainer::warm_up() {
  // Twice: the first pass loads kernels and lets libraries choose theirs, the second finds the allocator as later steps
  // do.
  for (int pass = 0; pass < 2; ++pass) {
    (void)forward_backward(task_.synthetic_batch());
    units_->clear_gradients();
  }
}

std::string Trainer::run_description() const {
  nlohmann::json devices = nlohmann::json::array();
  for (int rank = 0; rank < comm_.size(); ++rank) devices.push_back(device_info_.name);
  const nlohmann::json run = {{"event", "run"},
                              {"time", utc_timestamp()},
                              {"commit", kCommit},
                              {"version", kVersion},
                              {"world_size", comm_.size()},
                              {"launch", world_.launch().description()},
                              {"hosts", world_.hosts()},
                              {"devices", devices},
                              {"compute_dtype", c10::toString(compute_dtype_)},
                              {"shard_size", plan_.shard_size},
                              {"parameters", task_.num_parameters()},
                              {"trained_parameters", task_.num_trained_parameters()},
                              {"libraries", {{"libtorch", TORCH_VERSION}, {"gpu", gpu_library_versions()}}},
                              {"resumed_after_step", completed_}};
  return run.dump();
}

}  // namespace trireme
