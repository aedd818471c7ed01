#include "report.h"

#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/time.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/version.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme {

namespace {

/// Around lines, which wait for the storage of output.dir.
constexpr const char* kSection = "metrics";

}  // namespace

Report::Report(const RunParts& run, RunClock& clock, const TrainStep& step, const RunProgress& progress)
    : run_(run),
      config_(run.config),
      clock_(clock),
      step_(step),
      progress_(progress),
      writes_(run.comm().rank() == 0) {}

void Report::open() {
  if (!writes_) return;
  // Temporary files that a killed process of this run has left; output.dir is locked, so nobody else writes there.
  const std::filesystem::path& output = run_.directory.path();
  for (const char* folder : {"", "adapter", "model", "checkpoints"}) remove_dead_temporaries(output / folder);
  metrics_file_ = std::make_unique<MetricsFile>(
      output / "metrics.jsonl", progress_.completed > 0 ? std::optional(progress_.completed) : std::nullopt,
      /*evaluated=*/!progress_.evaluation_open);
  const nlohmann::json run = description();
  event(run.dump());
  if (progress_.other_evaluation) {
    event(nlohmann::json{{"event", kOtherEvaluation}, {"step", progress_.completed}}.dump());
  } else {
    bool has_best = progress_.best_step < 0;
    for (const EvalMetrics& evaluation : metrics_file_->earlier_evaluations()) {
      totals_.add(evaluation);
      has_best |= evaluation.step == progress_.best_step;
    }
    if (!has_best)
      log_warn(
          fmt::format("metrics.jsonl lacks the evaluation after step {}, the best before this start: first and best "
                      "evaluation in summary.json are those that the file has",
                      progress_.best_step));
  }
  if (!TensorboardLog::folder(config_).empty())
    tensorboard_ = std::make_unique<TensorboardLog>(config_, progress_.completed, run.dump(2));
}

void Report::start_run() {
  run_.mlperf.start_run();
  clock_.start_run(progress_.completed, progress_.samples);
  if (writes_ && (config_.logging.style == LoggingSection::Style::kFms ||
                  config_.logging.style == LoggingSection::Style::kFms2024))
    fms_report_ = std::make_unique<FmsReport>(
        config_.logging.style == LoggingSection::Style::kFms2024,
        static_cast<double>(config_.batch.global_batch_size * config_.data.seq_length) / run_.grid.world.size,
        run_.comm().size(), steady_seconds());
  start_block();
}

nlohmann::json Report::description() const {
  nlohmann::json devices = nlohmann::json::array();
  for (int rank = 0; rank < run_.comm().size(); ++rank) devices.push_back(run_.device_info.name);
  return {{"event", "run"},
          {"time", utc_timestamp()},
          {"commit", kCommit},
          {"version", kVersion},
          {"world_size", run_.comm().size()},
          {"launch", run_.world.launch().description()},
          {"hosts", run_.world.hosts()},
          {"devices", devices},
          {"device_type", run_.world.device().is_cuda() ? "gpu" : "cpu"},
          {"compute_dtype", type_name(run_.compute_dtype)},
          {"context_size", run_.plan.context_size},
          {"shard_size", run_.plan.shard_size},
          {"parameters", run_.task.num_parameters()},
          {"trained_parameters", run_.task.num_trained_parameters()},
          {"libraries", {{"libtorch", TORCH_VERSION}, {"gpu", gpu_library_versions() + nccl_version_text()}}},
          {"resumed_after_step", progress_.completed}};
}

void Report::event(const std::string& json_object) {
  const ProgressSection section(kSection, kStorageAllowance);
  if (metrics_file_) metrics_file_->write_run(json_object);
}

int64_t Report::memory_in_use() const {
  return peak_memory(run_.world.device()) + step_.units().memory_outside_allocator();
}

