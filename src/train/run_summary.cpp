#include "run_summary.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <system_error>

namespace trireme {

namespace {

using Json = nlohmann::ordered_json;

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(format_exact(value)); }

Json optional_number(const std::optional<double>& value) { return value ? json_number(*value) : Json(); }

Json evaluation_json(const std::optional<EvalMetrics>& evaluation) {
  if (!evaluation) return {};
  Json json = {{"step", evaluation->step}, {"loss", json_number(evaluation->loss)}};
  if (evaluation->mlm_accuracy) json["mlm_accuracy"] = json_number(*evaluation->mlm_accuracy);
  return json;
}

std::string evaluation_text(const EvalMetrics& evaluation) {
  std::string text = fmt::format("{:.5g}", evaluation.loss);
  if (evaluation.mlm_accuracy) text += fmt::format(", accuracy {:.4f}", *evaluation.mlm_accuracy);
  return text + fmt::format(" (step {})", evaluation.step);
}

std::string summary_line(const char* head, const std::string& text) { return fmt::format("  {:<12}{}", head, text); }

std::string run_end_text(const RunSummary& summary) {
  switch (summary.end) {
    case RunEnd::kDone: return "all steps are done";
    case RunEnd::kTarget: return "the target of the evaluation was reached";
    case RunEnd::kPatience: return "train.patience evaluations in a row were not better than the best";
    case RunEnd::kSignal: return "stopped by a signal";
    case RunEnd::kMaxTime: return "stopped before train.max_time had passed; the state is saved";
    case RunEnd::kFailed: return "failed";
  }
  return "";
}

std::string run_target_text(const RunSummary& s) {
  std::vector<std::string> targets;
  if (s.target_loss) targets.push_back(fmt::format("eval.target_loss {:.6g}", *s.target_loss));
  if (s.target_accuracy) targets.push_back(fmt::format("eval.target_accuracy {:.6g}", *s.target_accuracy));
  return fmt::format("{} {}", join(targets, " or "), s.target_reached ? "reached" : "not reached");
}

/// As transformers' Trainer prints it: a Python dict, floats of four decimals at most.
std::string transformers_line(const RunSummary& s) {
  const auto rounded = [](double value, int digits) {
    const double scale = std::pow(10.0, digits);
    const double result = std::round(value * scale) / scale;
    return std::isfinite(result) && result == std::floor(result) && std::abs(result) < 1e15
               ? fmt::format("{:.1f}", result)
               : format_exact(result);
  };
  std::string text = fmt::format("{{'train_runtime': {}, 'train_samples_per_second': {}, 'train_steps_per_second': {}",
                                 rounded(s.runtime_s, 4), rounded(s.samples_per_s, 3), rounded(s.steps_per_s(), 3));
  if (const auto loss = s.train_loss()) text += fmt::format(", 'train_loss': {}", format_exact(*loss));
  return text + fmt::format(", 'epoch': {}}}", rounded(s.epoch, 2));
}

}  // namespace

void RunTotals::add(const TrainMetrics& metrics) {
  ++steps;
  rows += metrics.step_rows;
  step_seconds += metrics.step_time_s;
  flops += metrics.flops;
  if (!metrics.has_loss) return;
  last_loss = metrics.loss;
  if (!std::isfinite(metrics.loss)) return;
  ++losses;
  loss_sum += metrics.loss;
}

void RunTotals::add(const EvalMetrics& evaluation) {
  if (!first) first = evaluation;
  if (!best || evaluation.score() > best->score() || std::isnan(best->score())) best = evaluation;
  last = evaluation;
}

const char* run_end_word(RunEnd end) {
  switch (end) {
    case RunEnd::kDone: return "done";
    case RunEnd::kTarget: return "target";
    case RunEnd::kPatience: return "patience";
    case RunEnd::kSignal: return "signal";
    case RunEnd::kMaxTime: return "max_time";
    case RunEnd::kFailed: return "failed";
  }
  return "";
}

double RunSummary::steps_per_s() const { return runtime_s > 0 ? static_cast<double>(totals.steps) / runtime_s : 0; }

std::optional<double> RunSummary::tokens_per_s_per_rank() const {
  if (totals.step_seconds <= 0) return std::nullopt;
  return static_cast<double>(totals.rows) * tokens_per_step_row / totals.step_seconds / static_cast<double>(ranks);
}

std::optional<double> RunSummary::mfu() const {
  if (!peak_flops || totals.step_seconds <= 0) return std::nullopt;
  return totals.flops / totals.step_seconds / (*peak_flops * static_cast<double>(ranks));
}

std::optional<double> RunSummary::train_loss() const {
  if (totals.losses == 0) return std::nullopt;
  return totals.loss_sum / static_cast<double>(totals.losses);
}

