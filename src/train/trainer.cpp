#include "trireme/train/trainer.h"

#include "agree.h"
#include "checkpoint.h"
#include "profile.h"
#include "straggler.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/progress.h"
#include "trireme/train/signals.h"
#include "trireme/version.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace trireme {

namespace {

/// Statistics of a step that are summed over ranks in one all-reduce, and what follows from them (kStop … as kSignal …).
enum Stat { kSquare, kLossSum, kDenominator, kSignal, kSaveReady, kSaveClock, kSamples, kNumReduced };
enum Result { kLoss, kGradNorm, kSkipped, kStop, kReady, kClock, kSampleCount, kNumResults };

constexpr int64_t kLossScaleGrowthInterval = 2000;
constexpr double kInitialLossScale = 65536.0, kLargestLossScale = 16777216.0;
constexpr int kMaxConsecutiveSkips = 20;

/// Leaves an evaluation halfway, on all ranks after the same forward pass.
struct EvaluationLeft {};

/// What a checkpoint says about its run; the inputs' fingerprints only where they are needed, on rank 0.
CheckpointOptions checkpoint_options(const Config& config, const RunDirectory& directory, const MemoryPlan& plan, at::ScalarType dtype,
                                     bool fingerprints) {
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
  for (const std::string& path : config.data.train) options.data.push_back({path, fingerprint_input(path, ExitCode::kData)});
  if (config.lora) options.base = fingerprint_model(config.model.path, config.model.init == "checkpoint");
  return options;
}

/// With one rank its own gradient is the sum.
bool clips_locally(const Config& config, const Communicator& comm) {
  return config.optimizer.clip == "local" && config.optimizer.grad_clip > 0 && comm.size() > 1;
}

}  // namespace

Trainer::Trainer(const Config& config, World& world, TrainingTask& task, const MemoryPlan& plan, at::ScalarType compute_dtype,
                 const DeviceInfo& device, RunDirectory& directory, MlperfEvents& mlperf)
    : config_(config), world_(world), comm_(world.communicator()), task_(task), plan_(plan), device_(world.device()),
      compute_dtype_(compute_dtype), device_info_(device), directory_(directory), mlperf_(mlperf) {
  units_ = std::make_unique<ShardedUnits>(task.units(), comm_, device_,
                                          ShardingOptions{compute_dtype, plan.shard_size, plan.resident, config.precision.frozen == "fp8"});
  if (!units_->gather_path().empty()) log_info("frozen shards are " + units_->gather_path());
  task.set_rows_per_pass(plan.rows_per_pass);
  optimizer_ = make_optimizer(config.optimizer, units_->trained(), comm_);
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(device_);
  loss_scale_ = at::full({}, compute_dtype == at::kHalf ? config.precision.loss_scale.value_or(kInitialLossScale) : 1.0, scalar);
  growth_tracker_ = at::zeros({}, scalar.dtype(at::kInt));
  halted_ = at::zeros({}, scalar);
  skip_nonfinite_ = config.train.on_nonfinite == "skip" || compute_dtype == at::kHalf;
  if (std::getenv("TRIREME_FAULT") != nullptr) observe_gradients(nullptr);
  if (clips_locally(config, comm_)) units_->clip_before_reduction([this](const at::Tensor& square) { return local_clip(square); });
  checkpoints_ = std::make_unique<Checkpoints>(
      directory.checkpoints(), comm_, units_->units(), checkpoint_options(config, directory, plan, compute_dtype, comm_.rank() == 0),
      [this](const std::string& event) {
        if (metrics_) metrics_->write_run(event);
      });
}

Trainer::~Trainer() = default;

// --- one step --------------------------------------------------------------------------------------------------------------------

