// Evaluations, and the blocks of steps between them as MLPerf counts them.
#include "trireme/train/trainer.h"

#include "agree.h"
#include "stop_vote.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/train/signals.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace trireme {

namespace {

/// Leaves an evaluation halfway, on all ranks after the same forward pass.
struct EvaluationLeft {};

/// The sums are those of all ranks: what is wrong with them every rank finds.
EvalResult evaluation_result(const TrainingTask& task, const EvalSums& sums) {
  try {
    return task.eval_result(sums);
  } catch (const Error& error) {
    throw AgreedError(error.code(), error.what());
  }
}

}  // namespace

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

void Trainer::evaluate() {
  const bool at_end = completed_ >= config_.train.max_steps;
  int64_t skip = 0;
  if (config_.eval.skip_first)
    skip = *config_.eval.skip_first == "mlperf"
               ? static_cast<int64_t>(0.125 * static_cast<double>(config_.batch.global_batch_size) + 2)
               : std::stoll(*config_.eval.skip_first);
  if (evaluations_++ < skip && !at_end) return;
  // It is done again, whole, when the run goes on.
  const auto leave = [&] {
    --evaluations_;
    evaluation_left_ = true;
    log_info(fmt::format("the evaluation after step {} is left because of a signal", completed_));
  };
  if (stop_agreed_) return leave();
  const int64_t evaluated_before = std::exchange(last_evaluated_step_, completed_);
  end_block();
  mlperf_.start_evaluation(samples_);
  const double begin = steady_seconds();
  const ProgressSection section("evaluation");
  EvalSums local;
  const ShardedUnits::Evaluation evaluating(*units_);
  try {
    local = task_.evaluate(*units_, [&](int64_t done, int64_t total) {
      fault_point("evaluation", comm_.rank(), completed_);
      if (comm_.rank() == 0) console_.eval_status(done, total);
      stop_agreed_ = stop_vote_->cast(stop_signal() != 0);
      if (stop_agreed_ && done < total) throw EvaluationLeft();
    });
    stop_agreed_ = stop_vote_->outcome();
  } catch (const EvaluationLeft&) {
    units_->release();
    last_evaluated_step_ = evaluated_before;
    return leave();
  }
  const EvalResult result = evaluation_result(task_, comm_.all_reduce_host(local));
  const EvalMetrics metrics{completed_, samples_, result.loss, steady_seconds() - begin, result.mlm_accuracy};
  last_evaluation_ = metrics;
  reached_target_ = (config_.eval.target_loss && metrics.loss <= *config_.eval.target_loss) ||
                    (config_.eval.target_accuracy && metrics.mlm_accuracy.value_or(0) >= *config_.eval.target_accuracy);
  if (comm_.rank() == 0) {
    metrics_->write(metrics);
    console_.line(console_line(metrics, config_.eval.target_loss, config_.eval.target_accuracy));
  }
  mlperf_.end_evaluation(metrics);
  if (!reached_target_ && !at_end) start_block();
  start_clock();
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

}  // namespace trireme