std::string summary_json(const RunSummary& s) {
  Json json = {{"event", "end"},
               {"outcome", run_end_word(s.end)},
               {"exit_code", s.exit_code},
               {"step", s.step},
               {"max_steps", s.max_steps},
               {"resumed_after_step", s.resumed_after},
               {"samples", s.samples},
               {"tokens", s.tokens},
               {"train_runtime", json_number(s.runtime_s)},
               {"train_samples_per_second", json_number(s.samples_per_s)},
               {"train_steps_per_second", json_number(s.steps_per_s())},
               {"train_loss", optional_number(s.train_loss())},
               {"epoch", json_number(s.epoch)},
               {"tokens_per_s_per_rank", optional_number(s.tokens_per_s_per_rank())},
               {"mfu", optional_number(s.mfu())},
               {"eval_first", evaluation_json(s.totals.first)},
               {"eval_best", evaluation_json(s.totals.best)},
               {"eval_last", evaluation_json(s.totals.last)},
               {"test", evaluation_json(s.totals.test)},
               {"target_loss", optional_number(s.target_loss)},
               {"target_accuracy", optional_number(s.target_accuracy)},
               {"target_reached", s.target_loss || s.target_accuracy ? Json(s.target_reached) : Json()},
               {"peak_memory_bytes", json_number(s.peak_memory)},
               {"planned_memory_bytes", optional_number(s.planned_memory)},
               {"output", s.output.string()},
               {"files", s.files}};
  if (!s.reason.empty()) json["reason"] = s.reason;
  if (!s.next.empty()) json["next"] = s.next;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> summary_lines(const RunSummary& s) {
  std::vector<std::string> lines = {
      fmt::format("run ended after step {} of {}: {}", s.step, s.max_steps, run_end_text(s))};
  if (!s.reason.empty()) lines.push_back(summary_line("reason", s.reason));
  lines.push_back(
      summary_line("time", fmt::format("{}: {}, {:.4g} steps/s, {:.4g} samples/s", format_duration(s.runtime_s),
                                       counted(s.totals.steps, "step"), s.steps_per_s(), s.samples_per_s)));
  if (const auto rate = s.tokens_per_s_per_rank())
    lines.push_back(summary_line("speed", fmt::format("{} tok/s per rank in steps{}", format_short(*rate),
                                                      s.mfu() ? fmt::format(", MFU {:.1f} %", *s.mfu() * 100) : "")));
  if (const auto loss = s.train_loss())
    lines.push_back(summary_line("train loss", fmt::format("mean {:.5g}, last {:.5g}", *loss, s.totals.last_loss)));
  if (s.totals.last)
    lines.push_back(
        summary_line("evaluation", fmt::format("first {}, best {}, last {}", evaluation_text(*s.totals.first),
                                               evaluation_text(*s.totals.best), evaluation_text(*s.totals.last))));
  if (s.totals.test) lines.push_back(summary_line("test", evaluation_text(*s.totals.test)));
  if (s.target_loss || s.target_accuracy) lines.push_back(summary_line("target", run_target_text(s)));
  // A CPU process' peak is its whole resident set, libraries included: it cannot be compared with a plan.
  std::string memory = fmt::format("peak {}", format_bytes(s.peak_memory));
  if (s.planned_memory)
    memory += fmt::format(", plan {} ({:+.1f} %)", format_bytes(*s.planned_memory),
                          100 * (s.peak_memory / *s.planned_memory - 1));
  lines.push_back(summary_line("memory", memory));
  lines.push_back(summary_line("files", fmt::format("{}: {}", s.output.string(), join(s.files, " "))));
  if (!s.next.empty()) lines.push_back(summary_line("next", s.next));
  lines.push_back(transformers_line(s));
  return lines;
}

std::vector<std::string> left_files(const std::filesystem::path& output) {
  std::vector<std::string> files;
  std::error_code error;
  for (const char* name : {"adapter", "model", kBestFolder, "checkpoints", "tensorboard", "profile"})
    if (std::filesystem::is_directory(output / name, error) && !std::filesystem::is_empty(output / name, error))
      files.push_back(std::string(name) + "/");
  for (const char* name : {"config.yaml", "metrics.jsonl", "mllog.log"})
    if (std::filesystem::exists(output / name, error)) files.emplace_back(name);
  files.emplace_back("summary.json");
  return files;
}

std::string next_command(const Config& config, RunEnd end, int exit_code) {
  const std::filesystem::path output = config.output.dir;
  if (end == RunEnd::kSignal && exit_code != static_cast<int>(ExitCode::kStopped))
    return "the same command again starts from the last checkpoint, if there is one";
  if (end == RunEnd::kSignal || end == RunEnd::kMaxTime) return "the same command again goes on from here";
  if (end == RunEnd::kFailed) return "";
  return fmt::format("trireme report {} --output {}", shell_quote(output.string()),
                     shell_quote((output / "report.html").string()));
}

}  // namespace trireme
