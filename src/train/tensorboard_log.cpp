#include "tensorboard_log.h"

#include "trireme/base/text.h"

#include <algorithm>
#include <numeric>

namespace trireme {

namespace {

/// As Markdown that is shown letter by letter.
std::string as_code(const std::string& text) {
  std::string code;
  for (const std::string& line : split(text, '\n')) code += "    " + line + '\n';
  return code;
}

}  // namespace

std::filesystem::path TensorboardLog::folder(const Config& config) {
  const std::filesystem::path output = config.output.dir;
  if (config.logging.style == LoggingSection::Style::kNemo) return output;
  return config.logging.tensorboard ? output / "tensorboard" : std::filesystem::path();
}

TensorboardLog::TensorboardLog(const Config& config, int64_t completed, const std::string& description)
    : nemo_(config.logging.style == LoggingSection::Style::kNemo),
      fp16_(config.precision.compute == PrecisionSection::Compute::kFp16),
      file_(folder(config)) {
  if (completed > 0) file_.restart(completed + 1);
  file_.text(completed, "config", as_code(print_config(config)));
  file_.text(completed, "run", as_code(description));
}

void TensorboardLog::step(const TrainMetrics& m, bool due) {
  newest_seconds_.push_back(m.step_time_s);
  if (newest_seconds_.size() > kTimedSteps) newest_seconds_.pop_front();
  if (!due) return;
  TensorboardScalars values;
  if (nemo_) {
    const double seconds = std::accumulate(newest_seconds_.begin(), newest_seconds_.end(), 0.0);
    values = {{"reduced_train_loss", m.loss},
              {"lr", m.lr},
              {"global_step", static_cast<double>(m.step)},
              {"consumed_samples", static_cast<double>(m.rows)},
              {"grad_norm", m.grad_norm},
              {"train_step_timing", seconds / static_cast<double>(newest_seconds_.size())},
              {"epoch", static_cast<double>(m.epoch)},
              {"global_batch_size", static_cast<double>(m.step_rows)}};
    if (fp16_) values.emplace_back("loss_scale", m.loss_scale);
  } else {
    values = {{"train/loss", m.loss},
              {"train/grad_norm", m.grad_norm},
              {"train/lr", m.lr},
              {"train/epoch", static_cast<double>(m.epoch)},
              {"train/skipped_steps", static_cast<double>(m.skipped_steps)},
              {"perf/step_time_s", m.step_time_s},
              {"perf/samples_per_s", m.samples_per_s},
              {"perf/tokens_per_s", m.tokens_per_s},
              {"perf/memory_gib", m.memory_gib}};
    if (m.mfu) values.emplace_back("perf/mfu", *m.mfu);
    if (fp16_) values.emplace_back("train/loss_scale", m.loss_scale);
  }
  file_.scalars(m.step, values);
}

void TensorboardLog::evaluated(const EvalMetrics& m, const char* name, const char* nemo_name) {
  TensorboardScalars values;
  if (nemo_) {
    values = {{std::string(nemo_name) + "_loss", m.loss}};
    if (m.passes > 0)
      values.emplace_back(nemo_name == std::string("val") ? "validation_step_timing" : "test_step_timing",
                          m.seconds / static_cast<double>(m.passes));
    if (m.mlm_accuracy) values.emplace_back(std::string(nemo_name) + "_accuracy", *m.mlm_accuracy);
  } else {
    const std::string prefix = std::string(name) + "/";
    values = {{prefix + "loss", m.loss}, {prefix + "time_s", m.seconds}};
    if (m.mlm_accuracy) values.emplace_back(prefix + "accuracy", *m.mlm_accuracy);
  }
  file_.scalars(m.step, values);
  file_.flush();
}

void TensorboardLog::evaluation(const EvalMetrics& metrics) { evaluated(metrics, "eval", "val"); }

void TensorboardLog::test(const EvalMetrics& metrics) { evaluated(metrics, "test", "test"); }

}  // namespace trireme
