#include "train_step.h"

#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/rng.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/plan/precision.h"
#include "trireme/watchdog/progress.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace trireme {

namespace {

/// Statistics of a step that one all-reduce sums over the ranks: fp64, by position. StepBatch::metrics come behind
/// them.
enum StepStat { kSquare, kLossSum, kStopVotes, kSaveReady, kSaveClock, kSamples, kDenominator, kNumStats };

/// The results that the host reads. `saturated`: ShardedUnits::end_step().
at::Tensor step_results(const at::Tensor& stats, const at::Tensor& loss, const at::Tensor& grad_norm,
                        const StepVerdict& verdict, const at::Tensor& saturated, const at::Tensor& loss_scale) {
  static_assert(kSaveReady - kStopVotes == kReady - kStop && kSaveClock - kStopVotes == kClock - kStop &&
                kSamples - kStopVotes == kSampleCount - kStop && kDenominator - kStopVotes == kLossCount - kStop);
  const int64_t metrics = stats.size(0) - kNumStats;
  at::Tensor results = at::zeros({kNumResults + metrics}, stats.options());
  results[kLoss].copy_(loss);
  results[kGradNorm].copy_(grad_norm);
  results[kNonfinite].copy_(verdict.nonfinite);
  if (verdict.spiked.defined()) results[kSpiked].copy_(verdict.spiked);
  // Stop, ready, clock, samples and the loss's denominator: the five sums that the host reads as they are.
  results.narrow(0, kStop, 5).copy_(stats.narrow(0, kStopVotes, 5));
  if (saturated.defined()) results[kSaturated].copy_(saturated);
  results[kLossScale].copy_(loss_scale);
  if (metrics > 0) results.narrow(0, kNumResults, metrics).copy_(stats.narrow(0, kNumStats, metrics));
  return results;
}

void inject_gradient_fault(const std::string& name, const at::Tensor& gradient, int rank, int64_t step) {
  if (fault_point("gradient:" + name, rank, step)) gradient.view(-1)[0] = std::numeric_limits<float>::quiet_NaN();
}

/// In parts: a whole shard's comparison would take memory of the shard's size.
bool all_finite(const at::Tensor& tensor) {
  constexpr int64_t kPart = int64_t{1} << 24;
  if (!tensor.is_floating_point()) return true;
  at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.reshape({-1});
  at::Tensor finite = at::ones({}, tensor.options().dtype(at::kBool));
  for (int64_t begin = 0; begin < flat.numel(); begin += kPart)
    finite.logical_and_(flat.narrow(0, begin, std::min(kPart, flat.numel() - begin)).isfinite().all());
  return finite.item<bool>();
}

/// "the gradient of a on rank 0 (host), the loss on rank 3 (host)"; empty: nothing on any rank.
std::string list_ranks(const std::vector<std::string>& found, const std::vector<std::string>& hosts) {
  constexpr size_t kLongest = 400;
  std::string text;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank].empty()) continue;
    if (text.size() > kLongest) return text + ", and more";
    text += fmt::format("{}{} on rank {} ({})", text.empty() ? "" : ", ", found[rank], rank, hosts[rank]);
  }
  return text;
}

/// A host pins about a gibibyte a second for each rank.
void announce_pinning(int64_t bytes, const char* what, at::Device device) {
  constexpr int64_t kLong = int64_t{8} << 30;
  if (device.is_cuda() && bytes >= kLong)
    log_info(fmt::format("allocating {} of pinned host memory for {}", format_bytes(bytes), what));
}

}  // namespace

