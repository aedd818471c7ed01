#include "trireme/train/mlperf_log.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>

namespace trireme {

MlperfLog::MlperfLog(const std::filesystem::path& path) : enabled_(!path.empty()) {
  if (!enabled_) return;
  out_.open(path, std::ios::app);
  if (!out_) throw WriteError(fmt::format("cannot open {} for writing", path.string()));
}

void MlperfLog::write(const char* type, const char* key, const std::string& value, const Metadata& metadata, const char* file,
                      int line) {
  if (!enabled_) return;
  std::string fields = fmt::format(R"("file": "{}", "lineno": {})", std::filesystem::path(file).filename().string(), line);
  for (const auto& [name, json] : metadata) fields += fmt::format(R"(, "{}": {})", name, json);
  const std::string text =
      fmt::format(R"(:::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "{}", "key": "{}", "value": {}, "metadata": {{{}}}}})",
                  unix_milliseconds(), type, key, value, fields);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  out_ << text << '\n' << std::flush;
  if (!out_) throw WriteError("cannot write to mllog.log: is the disk full?");
}

void MlperfLog::event(const char* key, const std::string& value, const Metadata& metadata, int line, const char* file) {
  write("POINT_IN_TIME", key, value, metadata, file, line);
}
void MlperfLog::start(const char* key, const Metadata& metadata, int line, const char* file) {
  write("INTERVAL_START", key, "null", metadata, file, line);
}
void MlperfLog::end(const char* key, const Metadata& metadata, int line, const char* file) {
  write("INTERVAL_END", key, "null", metadata, file, line);
}

void log_mlperf_configuration(MlperfLog& log, const Config& config, int64_t train_samples, int64_t eval_samples,
                              int64_t accumulation_steps, int nodes) {
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  const auto environment = [](const char* name, const char* fallback) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr && *value != '\0' ? value : fallback);
  };
  log.event("submission_benchmark", quoted(environment("MLPERF_SUBMISSION_BENCHMARK", "llama2_70b_lora")));
  log.event("submission_org", quoted(environment("MLPERF_SUBMISSION_ORG", "Trireme")));
  log.event("submission_division", quoted(environment("MLPERF_SUBMISSION_DIVISION", "closed")));
  log.event("submission_status", quoted(environment("MLPERF_SUBMISSION_STATUS", "onprem")));
  log.event("submission_platform", quoted(fmt::format("{}x{}", nodes, environment("MLPERF_SUBMISSION_PLATFORM", "unnamed"))));
  log.event("opt_base_learning_rate", format_exact(config.optimizer.lr));
  log.event("opt_adamw_weight_decay", format_exact(config.optimizer.weight_decay));
  log.event("opt_gradient_clip_norm", format_exact(config.optimizer.grad_clip));
  log.event("opt_learning_rate_warmup_factor",
            format_exact(static_cast<double>(config.schedule.warmup_steps) / static_cast<double>(config.train.max_steps)));
  if (config.lora) {
    log.event("lora_rank", std::to_string(config.lora->r));
    log.event("lora_alpha", format_exact(config.lora->alpha));
  }
  log.event("opt_learning_rate_training_steps", std::to_string(config.train.max_steps));
  log.event("global_batch_size", std::to_string(config.batch.global_batch_size));
  log.event("train_samples", std::to_string(train_samples));
  log.event("eval_samples", std::to_string(eval_samples));
  log.event("gradient_accumulation_steps", std::to_string(accumulation_steps));
  log.event("seed", std::to_string(config.train.seed));
}

}  // namespace trireme
