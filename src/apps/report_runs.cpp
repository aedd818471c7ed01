#include "report_runs.h"

#include "data/prepare/progress.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <string_view>

namespace trireme {

namespace {

// Lines of steps in metrics.jsonl; a long run has millions.

/// The values of a step that a report draws, in the order of StepLine::values.
constexpr std::array<std::string_view, 9> kStepKeys = {
    "loss",       "lr",  "grad_norm",          "tokens_per_s",   "step_time_s",
    "memory_gib", "mfu", "rewards/accuracies", "rewards/margins"};

struct StepLine {
  double step = 0;
  /// Absent and null values have none; a value that is no number ("nan") is NaN.
  std::array<std::optional<double>, kStepKeys.size()> values;
};

/// The unread rest of a line. Each function consumes what it accepts; after a refusal the line is given up.
struct FlatScanner {
  std::string_view rest;

  bool take(std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }

  /// A quoted string without escapes.
  std::optional<std::string_view> string() {
    if (!take("\"")) return std::nullopt;
    size_t size = 0;
    while (size < rest.size() && rest[size] >= ' ' && rest[size] <= '~' && rest[size] != '"' && rest[size] != '\\')
      ++size;
    const std::string_view found = rest.substr(0, size);
    rest.remove_prefix(size);
    return take("\"") ? std::optional(found) : std::nullopt;
  }

