#include "mlperf.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/config/keys.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme {

MlperfLog::MlperfLog(const std::filesystem::path& path, bool append) {
  if (path.empty()) return;
  lines_.emplace().open(path, append);
  bytes_ = earlier_ = std::filesystem::file_size(path);
}

void MlperfLog::decide_earlier_lines(bool afresh) {
  if (!enabled()) return;
  const std::filesystem::path path = lines_->path();
  if (!afresh)
    return log_warn(fmt::format("{} {}: MLPerf's compliance checker takes those of one, from its first step on",
                                path.string(),
                                earlier_ > 0 ? "has the lines of several starts of this run"
                                             : "lacks the lines of the earlier starts of this run"));
  if (earlier_ == 0) return;
  (void)lines_->write_waiting();
  const std::string all = read_text_file(path, ExitCode::kCannotWrite, SIZE_MAX);
  lines_.emplace().open(path, /*append=*/false);
  lines_->AppendFile::write(all.substr(std::min(earlier_, all.size())));
  bytes_ -= earlier_;
}

void MlperfLog::write(const char* type, const char* key, const std::string& value, const Metadata& metadata,
                      const char* file, int line) {
  if (!enabled()) return;
  std::string fields =
      fmt::format(R"("file": "{}", "lineno": {})", std::filesystem::path(file).filename().string(), line);
  for (const auto& [name, json] : metadata) fields += fmt::format(R"(, "{}": {})", name, json);
  const std::string text = fmt::format(
      R"(:::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "{}", "key": "{}", "value": {}, "metadata": {{{}}}}})",
      unix_milliseconds(), type, key, value, fields);
  print_line(text);
  lines_->write(text);
  bytes_ += text.size() + 1;
}

void MlperfLog::check_whole() {
  if (!enabled()) return;
  std::string why;
  if (!lines_->write_waiting())
    why =
        fmt::format("its last {} could not be written ({})", counted(lines_->waiting(), "line"), std::strerror(errno));
  else if (std::error_code error; std::filesystem::file_size(lines_->path(), error) < bytes_ || error)
    why = "lines of this start are not in it any more";
  if (why.empty()) return;
  throw WriteError(fmt::format("what was trained is written, but {} is no result: {}; standard output has them",
                               lines_->path().string(), why));
}

void MlperfLog::event(const char* key, const std::string& value, const Metadata& metadata, int line, const char* file) {
  write("POINT_IN_TIME", key, value, metadata, file, line);
}
void MlperfLog::start(const char* key, const Metadata& metadata, const std::string& value, int line, const char* file) {
  write("INTERVAL_START", key, value, metadata, file, line);
}
void MlperfLog::end(const char* key, const Metadata& metadata, const std::string& value, int line, const char* file) {
  write("INTERVAL_END", key, value, metadata, file, line);
}

namespace {

/// submission_benchmark … submission_platform, from MLPERF_SUBMISSION_* or defaults.
void log_submission(MlperfLog& log, const char* benchmark, const MlperfRun& run) {
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  log.event("submission_benchmark", quoted(environment("MLPERF_SUBMISSION_BENCHMARK", benchmark)));
  log.event("submission_org", quoted(environment("MLPERF_SUBMISSION_ORG", "Trireme")));
  log.event("submission_division", quoted(run.division));
  log.event("submission_status", quoted(environment("MLPERF_SUBMISSION_STATUS", "onprem")));
  log.event("submission_platform",
            quoted(fmt::format("{}x{}", run.nodes, environment("MLPERF_SUBMISSION_PLATFORM", "unnamed"))));
}

constexpr int64_t kTrainLossEvery = 10;

MlperfLog::Metadata samples_count(int64_t samples) { return {{"samples_count", std::to_string(samples)}}; }

/// Blocks, evaluations and the end, which the two benchmarks have in common.
class LlamaEvents : public MlperfEvents {
 public:
  using MlperfEvents::MlperfEvents;

