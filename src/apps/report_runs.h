#pragma once
// The parts of a run that `trireme report` reads: metrics.jsonl, config.yaml beside it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Values over steps, in the order of the file. Values that are not finite are NaN.
struct ReportSeries {
  std::vector<double> steps, values;
};

/// "1 of 40 evaluation losses is not finite, the first at step 12"; empty where all are finite. `what`: "evaluation".
std::string not_finite_losses(const ReportSeries& series, const char* what);

struct ReportEvent {
  enum class Kind { kSave, kSpike, kSkipped, kStop, kResume, kFailure } kind = Kind::kSave;
  double step = 0;
  std::string text;
};
/// By kind: the name, and the class in CSS of its marks.
struct ReportEventKind {
  const char *name, *style;
};
inline constexpr ReportEventKind kReportEvents[] = {{"checkpoint", "save"},   {"loss spike", "spike"},
                                                    {"skipped step", "skip"}, {"stop", "stop"},
                                                    {"resume", "resume"},     {"failure", "fail"}};

/// The newest line "end", where the run has one.
struct ReportEnd {
  std::string outcome, reason;
  std::optional<double> peak_memory, planned_memory;  // bytes
};

/// What the model answered to one of eval.prompts after an evaluation.
struct ReportSample {
  double step = 0;
  std::string prompt, text;
};

/// A process of a run: it wrote the values of tokens_per_s from number `first` on.
struct ReportProcess {
  size_t first = 0;
  int64_t ranks = 1;
};

struct ReportRun {
  std::string name;
  ReportSeries loss, eval_loss, eval_accuracy, test_loss, lr, grad_norm, tokens_per_s, step_time, memory_gib, mfu;
  ReportSeries reward_accuracy, reward_margin, eval_margin;  // of pairs of answers
  std::vector<ReportProcess> processes;
  std::vector<ReportEvent> events;
  std::vector<ReportSample> samples;
  std::optional<ReportEnd> end;
  std::string commit, hosts, devices;
  double runtime_s = 0;        // of all processes of the run
  double process_steps_s = 0;  // of the steps since the newest line "run" or "end"
  int64_t last_step = 0;
  std::vector<std::pair<std::string, std::string>> config;  // every key and value; empty: there is no config.yaml
};

/// `path`: an output.dir, or a metrics.jsonl. A last line without an end, of a run that still writes it, is skipped.
/// DataError with file and line.
ReportRun read_report_run(const std::filesystem::path& path, bool with_config);

}  // namespace trireme