void Trainer::train_step(int64_t step) {
  begin_progress_step(step + 1);
  const StepBatch batch = [&] {
    const ProgressSection section("data");
    fault_point("data", comm_.rank(), step + 1);
    return task_.batch(step);
  }();
  if (step + 1 < config_.train.max_steps) task_.prefetch(step + 1);
  fault_point("step", comm_.rank(), step + 1);
  const at::Tensor loss_sum = forward_backward(batch);
  fault_point("reduce", comm_.rank(), step + 1);

  // One all-reduce: squared gradient norm, loss, its denominator, and whether a rank was asked to stop.
  at::NoGradGuard no_grad;
  const at::Tensor stats = reduce_statistics(loss_sum, batch);
  const at::Tensor denominator = stats[kDenominator].clamp_min(1e-30);
  const at::Tensor unscale = task_.nominal_denominator() / (denominator * loss_scale_);
  const at::Tensor grad_norm = stats[kSquare].sqrt() * unscale;
  const at::Tensor loss = stats[kLossSum] / denominator;
  // Numbers that went wrong touch no weight: what the host finds out a step later has not happened. Where that ends the run, the step
  // already under way changes nothing either.
  const at::Tensor bad = grad_norm.isfinite().logical_and(loss.isfinite()).logical_not().to(at::kFloat);
  if (!skip_nonfinite_) halted_.copy_(at::maximum(halted_, bad));
  const at::Tensor skip = skip_nonfinite_ ? bad : halted_;
  at::Tensor multiplier = unscale;
  if (config_.optimizer.grad_clip > 0 && !clips_locally(config_, comm_))
    multiplier = unscale * (config_.optimizer.grad_clip / (grad_norm + 1e-6)).clamp_max(1.0);

  // The optimizer writes nothing when `skip` is set.
  const ProgressSection section("optimizer");
  const double lr = learning_rate(config_.schedule, config_.optimizer.lr, config_.train.max_steps, step);
  optimizer_->step(lr, multiplier.to(at::kFloat), skip);
  units_->invalidate_trained();
  units_->clear_gradients();
  if (compute_dtype_ == at::kHalf) {
    at::_amp_update_scale_(loss_scale_, growth_tracker_, skip, 2.0, 0.5, kLossScaleGrowthInterval);
    loss_scale_.clamp_max_(kLargestLossScale);
  }

  at::Tensor results = at::empty({kNumResults}, stats.options());
  results[kLoss].copy_(loss);
  results[kGradNorm].copy_(grad_norm);
  results[kSkipped].copy_(skip);
  results.narrow(0, kStop, 4).copy_(stats.narrow(0, kSignal, 4));
  PendingMetrics pending{step + 1, lr, results, nullptr, 0};
  if (device_.is_cuda()) {
    pending.values = at::empty({kNumResults}, results.options().device(at::kCPU).pinned_memory(true));
    pending.values.copy_(results, /*non_blocking=*/true);
    pending.done = record_event();
  }
  pending.finished = steady_seconds();
  pending_.push_back(std::move(pending));
  completed_ = step + 1;
}

void Trainer::profiled_step() {
  // Every rank records, so that none waits for another's profiler; rank 0 writes.
  flush_metrics();
  StepProfile profile(device_.is_cuda());
  start_clock();
  train_step(completed_);
  flush_metrics();
  if (comm_.rank() != 0) return;
  const auto trace = directory_.path() / "profile" / fmt::format("step-{}.json", completed_);
  for (const std::string& line : split(profile.finish(trace), '\n'))
    if (!line.empty()) log_info(line);
  log_info(fmt::format("timeline of step {}: {}", completed_, trace.string()));
}

at::Tensor Trainer::forward_backward(const StepBatch& batch) {
  if (batch.counts.defined() && comm_.size() > 1) comm_.all_reduce(batch.counts)->wait();
  // Gradients are reduced over ranks during the last micro-batch's backward.
  const at::Tensor scale = loss_scale_ / task_.nominal_denominator();
  at::Tensor loss_sum = at::zeros({}, scale.options().dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    units_->begin_micro_batch(/*last=*/i + 1 == batch.micro_batches.size());
    at::Tensor loss;
    {
      const ProgressSection section("forward");
      loss = task_.loss(*units_, *batch.micro_batches[i], plan_.recompute, /*train=*/true);
    }
    const ProgressSection section("backward");
    (loss * scale).backward();
    loss_sum.add_(loss.detach());
  }
  const ProgressSection section("backward");
  units_->finish_backward();
  return loss_sum;
}