TrainMetrics Report::metrics_of(const StepRecord& record, double seconds) const {
  const BatchSizes& batches = clock_.batches();
  TrainMetrics metrics;
  metrics.step = record.step;
  metrics.max_steps = config_.train.max_steps;
  metrics.samples = progress_.samples;
  metrics.step_rows = batches.of(record.step - 1);
  const auto rows = static_cast<double>(metrics.step_rows);
  metrics.rows = batches.before(record.step);
  metrics.epoch = run_.task.facts().epochs(metrics.rows);
  metrics.skipped_steps = step_.guard().steps_skipped() + (record.skipped() ? 1 : 0);
  metrics.loss_scale = record[kLossScale];
  metrics.tokens = metrics.rows * config_.data.seq_length;
  if (batches.ramps()) metrics.global_batch_size = metrics.step_rows;
  metrics.loss = record[kLoss];
  metrics.has_loss = record.has_loss();
  metrics.grad_norm = record[kGradNorm];
  metrics.lr = record.lr;
  metrics.step_time_s = seconds;
  metrics.samples_per_s = record[kSampleCount] / seconds;
  metrics.tokens_per_s = rows / seconds * static_cast<double>(config_.data.seq_length);
  metrics.memory_gib = static_cast<double>(memory_in_use()) / (1 << 30);
  const std::vector<std::string>& names = run_.task.facts().metrics;
  for (size_t i = 0; i < names.size(); ++i)
    metrics.more.emplace_back(names[i], record.values.const_data_ptr<double>()[kNumResults + i]);
  // Rank 0's rows stand for those of the others.
  metrics.flops = rows * (record.row_flops > 0 ? record.row_flops : run_.task.flops_per_row());
  if (run_.device_info.peak_flops)
    metrics.mfu = metrics.flops / seconds / (*run_.device_info.peak_flops * run_.grid.world.size);
  return metrics;
}

void Report::step(const StepRecord& record, double seconds) {
  if (!writes_) return;
  const ProgressSection section(kSection, kStorageAllowance);
  fault_point("metrics", run_.comm().rank(), record.step);
  const TrainMetrics metrics = metrics_of(record, seconds);
  metrics_file_->write(metrics);
  totals_.add(metrics);
  const double eta = clock_.remaining_seconds(metrics.step);
  const bool due =
      metrics.step % config_.logging.every_steps == 0 || metrics.step == 1 || metrics.step == metrics.max_steps;
  if (fms_report_) {
    fms_report_->add(metrics);
    if (metrics.step % config_.logging.every_steps == 0 || metrics.step == metrics.max_steps)
      console_.line(fms_report_->lines(steady_seconds(), peak_reserved_memory(run_.world.device()), memory_in_use()));
  } else if (due) {
    console_.line(console_line(metrics, eta, terminal_columns()));
    log_to_files(console_line(metrics, eta));
  }
  if (tensorboard_) tensorboard_->step(metrics, due);
  const std::string left = eta_text(eta);
  console_.status(metrics.step, metrics.max_steps,
                  fmt::format("loss {:.4f}{}", metrics.loss, left.empty() ? "" : " | " + left));
  run_.mlperf.train_loss(metrics);
}

void Report::start_block() {
  clock_.start_block(progress_.samples);
  run_.mlperf.start_block(progress_.samples);
}

void Report::end_block() {
  if (const auto block = clock_.end_block(progress_.completed, progress_.samples, progress_.last_loss))
    run_.mlperf.end_block(*block);
}

void Report::evaluation_status(const char* what, int64_t done, int64_t total) {
  if (writes_) console_.eval_status(what, done, total);
}

void Report::evaluation(const EvalMetrics& metrics) {
  const ProgressSection section(kSection, kStorageAllowance);
  totals_.add(metrics);
  last_evaluation_ = metrics;
  if (writes_) {
    metrics_file_->write(metrics);
    if (tensorboard_) tensorboard_->evaluation(metrics);
    console_.line(console_line(metrics, config_.eval.target_loss, config_.eval.target_accuracy));
  }
  run_.mlperf.end_evaluation(metrics);
}

void Report::test(const EvalMetrics& metrics) {
  const ProgressSection section(kSection, kStorageAllowance);
  totals_.test = metrics;
  if (!writes_) return;
  metrics_file_->write_test(metrics);
  if (tensorboard_) tensorboard_->test(metrics);
  console_.line(test_console_line(metrics));
}