TrainStep::TrainStep(const RunParts& run, const RunClock& clock, RunProgress& progress,
                     std::function<StepVotes()> votes, std::function<void()> before_update,
                     std::function<void(const std::string&)> event)
    : run_(run),
      config_(run.config),
      task_(run.task),
      comm_(run.comm()),
      clock_(clock),
      progress_(progress),
      votes_(std::move(votes)),
      before_update_(std::move(before_update)),
      recomputation_{run.plan.recompute, run.plan.tile_tokens, nullptr, loss_head_logits(run.plan.device_memory)} {
  const at::Device device = run.world.device();
  if (run.plan.offloaded > 0) {
    announce_pinning(run.plan.host, "activations", device);
    offload_ = std::make_unique<OffloadStore>(OffloadStore::Options{.device = device, .blocks = run.plan.offloaded});
    collective_check(comm_, [&] { offload_->reserve(run.plan.host); });
    recomputation_.offload = offload_.get();
  }
  if (run.plan.host_units > 0) {
    announce_pinning(run.plan.host_state, "master weights and moments", device);
    host_state_ = std::make_unique<HostState>(HostState::Options{.device = device, .bytes = run.plan.host_state});
  }
  const bool narrow = config_.optimizer.gradients == OptimizerSection::Gradients::kBf16;
  const bool bf16_masters = config_.optimizer.masters == OptimizerSection::Masters::kBf16;
  const bool reduces_narrow = narrow || config_.parallel.reduce_dtype == ParallelSection::ReduceDtype::kCompute;
  const ShardingOptions sharding{run.compute_dtype,
                                 run.plan.resident,
                                 frozen_recipe(config_),
                                 trained_recipe(config_, task_.facts().automatic_fp8),
                                 frozen_nf4(config_),
                                 reduces_narrow ? run.compute_dtype : at::kFloat,
                                 narrow ? run.compute_dtype : at::kFloat,
                                 bf16_masters ? at::kBFloat16 : at::kFloat,
                                 run.plan.policy,
                                 config_.precision.fp8_skip_first,
                                 config_.precision.fp8_skip_last,
                                 config_.model.read == ModelSection::Read::kPerHost,
                                 run.plan.host_units,
                                 host_state_.get(),
                                 run.plan.keeps_transposed,
                                 run.plan.rows_per_pass * config_.data.seq_length / run.grid.context.size};
  const auto make_state = [&] {
    units_ = std::make_unique<ShardedUnits>(task_.units(), comm_, run.grid, device, sharding);
    const auto key = static_cast<uint32_t>(derive_seed(config_.train.seed, "master weights") >> 32);
    for (TrainedShard& shard : units_->trained()) shard.rounding_key = key;
    optimizer_ = make_optimizer(config_.optimizer, units_->trained(), comm_);
  };
  if (host_state_) {
    const double begin = steady_seconds();
    collective_check(comm_, make_state);
    if (device.is_cuda())
      log_info(fmt::format("{} of pinned host memory for master weights and moments, allocated in {}",
                           format_bytes(run.plan.host_state), format_duration(steady_seconds() - begin)));
  } else {
    make_state();
  }
  if (!units_->gather_path().empty()) log_info("frozen shards are " + units_->gather_path());
  guard_ = std::make_unique<StepGuard>(config_, run.compute_dtype, device, std::move(event));
  observe_faults();
  if (clips_locally())
    units_->clip_before_reduction([this](const std::vector<at::Tensor>& gradients) { return local_clip(gradients); });
}

void TrainStep::train_step(int64_t step) {
  begin_progress_step(step + 1);
  const StepBatch batch = next_batch(step);
  fault_point("step", comm_.rank(), step + 1);
  units_->begin_step();
  const at::Tensor loss_sum = forward_backward(batch);
  fault_point("reduce", comm_.rank(), step + 1);

  // One all-reduce: squared gradient norm, loss, its denominator, votes to stop and to save.
  at::NoGradGuard no_grad;
  const at::Tensor stats = reduce_statistics(loss_sum, batch);
  // Backward differentiated loss_sum * loss_scale / nominal_denominator, and the step's loss is loss_sum / denominator:
  // `unscale` turns the gradients of the first into those of the second.
  const at::Tensor denominator = stats[kDenominator].clamp_min(1e-30);
  const at::Tensor unscale = task_.nominal_denominator() / (denominator * guard_->loss_scale());
  const at::Tensor grad_norm = stats[kSquare].sqrt() * unscale;
  const at::Tensor loss = stats[kLossSum] / denominator;
  const StepVerdict verdict = guard_->judge(loss, grad_norm, /*previous_inspected=*/progress_.reported == step);
  const at::Tensor multiplier = gradient_multiplier(unscale, grad_norm);

  before_update_();
  const ProgressSection section("optimizer");
  const ProfileRange range("optimizer");
  const double lr = step_learning_rate(step);
  optimizer_->step(lr, multiplier, verdict.skip);
  units_->clear_gradients();
  guard_->update_loss_scale(verdict);
  const at::Tensor saturated = units_->end_step();
  units_->weights_changed();

  in_flight_.push(step + 1, lr, batch.row_flops,
                  step_results(stats, loss, grad_norm, verdict, saturated, guard_->loss_scale()), clock_);
  progress_.completed = step + 1;
}