std::shared_ptr<c10::Event> Trainer::record_event() const {
  auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void Trainer::start_clock() {
  if (device_.is_cuda()) step_begin_ = record_event();
  step_begin_time_ = steady_seconds();
}

at::Tensor Trainer::local_clip(const at::Tensor& square) const {
  // The rank's part of the loss is its mean divided by the ranks: the norm meant is that of its own mean.
  const at::Tensor norm = square.sqrt() * (task_.nominal_denominator() * comm_.size()) / loss_scale_;
  const at::Tensor factor = (config_.optimizer.grad_clip / (norm + 1e-6)).clamp_max(1.0);
  return at::where(factor.isfinite(), factor, 1.0).to(at::kFloat);
}

at::Tensor Trainer::reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch) {
  at::Tensor host = at::zeros({kNumReduced}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device_.is_cuda()));
  host[kDenominator] = batch.denominator;
  host[kSamples] = batch.samples;
  host[kSignal] = stop_signal() != 0 ? 1.0 : 0.0;
  host[kSaveReady] = checkpoints_->ready();
  host[kSaveClock] = comm_.rank() == 0 && config_.output.save_every_minutes &&
                     steady_seconds() - last_save_time_ >= 60 * *config_.output.save_every_minutes;
  at::Tensor stats = host.to(device_, /*non_blocking=*/true);
  stats[kSquare].copy_(local_gradient_square(units_->trained()));
  stats[kLossSum].copy_(loss_sum);
  if (comm_.size() > 1) comm_.all_reduce(stats)->wait();
  return stats;
}

void Trainer::warm_up() {
  // Twice: the first pass loads kernels and lets libraries choose theirs, the second finds the allocator as later steps do.
  for (int pass = 0; pass < 2; ++pass) {
    (void)forward_backward(task_.synthetic_batch());
    units_->clear_gradients();
  }
}

// --- the loop --------------------------------------------------------------------------------------------------------------------

ExitCode Trainer::run() {
  {
    const ProgressSection section("load", kStorageAllowance);
    fault_point("load", comm_.rank());
    load_or_resume();
  }
  if (comm_.rank() == 0) {
    metrics_ = std::make_unique<MetricsFile>(directory_.path() / "metrics.jsonl",
                                             completed_ > 0 ? std::optional(completed_) : std::nullopt);
    metrics_->write_run(run_description());
  }
  if (config_.logging.mlperf) {
    const ProgressSection section("warm-up");
    fault_point("warm-up", comm_.rank());
    warm_up();
  }
  comm_.barrier();
  mlperf_.start_run();
  run_start_samples_ = samples_;
  run_begin_time_ = steady_seconds();
  start_block();
  start_clock();

  bool reached_target = false;
  first_step_ = completed_;
  last_save_time_ = steady_seconds();
  agree_to_stop();
  if (std::exchange(evaluation_left_, false)) reached_target = evaluate();
  // A stop waits for a step whose numbers are sound: only such a one is saved.
  while (completed_ < config_.train.max_steps && (!stop_agreed_ || consecutive_skips_ > 0) && !reached_target) {
    if (config_.logging.profile_step == completed_ + 1) profiled_step();
    else train_step(completed_);
    while (pending_.size() > 1) collect_metrics();
    if (straggler_report_due(completed_ - first_step_)) report_stragglers();
    if (evaluation_due()) {
      flush_metrics();
      reached_target = evaluate();
    }
    if (save_due()) {
      save_checkpoint();
      agree_to_stop();
    }
  }
  flush_metrics();
  if (stop_agreed_ && completed_ < config_.train.max_steps && !reached_target) {
    const ProgressSection section("save", kStorageAllowance);
    if (last_saved_step_ != completed_ || !checkpoints_->complete()) save_checkpoint();
    if (!checkpoints_->complete())
      throw AgreedError(ExitCode::kCannotWrite, fmt::format("stopped by a signal after step {}, but its state could not be saved in {}: run the "
                                                            "same command again, it goes on from the newest whole checkpoint",
                                                            completed_, directory_.checkpoints().string()));
    log_info(fmt::format("stopped by a signal after step {}; state saved, the same command goes on from there", completed_));
    mlperf_end_run("aborted");
    return ExitCode::kStopped;
  }
  if (!reached_target && task_.eval_samples() > 0 && last_evaluated_step_ != completed_) reached_target = evaluate();
  const bool has_target = config_.eval.target_loss || config_.eval.target_accuracy;
  mlperf_end_run(!has_target || reached_target ? "success" : "aborted");
  finish();
  return ExitCode::kDone;
}