  /// from_chars reads more than JSON has: "01", "1.", ".5", "inf".
  std::optional<double> number() {
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return std::nullopt;
    const std::string_view text(rest.data(), static_cast<size_t>(end - rest.data()));
    const std::string_view digits = text.substr(text[0] == '-' ? 1 : 0);
    if (digits.empty() || !is_digit(digits[0]) || (digits[0] == '0' && digits.size() > 1 && is_digit(digits[1])))
      return std::nullopt;
    if (const size_t point = digits.find('.');
        point != std::string_view::npos && (point + 1 == digits.size() || !is_digit(digits[point + 1])))
      return std::nullopt;
    rest.remove_prefix(text.size());
    return value;
  }
};

/// Reads the form in which the trainer writes a step: `{"event":"train","step":1,…}`, one object without nesting and
/// blanks, keys and strings of printable ASCII without escapes. nullopt for any other text, valid JSON or not: that is
/// the JSON library's to read. The library accepts every text that this function accepts, with the same values; it is
/// ten times slower, because it makes a tree of objects on the heap.
std::optional<StepLine> read_step_line(std::string_view text) {
  FlatScanner scanner{text};
  if (!scanner.take(R"({"event":"train","step":)")) return std::nullopt;
  StepLine line;
  const auto step = scanner.number();
  if (!step) return std::nullopt;
  line.step = *step;
  while (scanner.take(",")) {
    const auto key = scanner.string();
    if (!key || *key == "event" || *key == "step" || !scanner.take(":")) return std::nullopt;
    std::optional<double> value;
    if (scanner.rest.starts_with('"')) {
      if (!scanner.string()) return std::nullopt;
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (!scanner.take("null")) {
      value = scanner.number();
      if (!value) return std::nullopt;
    }
    if (const auto* found = std::find(kStepKeys.begin(), kStepKeys.end(), *key); found != kStepKeys.end())
      line.values[static_cast<size_t>(found - kStepKeys.begin())] = value;
  }
  return scanner.rest == "}" ? std::optional(line) : std::nullopt;
}

constexpr double kLargestStep = 9007199254740992.0;  // 2^53

double value_of(const nlohmann::json& line, std::string_view key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::optional<double> finite_of(const nlohmann::json& line, const char* key) {
  const double value = value_of(line, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string text_of(const nlohmann::json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// "node1, node2": each once. "8 x NVIDIA H200": ranks on GPUs have one each, ranks on CPUs share their host's.
std::string listed(const nlohmann::json& line, const char* key, bool count_each) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array()) return "";
  std::map<std::string, int> counts;
  for (const auto& entry : *found)
    if (entry.is_string()) ++counts[entry.get<std::string>()];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts)
    parts.push_back(count_each && count > 1 ? fmt::format("{} x {}", count, name) : name);
  if (parts.size() > 4) parts = {parts[0], parts[1], parts[2], fmt::format("and {} more", parts.size() - 3)};
  return join(parts, ", ");
}

/// Destinations of the values of kStepKeys.
constexpr std::array<ReportSeries ReportRun::*, kStepKeys.size()> kStepSeries = {
    &ReportRun::loss,         &ReportRun::lr,         &ReportRun::grad_norm, &ReportRun::tokens_per_s,
    &ReportRun::step_time,    &ReportRun::memory_gib, &ReportRun::mfu,       &ReportRun::reward_accuracy,
    &ReportRun::reward_margin};

void add(ReportSeries& series, double step, const nlohmann::json& line, std::string_view key) {
  const auto found = line.find(key);
  if (found == line.end() || found->is_null()) return;
  series.steps.push_back(step);
  series.values.push_back(value_of(line, key));
}

bool is_step(double step) { return step >= 0 && step <= kLargestStep; }

/// The time of a process without a line "end" is the time of its steps.
void add_process_time(ReportRun& run, const std::optional<double>& runtime) {
  run.runtime_s += runtime.value_or(run.process_steps_s);
  run.process_steps_s = 0;
}

void add_step(ReportRun& run, const StepLine& line) {
  run.last_step = std::max(run.last_step, static_cast<int64_t>(line.step));
  for (size_t i = 0; i < line.values.size(); ++i) {
    if (!line.values[i]) continue;
    ReportSeries& series = run.*kStepSeries[i];
    series.steps.push_back(line.step);
    series.values.push_back(*line.values[i]);
    if (kStepSeries[i] == &ReportRun::step_time && std::isfinite(*line.values[i]))
      run.process_steps_s += *line.values[i];
  }
}

void add_end(ReportRun& run, double step, const nlohmann::json& line) {
  ReportEnd end;
  end.outcome = text_of(line, "outcome");
  end.reason = text_of(line, "reason");
  end.peak_memory = finite_of(line, "peak_memory_bytes");
  end.planned_memory = finite_of(line, "planned_memory_bytes");
  if (end.outcome == "failed")
    run.events.push_back({ReportEvent::Kind::kFailure, step, end.reason});
  else if (end.outcome == "signal" || end.outcome == "max_time")
    run.events.push_back({ReportEvent::Kind::kStop, step, end.reason});
  run.end = end;
  add_process_time(run, finite_of(line, "train_runtime"));
}

void add_line(ReportRun& run, const nlohmann::json& line, double step) {
  const std::string event = text_of(line, "event");
  if (event == "train") {
    for (size_t i = 0; i < kStepKeys.size(); ++i) add(run.*kStepSeries[i], step, line, kStepKeys[i]);
    run.process_steps_s += finite_of(line, "step_time_s").value_or(0);
  } else if (event == "eval") {
    add(run.eval_loss, step, line, "loss");
    add(run.eval_accuracy, step, line, line.contains("mlm_accuracy") ? "mlm_accuracy" : "rewards/accuracies");
    add(run.eval_margin, step, line, "rewards/margins");
  } else if (event == "test") {
    add(run.test_loss, step, line, "loss");
  } else if (event == "sample") {
    run.samples.push_back({step, text_of(line, "prompt"), text_of(line, "text")});
  } else if (event == "save") {
    run.events.push_back({ReportEvent::Kind::kSave, step, "checkpoint"});
  } else if (event == "save_failed") {
    run.events.push_back({ReportEvent::Kind::kFailure, step, "a save failed"});
  } else if (event == "spike") {
    const auto skipped = line.find("skipped");
    const bool skip = skipped != line.end() && skipped->is_boolean() && skipped->get<bool>();
    run.events.push_back({skip ? ReportEvent::Kind::kSkipped : ReportEvent::Kind::kSpike, step,
                          fmt::format("loss spike {:.5g}{}", value_of(line, "loss"), skip ? ", skipped" : "")});
  } else if (event == "end") {
    add_end(run, step, line);
  } else if (event == "run") {
    run.end.reset();
    add_process_time(run, std::nullopt);
    run.commit = text_of(line, "commit");
    run.hosts = listed(line, "hosts", false);
    run.devices = listed(line, "devices", text_of(line, "device_type") != "cpu");
    run.processes.push_back(
        {run.tokens_per_s.values.size(), static_cast<int64_t>(finite_of(line, "world_size").value_or(1))});
    if (const auto after = finite_of(line, "resumed_after_step"); after && *after > 0)
      run.events.push_back({ReportEvent::Kind::kResume, *after, "resumed"});
  }
}

}  // namespace

std::string not_finite_losses(const ReportSeries& series, const char* what) {
  const auto is_missing = [](double value) { return !std::isfinite(value); };
  const auto missing = std::ranges::count_if(series.values, is_missing);
  if (missing == 0) return "";
  const auto first = std::ranges::find_if(series.values, is_missing) - series.values.begin();
  return fmt::format("{} of {} {} not finite, the first at step {}", format_count(missing),
                     counted(series.values.size(), fmt::format("{} loss", what), fmt::format("{} losses", what)),
                     missing == 1 ? "is" : "are", format_count(static_cast<int64_t>(series.steps[first])));
}

ReportRun read_report_run(const std::filesystem::path& path, bool with_config) {
  const bool folder = std::filesystem::is_directory(path);
  const std::filesystem::path file = folder ? path / "metrics.jsonl" : path;
  // A named one would block; a shell's stands behind a link in /dev/fd.
  std::error_code no_status;
  if (std::filesystem::is_fifo(std::filesystem::symlink_status(file, no_status)))
    throw DataError(fmt::format("cannot read {}: it is not a regular file", file.string()));
  std::ifstream in(file);
  if (!in)
    throw DataError(fmt::format("cannot open {}: name the output.dir of a run, or its metrics.jsonl", file.string()));
  ReportRun run;
  const std::filesystem::path whole = std::filesystem::absolute(folder ? path / "x" : path).parent_path();
  run.name = tidy_path(whole).filename().string();
  std::error_code no_size;  // of a pipe
  const auto bytes = std::filesystem::file_size(file, no_size);
  Progress progress(file.string(), no_size ? 0.0 : static_cast<double>(bytes), "MB", 1e6);
  int64_t number = 0;
  double done = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    done += static_cast<double>(text.size()) + 1;
    if (number % 10000 == 0 && !no_size) progress.update(done);
    if (const auto step_line = read_step_line(text); step_line && is_step(step_line->step)) {
      add_step(run, *step_line);
      continue;
    }
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) {
      if (in.eof()) break;
      throw DataError(fmt::format("{}:{}: not a JSON object", file.string(), number));
    }
    const double step = line.contains("step") ? value_of(line, "step") : 0;
    if (!is_step(step))
      throw DataError(fmt::format("{}:{}: \"step\" is {}, expected a whole number", file.string(), number,
                                  line["step"].dump().substr(0, 40)));
    run.last_step = std::max(run.last_step, static_cast<int64_t>(step));
    add_line(run, line, step);
  }
  add_process_time(run, std::nullopt);
  if (run.loss.steps.empty() && run.eval_loss.steps.empty())
    throw DataError(fmt::format("{} has no line of a step or an evaluation", file.string()));
  const std::filesystem::path config = file.parent_path() / "config.yaml";
  if (with_config && std::filesystem::exists(config))
    run.config = flatten_config(parse_config(read_text_file(config, ExitCode::kData), config.string()));
  return run;
}

}  // namespace trireme