  void start_run() override {
    log_.end("init_stop");
    log_.start("run_start");
  }
  void start_block(int64_t samples) override { log_.start("block_start", samples_count(samples)); }
  void end_block(const MlperfBlock& block) override {
    if (block.steps > 0)
      log_.event("tracked_stats",
                 fmt::format(R"({{"throughput": {}, "train_step_time": {}, "train_loss": {}}})",
                             format_exact(block.samples_per_second),
                             format_exact(block.seconds / static_cast<double>(block.steps)), format_exact(block.loss)),
                 {{"step", std::to_string(block.step)}});
    log_.end("block_stop", samples_count(block.samples));
  }
  void train_loss(const TrainMetrics& metrics) override {
    if (metrics.step % kTrainLossEvery == 0)
      log_.event("train_loss", format_exact(metrics.loss),
                 {{"samples_count", std::to_string(metrics.samples)}, {"lr", format_exact(metrics.lr)}});
  }
  void start_evaluation(int64_t samples) override { log_.start("eval_start", samples_count(samples)); }
  void end_evaluation(const EvalMetrics& metrics) override {
    log_.event("eval_accuracy", format_exact(metrics.loss), samples_count(metrics.samples));
    log_.event("tracked_stats", fmt::format(R"({{"validation_time": {}}})", format_exact(metrics.seconds)),
               {{"step", std::to_string(metrics.step)}});
    log_.end("eval_stop", samples_count(metrics.samples));
  }
  void end_run(const char* status, int64_t, int64_t samples, double) override {
    log_.end("run_stop", {{"samples_count", std::to_string(samples)}, {"status", fmt::format("\"{}\"", status)}});
  }
};

class LoraEvents final : public LlamaEvents {
 public:
  using LlamaEvents::LlamaEvents;

  void configuration(const Config& config, const MlperfRun& run) override {
    log_submission(log_, "llama2_70b_lora", run);
    log_.event("opt_base_learning_rate", format_exact(config.optimizer.lr));
    log_.event("opt_adamw_weight_decay", format_exact(config.optimizer.weight_decay));
    log_.event("opt_gradient_clip_norm", format_exact(config.optimizer.grad_clip));
    log_.event("opt_learning_rate_warmup_factor", format_exact(static_cast<double>(config.schedule.warmup_steps) /
                                                               static_cast<double>(config.train.max_steps)));
    if (config.lora) {
      log_.event("lora_rank", std::to_string(config.lora->r));
      log_.event("lora_alpha", format_exact(config.lora->alpha));
    }
    log_.event("opt_learning_rate_training_steps", std::to_string(config.train.max_steps));
    log_.event("global_batch_size", std::to_string(config.batch.global_batch_size));
    log_.event("train_samples", std::to_string(run.train_samples));
    log_.event("eval_samples", std::to_string(run.eval_samples));
    log_.event("gradient_accumulation_steps", std::to_string(run.accumulation_steps));
    log_.event("seed", std::to_string(config.train.seed));
  }
};

class PretrainingEvents final : public LlamaEvents {
 public:
  using LlamaEvents::LlamaEvents;

  void configuration(const Config& config, const MlperfRun& run) override {
    const OptimizerSection& optimizer = config.optimizer;
    log_submission(log_, "llama31_8b", run);
    log_.event("seed", std::to_string(config.train.seed));
    log_.event("global_batch_size", std::to_string(config.batch.global_batch_size));
    log_.event("gradient_accumulation_steps", std::to_string(run.accumulation_steps));
    log_.event("max_sequence_length", std::to_string(config.data.seq_length));
    log_.event("eval_samples", std::to_string(run.eval_samples));
    log_.event("train_samples", std::to_string(run.train_samples));
    log_.event("init_checkpoint_step", "0");
    log_.event("opt_name", nlohmann::json(word_of(optimizer.name)).dump());
    log_.event("opt_base_learning_rate", format_exact(optimizer.lr));
    log_.event("opt_adamw_beta_1", format_exact(optimizer.betas[0]));
    log_.event("opt_adamw_beta_2", format_exact(optimizer.betas[1]));
    log_.event("opt_adamw_epsilon", format_exact(optimizer.eps));
    log_.event("opt_adamw_weight_decay", format_exact(optimizer.weight_decay));
    log_.event("opt_gradient_clip_norm", format_exact(optimizer.grad_clip));
    log_.event("opt_end_learning_rate", format_exact(config.schedule.min_lr));
    // The checker computes the decay steps from the warm-up steps, which it must have read before.
    log_.event("opt_learning_rate_warmup_steps", std::to_string(config.schedule.warmup_steps));
    log_.event("opt_learning_rate_decay_steps", std::to_string(config.train.max_steps - config.schedule.warmup_steps));
    log_.event("max_steps", std::to_string(config.train.max_steps));
    log_.event("opt_learning_rate_decay_schedule", R"("cosine with linear warmup")");
    if (config.eval.target_loss) log_.event("target_accuracy", format_exact(*config.eval.target_loss));
  }
};

/// Masked words of a sequence that the benchmark's data have at most.
constexpr int kMaxPredictions = 76;

/// The benchmark's logs count epochs in sequences.
MlperfLog::Metadata epoch(int64_t samples) { return {{"epoch_num", std::to_string(samples)}}; }

class BertEvents final : public MlperfEvents {
 public:
  using MlperfEvents::MlperfEvents;