void Trainer::collect_metrics() {
  const PendingMetrics pending = std::move(pending_.front());
  pending_.pop_front();
  double step_time;
  if (pending.done) {
    // On a GPU the host runs ahead: the time between the ends of two steps is the device's to tell.
    pending.done->synchronize();
    step_time = step_begin_->elapsedTime(*pending.done) / 1000;
    step_begin_ = pending.done;
  } else {
    step_time = pending.finished - step_begin_time_;
    step_begin_time_ = pending.finished;
  }
  const double* values = pending.values.const_data_ptr<double>();
  training_seconds_ += step_time;
  block_seconds_ += step_time;
  ++block_steps_;
  ++timed_steps_;
  reported_ = pending.step;
  stop_agreed_ = stop_agreed_ || values[kStop] > 0;
  save_by_clock_ = save_by_clock_ || values[kClock] > 0;
  checkpoints_->advance_if_ready(pending.step, completed_, values[kReady]);
  last_loss_ = values[kLoss];

  TrainMetrics metrics;
  metrics.step = pending.step;
  metrics.max_steps = config_.train.max_steps;
  const auto rows = static_cast<double>(config_.batch.global_batch_size);
  samples_ += std::llround(values[kSampleCount]);
  metrics.samples = samples_;
  metrics.tokens = pending.step * config_.batch.global_batch_size * config_.data.seq_length;
  metrics.loss = values[kLoss];
  metrics.grad_norm = values[kGradNorm];
  metrics.lr = pending.lr;
  metrics.step_time_s = step_time;
  metrics.samples_per_s = values[kSampleCount] / step_time;
  metrics.tokens_per_s = rows / step_time * static_cast<double>(config_.data.seq_length);
  metrics.memory_gib = static_cast<double>(peak_memory(device_) + units_->memory_outside_allocator()) / (1 << 30);
  if (device_info_.peak_flops)
    metrics.mfu = task_.flops_per_sample() * (rows / step_time) / (*device_info_.peak_flops * comm_.size());
  if (comm_.rank() == 0) report(metrics);

  if (values[kSkipped] > 0) {
    handle_nonfinite(pending.step, values[kLoss], values[kGradNorm]);
    return;
  }
  consecutive_skips_ = 0;
  if (const auto z = loss_window_.add(metrics.loss)) {
    log_info(fmt::format("warning: step {}: the loss {:.4f} is a spike, {:.1f} standard deviations above the mean of the steps before (samples "
                         "{} to {} of the order)", metrics.step, metrics.loss, *z, metrics.samples - config_.batch.global_batch_size,
                         metrics.samples - 1));
    if (metrics_)
      metrics_->write_run(nlohmann::json{{"event", "spike"}, {"step", metrics.step}, {"loss", metrics.loss}, {"z", *z}}.dump());
  }
}

// --- numbers that went wrong -------------------------------------------------------------------------------------------------------

