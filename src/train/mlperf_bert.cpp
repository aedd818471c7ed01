#include "mlperf_events.h"

#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme {

namespace {

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
  void start_evaluation(int64_t samples) override {
    log_.start_with("eval_start", std::to_string(samples), epoch(samples));
  }
  void end_evaluation(const EvalMetrics& metrics) override {
    log_.end_with("eval_stop", std::to_string(metrics.samples), epoch(metrics.samples));
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

std::unique_ptr<MlperfEvents> make_bert_events(MlperfLog& log, const Config&) {
  return std::make_unique<BertEvents>(log);
}

}  // namespace trireme