StepBatch TrainStep::next_batch(int64_t step) {
  StepBatch batch = [&] {
    const ProgressSection section("data");
    const ProfileRange range("data");
    fault_point("data", comm_.rank(), step + 1);
    return task_.batch(step);
  }();
  if (step + 1 < config_.train.max_steps) task_.prefetch(step + 1);
  return batch;
}

at::Tensor TrainStep::forward_backward(const StepBatch& batch) {
  if (batch.counts.defined() && comm_.size() > 1) comm_.all_reduce(batch.counts)->wait();
  // Gradients are reduced over ranks during the last micro-batch's backward.
  const at::Tensor scale = guard_->loss_scale() / task_.nominal_denominator();
  at::Tensor loss_sum = at::zeros({}, scale.options().dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    units_->begin_micro_batch(/*last=*/i + 1 == batch.micro_batches.size());
    at::Tensor loss;
    {
      const ProgressSection section("forward");
      const ProfileRange range("forward");
      loss = task_.loss(*units_, *batch.micro_batches[i], recomputation_, /*train=*/true);
    }
    const ProgressSection section("backward");
    const ProfileRange range("backward");
    (loss * scale).backward();
    loss_sum.add_(loss.detach());
  }
  const ProgressSection section("backward");
  const ProfileRange range("finish_backward");
  units_->finish_backward();
  return loss_sum;
}

at::Tensor TrainStep::reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch) {
  const at::Device device = run_.world.device();
  const int64_t metrics = batch.metrics.defined() ? batch.metrics.size(0) : 0;
  at::Tensor host =
      at::zeros({kNumStats + metrics}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device.is_cuda()));
  host[kDenominator] = batch.denominator;
  host[kSamples] = batch.samples;
  const StepVotes votes = votes_();
  host[kStopVotes] = votes.stop ? 1.0 : 0.0;
  host[kSaveReady] = votes.save_ready;
  host[kSaveClock] = votes.minutes_up ? 1.0 : 0.0;
  at::Tensor stats = host.to(device, /*non_blocking=*/true);
  stats[kSquare].copy_(local_gradient_square(units_->trained()));
  if (const at::Tensor nonfinite = units_->nonfinite_operands(); nonfinite.defined()) stats[kSquare].add_(nonfinite);
  stats[kLossSum].copy_(loss_sum);
  if (metrics > 0) stats.narrow(0, kNumStats, metrics).copy_(batch.metrics);
  if (comm_.size() > 1) comm_.all_reduce(stats)->wait();
  return stats;
}

at::Tensor TrainStep::gradient_multiplier(const at::Tensor& unscale, const at::Tensor& grad_norm) const {
  if (config_.optimizer.grad_clip <= 0 || clips_locally()) return unscale.to(at::kFloat);
  return (unscale * (config_.optimizer.grad_clip / (grad_norm + 1e-6)).clamp_max(1.0)).to(at::kFloat);
}

double TrainStep::step_learning_rate(int64_t step) const {
  int64_t skipped = guard_->steps_skipped();
  // Waiting for the step before costs nothing: this one's forward and backward are queued behind it.
  if (guard_->may_skip()) skipped += in_flight_.skipped();
  return learning_rate(config_.schedule, config_.optimizer.lr, config_.train.max_steps, step - skipped);
}