void Report::samples(const std::vector<SampledText>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const SampledText& sample = texts[i];
    const nlohmann::ordered_json line = {{"event", "sample"},      {"step", progress_.completed},
                                         {"prompt_number", i + 1}, {"prompt", sample.prompt},
                                         {"text", sample.text},    {"ended", sample.ended}};
    event(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    if (tensorboard_) tensorboard_->sample(progress_.completed, i + 1, sample.prompt, sample.text);
  }
  if (tensorboard_) tensorboard_->flush();
}

void Report::flush() {
  if (metrics_file_) metrics_file_->sync();
  if (tensorboard_) tensorboard_->flush();
}

void Report::end_training(const char* status) {
  end_block();
  run_.mlperf.end_run(status, progress_.completed, progress_.samples, clock_.run_rate(progress_.samples));
}

RunSummary Report::summary() const {
  RunSummary s;
  s.step = progress_.reported;
  s.max_steps = config_.train.max_steps;
  s.samples = progress_.samples;
  s.totals = totals_;
  s.tokens_per_step_row = static_cast<double>(config_.data.seq_length);
  const int64_t rows = clock_.batches().before(progress_.reported);
  s.tokens = rows * config_.data.seq_length;
  s.ranks = run_.comm().size();
  s.resumed_after = clock_.first_step();
  s.runtime_s = clock_.run_seconds();
  s.samples_per_s = clock_.run_rate(progress_.samples);
  s.epoch = run_.task.facts().epochs(rows);
  s.peak_flops = run_.device_info.peak_flops;
  s.peak_memory = static_cast<double>(memory_in_use());
  if (run_.world.device().is_cuda()) s.planned_memory = static_cast<double>(run_.plan.total() - run_.plan.overhead);
  s.target_loss = config_.eval.target_loss;
  s.target_accuracy = config_.eval.target_accuracy;
  s.target_reached = progress_.reached_target;
  s.output = run_.directory.path();
  return s;
}

void Report::end(RunEnd end, int exit_code, const std::string& reason, RunSummary s) {
  if (!writes_) return;
  s.end = end;
  s.exit_code = exit_code;
  s.reason = reason;
  s.files = left_files(s.output);
  s.next = next_command(config_, end, exit_code);
  const std::string json = summary_json(s);
  event(json);
  flush();
  for (const std::string& text : summary_lines(s)) {
    console_.line(text);
    log_to_files(text);
  }
  if (config_.logging.style == LoggingSection::Style::kNemo && (end == RunEnd::kDone || end == RunEnd::kMaxTime))
    write_lightning_log(s.output, end == RunEnd::kDone
                                      ? fmt::format("`Trainer.fit` stopped: `max_steps={}` reached.", s.max_steps)
                                      : fmt::format("Time limit reached: train.max_time {}", *config_.train.max_time));
  try {
    write_file_atomic(s.output / "summary.json", nlohmann::ordered_json::parse(json).dump(2) + "\n");
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

void Report::prediction() const {
  if (clock_.timed_steps() == 0 || !run_.plan.cost.known) return;
  // The prediction is of the whole batch: it is compared where all of the newest steps have that.
  const int64_t newest = std::min(clock_.timed_steps(), RunClock::kNewestSteps);
  if (progress_.completed - newest < clock_.batches().first_largest()) return;
  const double measured = clock_.median_step_seconds();
  log_info(fmt::format("{}; measured {:.1f} ms (prediction {:+.1f} %)", describe_cost(run_.plan.cost), measured * 1e3,
                       100.0 * (run_.plan.cost.total() / measured - 1.0)));
}

void Report::missed_target() const {
  if (progress_.reached_target) return;
  const auto report = [&](const char* key, std::optional<double> target, std::optional<double> last) {
    if (!target) return;
    log_run_warn(fmt::format("eval.{} {:.6g} was not reached{}", key, *target,
                             last ? fmt::format(": the last evaluation gave {:.6g}", *last) : std::string()));
  };
  report("target_loss", config_.eval.target_loss,
         last_evaluation_ ? std::optional(last_evaluation_->loss) : std::nullopt);
  report("target_accuracy", config_.eval.target_accuracy,
         last_evaluation_ ? last_evaluation_->mlm_accuracy : std::nullopt);
}

}  // namespace trireme