  void configuration(const Config& config, const MlperfRun& run) override {
    log_submission(log_, "bert", run);
    eval_samples_ = run.eval_samples;
    for (const std::string& path : config.data.train) files_.push_back(path);
    const double rows = static_cast<double>(config.batch.global_batch_size);
    log_.event("seed", std::to_string(config.train.seed));
    log_.event("global_batch_size", std::to_string(static_cast<int64_t>(rows * config.batch.packing_rate)));
    log_.event("d_batch_size", std::to_string(config.batch.micro_batch_size));
    log_.event("gradient_accumulation_steps", std::to_string(run.accumulation_steps));
    log_.event("max_predictions_per_seq", std::to_string(kMaxPredictions));
    log_.event("opt_learning_rate_training_steps", fmt::format("{}.0", config.train.max_steps));
    log_.event("num_warmup_steps", std::to_string(config.schedule.warmup_steps));
    for (const std::string& tensor : run.tensors)
      log_.event("weights_initialization", "null", {{"tensor", nlohmann::json(tensor).dump()}});
    log_.event("opt_base_learning_rate", format_exact(config.optimizer.lr));
    log_.event("opt_lamb_epsilon", format_exact(config.optimizer.eps));
    log_.event("opt_epsilon", format_exact(config.optimizer.eps));
    log_.event("opt_lamb_beta_1", format_exact(config.optimizer.betas[0]));
    log_.event("opt_lamb_beta_2", format_exact(config.optimizer.betas[1]));
    log_.event("opt_lamb_weight_decay_rate", format_exact(config.optimizer.weight_decay));
    log_.event("opt_learning_rate_warmup_steps", std::to_string(config.schedule.warmup_steps));
    log_.event("opt_lamb_learning_rate_decay_poly_power", "1.0");
    log_.event("start_warmup_step", "0");
  }
  void start_run() override {
    log_.end("init_stop");
    log_.start("run_start");
    log_.start("epoch_start", epoch(0));
    log_.start("block_start", {{"first_epoch_num", "1"}, {"epoch_count", "1"}});
    for (const std::string& file : files_) log_.event("data_file", nlohmann::json(file).dump());
  }
  // One block spans the run.
  void start_block(int64_t) override {}
  void end_block(const MlperfBlock& block) override {
    if (block.steps > 0)
      log_.event("tracked_stats", fmt::format(R"({{"throughput": {}}})", format_exact(block.samples_per_second)),
                 epoch(block.samples));
  }
  void train_loss(const TrainMetrics&) override {}
  void start_evaluation(int64_t samples) override { log_.start("eval_start", epoch(samples), std::to_string(samples)); }
  void end_evaluation(const EvalMetrics& metrics) override {
    log_.end("eval_stop", epoch(metrics.samples), std::to_string(metrics.samples));
    log_.event("eval_accuracy", format_exact(metrics.mlm_accuracy.value_or(0)), epoch(metrics.samples));
  }
  void end_run(const char* status, int64_t step, int64_t samples, double samples_per_second) override {
    log_.end("block_stop", {{"first_epoch_num", "1"}});
    log_.end("epoch_stop", epoch(samples));
    log_.event("train_samples", std::to_string(samples));
    log_.event("eval_samples", std::to_string(eval_samples_));
    log_.end("run_stop", {{"status", fmt::format("\"{}\"", status)}});
    log_.event("tracked_stats",
               fmt::format(R"({{"throughput": {}, "epoch_num": {}}})", format_exact(samples_per_second), samples),
               {{"step", fmt::format("[1, {}]", step)}});
  }

 private:
  int64_t eval_samples_ = 0;
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<MlperfEvents> make_llama_events(MlperfLog& log, const Config& config) {
  if (config.lora) return std::make_unique<LoraEvents>(log);
  return std::make_unique<PretrainingEvents>(log);
}

std::unique_ptr<MlperfEvents> make_bert_events(MlperfLog& log, const Config&) {
  return std::make_unique<BertEvents>(log);
}

}  // namespace trireme