void Trainer::handle_nonfinite(int64_t step, double loss, double grad_norm) {
  ++consecutive_skips_;
  const int64_t first_sample = (step - 1) * config_.batch.global_batch_size;
  if (compute_dtype_ == at::kHalf && consecutive_skips_ <= kMaxConsecutiveSkips) {
    log_info(fmt::format("step {}: gradients overflowed in fp16, the step was skipped and the loss scale halved", step));
    return;
  }
  const std::string what = fmt::format("step {}: the loss is {} and the gradient norm {}; {}; no parameter was changed", step, loss, grad_norm,
                                       find_nonfinite(step));
  if (skip_nonfinite_ && consecutive_skips_ <= kMaxConsecutiveSkips) {
    log_info(fmt::format("warning: {}, the step is skipped ({} of {} in a row)", what, consecutive_skips_, kMaxConsecutiveSkips));
    return;
  }
  const std::string often = skip_nonfinite_ ? fmt::format(" ({} steps in a row)", consecutive_skips_) : "";
  checkpoints_->complete();  // of an earlier step, which was sound
  throw AgreedError(ExitCode::kInternal,
                    fmt::format("{}{}. Lower optimizer.lr, check the data around sample {}, use precision.compute: fp32, or set "
                                "train.on_nonfinite: skip; the last checkpoint is sound", what, often, first_sample));
}

std::string Trainer::find_nonfinite(int64_t step) {
  // The step is computed once more, with the weights it had: nothing has changed them where the run stops at it.
  std::string found;
  observe_gradients([&](const std::string& parameter, const at::Tensor& gradient) {
    if (found.empty() && !gradient.isfinite().all().item<bool>()) found = "the gradient of " + parameter;
  }, step);
  const StepBatch batch = task_.batch(step - 1);
  const double local_loss = forward_backward(batch).item<double>();
  units_->clear_gradients();
  observe_gradients(nullptr);
  if (!std::isfinite(local_loss)) found = "the loss" + (found.empty() ? "" : " and " + found);
  std::string text;
  const auto all = comm_.all_gather_host(found);
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const std::string& theirs = all[static_cast<size_t>(rank)];
    if (theirs.empty()) continue;
    if (text.size() > 400) return "not finite: " + text + ", and more";
    text += fmt::format("{}{} on rank {} ({})", text.empty() ? "" : ", ", theirs, rank, world_.hosts()[static_cast<size_t>(rank)]);
  }
  return text.empty() ? "computed again, every gradient of every rank is finite: suspect a sum over ranks that overflows, or faulty memory"
                      : "not finite: " + text;
}

void Trainer::observe_gradients(const std::function<void(const std::string&, const at::Tensor&)>& check, int64_t step) {
  const bool faults = std::getenv("TRIREME_FAULT") != nullptr;
  if (!check && !faults) {
    units_->observe_gradients({});
    return;
  }
  units_->observe_gradients([this, check, step](const ParameterSpec& parameter, at::Tensor& gradient) {
    const std::string& name = parameter.parts.front().name;
    if (fault_point("gradient:" + name, comm_.rank(), step > 0 ? step : completed_ + 1))
      gradient.view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
    if (check) check(name, gradient);
  });
}

void Trainer::report_stragglers() {
  const int64_t steps = completed_ - std::max(first_step_, sections_taken_);
  sections_taken_ = completed_;
  const auto all = comm_.all_gather_host(encode_section_times(take_section_times()));
  if (comm_.size() == 1 || timed_steps_ == 0) return;
  for (const std::string& line : find_stragglers(all, world_.hosts(), steps, training_seconds_ / static_cast<double>(timed_steps_)))
    log_info("warning: " + line);
}

void Trainer::agree_to_stop() {
  stop_agreed_ = comm_.all_reduce_host({stop_signal() != 0 || stop_agreed_ ? 1.0 : 0.0}, ReduceOp::kMax)[0] > 0;
}

std::string Trainer::run_description() const {
  nlohmann::json devices = nlohmann::json::array();
  for (int rank = 0; rank < comm_.size(); ++rank) devices.push_back(device_info_.name);
  const nlohmann::json run = {{"event", "run"}, {"time", utc_timestamp()}, {"commit", kCommit}, {"version", kVersion},
                              {"world_size", comm_.size()}, {"launch", world_.launch().description()}, {"hosts", world_.hosts()},
                              {"devices", devices}, {"compute_dtype", c10::toString(compute_dtype_)},
                              {"shard_size", plan_.shard_size}, {"parameters", task_.num_parameters()},
                              {"trained_parameters", task_.num_trained_parameters()},
                              {"libraries", {{"libtorch", TORCH_VERSION}, {"gpu", gpu_library_versions()}}},
                              {"resumed_after_step", completed_}};
  return run.dump();
}

