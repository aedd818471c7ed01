// Evaluations, and the blocks of steps between them as MLPerf counts them.
#include "trireme/train/trainer.h"

#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/progress.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace trireme {

namespace {

/// Leaves an evaluation halfway, on all ranks after the same forward pass.
struct EvaluationLeft {};

}  // namespace

bool Trainer::evaluation_due() const {
  if (task_.eval_samples() == 0 || !config_.eval.every_samples) return false;
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
  const MlperfLog::Metadata count = {{"samples_count", std::to_string(samples_done())}};
  end_block();
  mlperf_.start("eval_start", count);
  const double begin = steady_seconds();
  const ProgressSection section("evaluation");
  EvalSum local;
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
  const auto sums = comm_.all_reduce_host({local.loss, local.denominator});
  EvalMetrics metrics{completed_, samples_done(), sums[0] / sums[1], steady_seconds() - begin};
  const bool reached = config_.eval.target_loss && metrics.loss <= *config_.eval.target_loss;
  if (comm_.rank() == 0) {
    metrics_->write(metrics);
    console_.line(console_line(metrics, config_.eval.target_loss));
  }
  mlperf_.event("eval_accuracy", format_exact(metrics.loss), count);
  mlperf_.event("tracked_stats", fmt::format(R"({{"validation_time": {}}})", format_exact(metrics.seconds)),
                {{"step", std::to_string(completed_)}});
  mlperf_.end("eval_stop", count);
  if (!reached && !at_end) start_block();
  start_clock();
  return reached;
}

void Trainer::start_block() {
  block_open_ = true;
  block_start_samples_ = samples_done();
  block_seconds_ = 0;
  block_steps_ = 0;
  mlperf_.start("block_start", {{"samples_count", std::to_string(block_start_samples_)}});
}

void Trainer::end_block() {
  if (!block_open_) return;
  block_open_ = false;
  if (block_steps_ > 0) {
    const double step_time = block_seconds_ / static_cast<double>(block_steps_);
    mlperf_.event("tracked_stats",
                  fmt::format(R"({{"throughput": {}, "train_step_time": {}, "train_loss": {}}})",
                              format_exact(static_cast<double>(config_.batch.global_batch_size) / step_time), format_exact(step_time),
                              format_exact(last_loss_)),
                  {{"step", std::to_string(completed_)}});
  }
  mlperf_.end("block_stop", {{"samples_count", std::to_string(samples_done())}});
}

void Trainer::mlperf_end_run(const char* status) {
  end_block();
  mlperf_.end("run_stop", {{"samples_count", std::to_string(samples_done())}, {"status", fmt::format("\"{}\"", status)}});
}

}  // namespace trireme