bool TrainStep::clips_locally() const {
  return config_.optimizer.clip == OptimizerSection::Clip::kLocal && config_.optimizer.grad_clip > 0 &&
         comm_.size() > 1;
}

at::Tensor TrainStep::local_clip(const std::vector<at::Tensor>& gradients) const {
  std::vector<GradientPart> parts;
  for (const at::Tensor& gradient : gradients) parts.push_back({gradient});
  // A rank's part of the loss is its mean divided by the number of ranks; what is clipped is the norm of its own mean.
  const at::Tensor norm =
      sum_of_squares(parts).sqrt() * (task_.nominal_denominator() * run_.grid.world.size) / guard_->loss_scale();
  const at::Tensor factor = (config_.optimizer.grad_clip / (norm + 1e-6)).clamp_max(1.0);
  return at::where(factor.isfinite(), factor, 1.0).to(at::kFloat);
}

void TrainStep::warm_up() {
  // Twice: the first pass loads kernels and lets libraries choose theirs; in the second the allocator is as in later
  // steps.
  for (int pass = 0; pass < 2; ++pass) {
    (void)forward_backward(task_.synthetic_batch());
    units_->clear_gradients();
  }
}

void TrainStep::observe_faults() {
  if (std::getenv("TRIREME_FAULT") == nullptr) return units_->observe_gradients({});
  units_->observe_gradients([this](const ParameterSpec& parameter, const at::Tensor& gradient) {
    inject_gradient_fault(parameter.parts.front().name, gradient, comm_.rank(), progress_.completed + 1);
  });
}

std::string TrainStep::find_nonfinite(int64_t step) {
  std::string differences;  // from the first computation
  // If the run goes on, the next step was queued before the numbers of this step were read, and has changed the
  // weights.
  if (in_flight_.updated_after(step)) differences = fmt::format(" with the weights after step {}", progress_.completed);
  if (guard_->fp16()) differences += fmt::format(" at a loss scale of {:g}", guard_->loss_scale().item<double>());
  std::string found;
  units_->observe_gradients([&](const ParameterSpec& parameter, const at::Tensor& gradient) {
    const std::string& name = parameter.parts.front().name;
    inject_gradient_fault(name, gradient, comm_.rank(), step);
    if (found.empty() && !gradient.isfinite().all().item<bool>()) found = "the gradient of " + name;
  });
  units_->begin_step();
  const double loss = forward_backward(task_.batch(step - 1)).item<double>();
  if (found.empty()) found = units_->find_nonfinite_operand();
  units_->clear_gradients();
  observe_faults();
  if (!std::isfinite(loss)) found = "the loss" + (found.empty() ? "" : " and " + found);
  const std::string everywhere = list_ranks(comm_.all_gather_host(found), run_.world.hosts());
  if (!everywhere.empty())
    return fmt::format("not finite{}: {}", differences.empty() ? "" : ", computed again" + differences, everywhere);
  return fmt::format("computed again{}, every gradient of every rank is finite{}", differences,
                     differences.empty() ? ": suspect a sum over ranks that overflows, or faulty memory" : "");
}

std::vector<StateTensor> TrainStep::state() {
  if (host_state_) host_state_->settle();
  std::vector<StateTensor> state = optimizer_->state();
  for (const TrainedShard& shard : units_->trained()) state.push_back({StateKind::kMaster, &shard, shard.master});
  for (StateTensor& tensor : guard_->tensors()) state.push_back(std::move(tensor));
  return state;
}

void TrainStep::weights_changed() {
  for (const TrainedShard& shard : units_->trained()) shard.update_compute();
  units_->weights_changed();
}

std::string find_nonfinite_state(const std::vector<StateTensor>& state, Communicator& comm) {
  std::string mine;
  for (const StateTensor& one : state)
    if (mine.empty() && !all_finite(one.tensor))
      mine = fmt::format("{} on rank {} is not finite", stored_name(one), comm.rank());
  const std::vector<std::string> problems = problems_of_ranks(comm, mine);
  return problems.empty() ? "" : problems.front();
}

}  // namespace trireme
