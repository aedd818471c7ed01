#include "log_styles.h"

#include "trireme/base/append_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/comm/collective_check.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <system_error>
#include <vector>

namespace trireme {

namespace {

/// As Markdown that is shown letter by letter.
std::string as_code(const std::string& text) {
  std::string code;
  for (const std::string& line : split(text, '\n')) code += "    " + line + '\n';
  return code;
}

constexpr const char *kCommandFile = "cmd-args.log", *kGitFile = "git-info.log", *kParametersFile = "hparams.yaml",
                     *kErrorFile = "nemo_error_log.txt", *kLightningFile = "lightning_logs.txt";

/// NeMo's names for what earlier runs of a folder have left: run_0, run_1, ...
std::filesystem::path next_run_folder(const std::filesystem::path& output) {
  for (int run = 0;; ++run)
    if (const auto folder = output / fmt::format("run_{}", run); !std::filesystem::exists(folder)) return folder;
}

void move_earlier_files(const std::filesystem::path& output) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(output))
    if (entry.is_regular_file() && is_results_file(entry.path().filename().string())) files.push_back(entry.path());
  if (files.empty()) return;
  const std::filesystem::path folder = next_run_folder(output);
  make_directories(folder);
  for (const auto& file : files) {
    std::error_code error;
    std::filesystem::rename(file, folder / file.filename(), error);
    if (error)
      throw WriteError(fmt::format("cannot move {} to {}: {}", file.string(), folder.string(), error.message()));
  }
  log_info(fmt::format("log files of the start before are in {}", folder.string()));
}

}  // namespace

FmsReport::FmsReport(bool labels_of_2024, double tokens_per_rank, int64_t ranks, double now)
    : labels_of_2024_(labels_of_2024),
      tokens_per_rank_(tokens_per_rank),
      ranks_(static_cast<double>(ranks)),
      run_start_(now),
      interval_start_(now) {}

void FmsReport::add(const TrainMetrics& metrics) {
  ++run_steps_;
  ++interval_steps_;
  if (metrics.has_loss) {
    ++interval_losses_;
    loss_sum_ += metrics.loss;
  }
  grad_norm_sum_ += metrics.grad_norm;
  last_ = metrics;
}

std::string FmsReport::lines(double now, int64_t reserved_bytes, int64_t allocated_bytes) {
  TRIREME_CHECK(interval_steps_ > 0, "a report without a step");
  const auto steps = static_cast<double>(interval_steps_), all_steps = static_cast<double>(run_steps_),
             losses = static_cast<double>(interval_losses_);
  const double step_time = (now - interval_start_) / steps, overall_time = (now - run_start_) / all_steps;
  const auto rate = [&](double seconds) { return seconds > 0 ? static_cast<int64_t>(tokens_per_rank_ / seconds) : 0; };
  const int64_t per_day = overall_time > 0 ? static_cast<int64_t>(tokens_per_rank_ * ranks_ / overall_time * 86400) : 0;
  const std::string step = fmt::format("step: {}", last_.step),
                    loss = "loss: " + format_exact(loss_sum_ / std::max(1.0, losses)),
                    lr = "LR: " + format_exact(last_.lr), tokens = fmt::format("tokens seen: {}", last_.tokens),
                    norm = "gradient norm: " + format_exact(grad_norm_sum_ / steps),
                    reserved = fmt::format("reserved memory: {}", reserved_bytes),
                    allocated = fmt::format("allocated memory: {}", allocated_bytes),
                    overall = fmt::format("overall token per gpu per sec: {}", rate(overall_time));
  std::vector<std::string> all;
  if (labels_of_2024_)
    all = {step,
           tokens,
           loss,
           norm,
           fmt::format("speed for these {} steps: {}", interval_steps_, format_exact(step_time)),
           "overall speed: " + format_exact(overall_time),
           lr,
           reserved,
           allocated,
           overall,
           fmt::format("token per day: {}", per_day)};
  else
    all = {step,
           loss,
           lr,
           tokens,
           norm,
           reserved,
           allocated,
           "current step time: " + format_exact(step_time),
           "overall step time: " + format_exact(overall_time),
           fmt::format("current token per gpu per sec: {}", rate(step_time)),
           overall,
           fmt::format("overall token per day: {}", per_day)};
  interval_steps_ = interval_losses_ = 0;
  loss_sum_ = grad_norm_sum_ = 0;
  interval_start_ = now;
  return join(all, "\n");
}

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
              {"epoch", std::floor(m.epoch)},
              {"global_batch_size", static_cast<double>(m.step_rows)}};
    if (fp16_) values.emplace_back("loss_scale", m.loss_scale);
  } else {
    values = {{"train/loss", m.loss},
              {"train/grad_norm", m.grad_norm},
              {"train/lr", m.lr},
              {"train/epoch", m.epoch},
              {"train/skipped_steps", static_cast<double>(m.skipped_steps)},
              {"perf/step_time_s", m.step_time_s},
              {"perf/samples_per_s", m.samples_per_s},
              {"perf/tokens_per_s", m.tokens_per_s},
              {"perf/memory_gib", m.memory_gib}};
    if (m.mfu) values.emplace_back("perf/mfu", *m.mfu);
    if (fp16_) values.emplace_back("train/loss_scale", m.loss_scale);
    for (const auto& [metric, value] : m.more) values.emplace_back("train/" + metric, value);
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
    for (const auto& [metric, value] : m.more) values.emplace_back(prefix + metric, value);
  }
  file_.scalars(m.step, values);
  file_.flush();
}

void TensorboardLog::evaluation(const EvalMetrics& metrics) { evaluated(metrics, "eval", "val"); }

void TensorboardLog::test(const EvalMetrics& metrics) { evaluated(metrics, "test", "test"); }

void TensorboardLog::sample(int64_t step, size_t number, const std::string& prompt, const std::string& text) {
  file_.text(step, fmt::format("samples/{}", number), as_code(prompt) + "\n---\n\n" + as_code(text));
}

bool is_results_file(const std::string& name) {
  for (const char* known : {kCommandFile, kGitFile, kParametersFile, kErrorFile, kLightningFile})
    if (name == known) return true;
  return name.starts_with("events.out.tfevents.") ||
         (name.starts_with("nemo_log_globalrank-") && name.ends_with(".txt"));
}

void open_nemo_results(const Config& config, World& world) {
  const std::filesystem::path output = config.output.dir;
  const int rank = world.communicator().rank();
  collective_check(world.communicator(), [&] {
    if (rank != 0) return;
    move_earlier_files(output);
    write_file_atomic(output / kCommandFile, join(command_line_words(), " "));
    write_file_atomic(output / kGitFile, fmt::format("commit hash: {}\n", kCommit));
    write_file_atomic(output / kParametersFile, print_config(config));
  });
  collective_check(world.communicator(), [&] {
    add_log_file(output / fmt::format("nemo_log_globalrank-{}_localrank-{}.txt", rank, world.launch().local_rank),
                 LogFile::kAll);
    if (rank == 0) add_log_file(output / kErrorFile, LogFile::kWarnings);
  });
  const int ranks = world.communicator().size();
  if (rank == 0)
    write_lightning_log(output, fmt::format("distributed_backend={}, {} process{}", world.communicator().backend(),
                                            ranks, ranks == 1 ? "" : "es"));
}

void write_lightning_log(const std::filesystem::path& output, const std::string& text) {
  try {
    AppendFile file("lines");
    file.open(output / kLightningFile, /*append=*/true);
    file.write(text + '\n');
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

}  // namespace trireme