void Trainer::flush_metrics() {
  while (!pending_.empty()) collect_metrics();
}

void Trainer::report(const TrainMetrics& metrics) {
  metrics_->write(metrics);
  const bool due = metrics.step % config_.logging.every_steps == 0 || metrics.step == 1 || metrics.step == metrics.max_steps;
  if (due) {
    const double per_step = training_seconds_ / static_cast<double>(timed_steps_);
    const double eta = per_step * static_cast<double>(metrics.max_steps - metrics.step);
    console_.line(console_line(metrics, eta));
  }
  console_.status(metrics.step, metrics.max_steps);
  mlperf_.train_loss(metrics);
}

// --- evaluation ------------------------------------------------------------------------------------------------------------------

bool Trainer::evaluation_due() const {
  if (task_.eval_samples() == 0 || !config_.eval.every_samples) return false;
  if (const auto nominal = task_.nominal_samples_per_step()) {
    const auto every = static_cast<double>(*config_.eval.every_samples), steps = static_cast<double>(completed_);
    return std::floor(steps * *nominal / every) > std::floor((steps - 1) * *nominal / every);
  }
  const int64_t size = config_.batch.global_batch_size;
  const int64_t every = (*config_.eval.every_samples + size - 1) / size;
  return completed_ % every == 0;
}

bool Trainer::evaluate() {
  const bool at_end = completed_ >= config_.train.max_steps;
  int64_t skip = 0;
  if (config_.eval.skip_first)
    skip = *config_.eval.skip_first == "mlperf" ? static_cast<int64_t>(0.125 * static_cast<double>(config_.batch.global_batch_size) + 2)
                                                : std::stoll(*config_.eval.skip_first);
  if (evaluations_++ < skip && !at_end) return false;
  const int64_t evaluated_before = std::exchange(last_evaluated_step_, completed_);
  end_block();
  mlperf_.start_evaluation(samples_);
  const double begin = steady_seconds();
  const ProgressSection section("evaluation");
  EvalSums local;
  try {
    local = task_.evaluate(*units_, [&](int64_t done, int64_t total) {
      fault_point("evaluation", comm_.rank(), completed_);
      if (comm_.rank() == 0) console_.eval_status(done, total);
      agree_to_stop();
      if (stop_agreed_ && done < total) throw EvaluationLeft();
    });
  } catch (const EvaluationLeft&) {
    // It is done again, whole, when the run goes on.
    units_->release();
    --evaluations_;
    last_evaluated_step_ = evaluated_before;
    evaluation_left_ = true;
    log_info(fmt::format("the evaluation after step {} is left because of a signal", completed_));
    return false;
  }
  const EvalResult result = task_.eval_result(comm_.all_reduce_host(local));
  const EvalMetrics metrics{completed_, samples_, result.loss, steady_seconds() - begin, result.mlm_accuracy};
  const bool reached = (config_.eval.target_loss && metrics.loss <= *config_.eval.target_loss) ||
                       (config_.eval.target_accuracy && metrics.mlm_accuracy.value_or(0) >= *config_.eval.target_accuracy);
  if (comm_.rank() == 0) {
    metrics_->write(metrics);
    console_.line(console_line(metrics, config_.eval.target_loss, config_.eval.target_accuracy));
  }
  mlperf_.end_evaluation(metrics);
  if (!reached && !at_end) start_block();
  start_clock();
  return reached;
}

void Trainer::start_block() {
  block_open_ = true;
  block_start_samples_ = samples_;
  block_seconds_ = 0;
  block_steps_ = 0;
  mlperf_.start_block(samples_);
}

void Trainer::end_block() {
  if (!block_open_) return;
  block_open_ = false;
  const double rate = block_seconds_ > 0 ? static_cast<double>(samples_ - block_start_samples_) / block_seconds_ : 0;
  mlperf_.end_block({completed_, samples_, block_steps_, block_seconds_, last_loss_, rate});
}

void Trainer::mlperf_end_run(const char* status) {
  end_block();
  const double seconds = std::max(1e-9, steady_seconds() - run_begin_time_);
  mlperf_.end_run(status, completed_, samples_, static_cast<double>(samples_ - run_start_samples_) / seconds);
}

// --- saving ----------------------------------------------------------------------------------------------------------------------

std::vector<std::pair<std::string, at::Tensor>> Trainer::state() {
  auto tensors = optimizer_->state();
  for (TrainedShard& shard : units_->trained()) tensors.emplace_back("master." + shard.name, shard.master);
  tensors.emplace_back("loss_scale", loss_scale_);
  tensors.emplace_back("growth_tracker", growth_tracker_);
  return tensors;
}

void Trainer::load_or_resume() {
  const bool frozen = std::any_of(units_->units().begin(), units_->units().end(), [](const UnitSpec& unit) { return !unit.trained; });
  checkpoints_->check_space(state(), config_.output.save_every_samples || config_.output.save_every_minutes);
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
  if (const auto samples = resumed->numbers.find("samples"); samples != resumed->numbers.end() && !samples->second.empty())
    samples_ = std::llround(samples->second[0]);
  if (const auto skips = resumed->numbers.find("consecutive_skips"); skips != resumed->numbers.end() && !skips->second.empty())
    consecutive_skips_ = static_cast<int>(skips->second[0]);
  if (const auto left = resumed->numbers.find("evaluation_left"); left != resumed->numbers.end() && !left->second.empty())
    evaluation_left_ = left->second[0] > 0;
  if (const auto window = resumed->numbers.find("loss_window"); window != resumed->numbers.end()) loss_window_.restore(window->second);
}

bool Trainer::save_due() const {
  if (completed_ >= config_.train.max_steps) return false;
  if (save_by_clock_) return true;
  if (!config_.output.save_every_samples) return false;
  const int64_t size = config_.batch.global_batch_size;
  const int64_t every = (*config_.output.save_every_samples + size - 1) / size;
  // A save that a bad step put off is made up for.
  return completed_ % every == 0 || completed_ / every > std::max(last_saved_step_, first_step_) / every;
}

void Trainer::save_checkpoint() {
  flush_metrics();
  if (consecutive_skips_ > 0) return;  // after a step whose numbers went wrong nothing is saved: the next sound one is
  const ProgressSection section("save", kStorageAllowance);
  fault_point("save", comm_.rank(), completed_);
  checkpoints_->start(state(), {completed_, evaluations_, {{"consecutive_skips", {static_cast<double>(consecutive_skips_)}},
                                                           {"loss_window", loss_window_.state()},
                                                           {"samples", {static_cast<double>(samples_)}},
                                                           {"evaluation_left", {evaluation_left_ ? 1.0 : 0.0}}}});
  last_saved_step_ = completed_;
  last_save_time_ = steady_seconds();
  save_by_clock_ = false;
  start_clock();
}

void Trainer::finish() {
  const ProgressSection section("save", kStorageAllowance);
  task_.save_artefact(*units_, directory_.path());
  checkpoints_->complete();
  comm_.barrier();
  log_info(fmt::format("wrote {}", (directory_.path() / (config_.lora ? "adapter" : "model")).string()));
  if (timed_steps_ == 0) return;
  const int64_t peak = peak_memory(device_) + units_->memory_outside_allocator(), planned = plan_.total() - plan_.overhead;
  std::string summary = fmt::format("{} steps in {}, peak memory {}", timed_steps_, format_duration(training_seconds_),
                                    format_bytes(static_cast<double>(peak)));
  // A CPU process' peak is its whole resident set, libraries included: nothing to hold a plan against.
  if (device_.is_cuda())
    summary += fmt::format(" (plan {}, {:+.1f} %)", format_bytes(static_cast<double>(planned)),
                           100.0 * (static_cast<double>(peak) / static_cast<double>(planned) - 1.0));
  log_info(summary);
}

}  // namespace trireme
