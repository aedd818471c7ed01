#include "metrics.h"

#include "line_file.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/plural.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

namespace trireme {

namespace {
std::string number(double value) {
  const std::string text = format_exact(value);
  return std::isfinite(value) ? text : '"' + text + '"';
}
double read_number(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return found->get<double>();
}

EvalMetrics read_evaluation(const nlohmann::json& object) {
  EvalMetrics metrics{object.value("step", int64_t{0}), object.value("samples", int64_t{0}),
                      read_number(object, "loss"), read_number(object, "eval_time_s")};
  if (object.contains("mlm_accuracy")) metrics.mlm_accuracy = read_number(object, "mlm_accuracy");
  return metrics;
}
}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step, bool evaluated)
    : lines_(std::make_unique<LineFile>()) {
  const bool resumes = resume_step && std::filesystem::exists(path);
  if (resumes) {
    // Steps after the checkpoint are repeated: their lines are removed, so that every step is in the file once.
    std::ifstream in(path);
    std::string kept, text;
    int64_t foreign = 0;
    while (std::getline(in, text)) {
      int64_t step = 0;
      std::optional<EvalMetrics> evaluation;
      try {
        const auto object = nlohmann::json::parse(text);
        step = object.value("step", int64_t{0});
        if (object.value("event", "") == "eval") evaluation = read_evaluation(object);
      } catch (const nlohmann::json::exception&) {
        ++foreign;  // the lines after it are those of the run
        continue;
      }
      if (step > *resume_step) break;
      if (!evaluated && step == *resume_step && evaluation) continue;
      if (evaluation) earlier_.push_back(*evaluation);
      kept += text + '\n';
    }
    if (foreign > 0)
      log_warn(fmt::format("{}: removed {} that could not be read", path.string(), counted(foreign, "line")));
    write_file_atomic(path, kept);
  }
  lines_->open(path, /*append=*/resumes);
}

MetricsFile::~MetricsFile() = default;

void MetricsFile::line(const std::string& text) { lines_->write(text); }

void MetricsFile::write_run(const std::string& json_object) { line(json_object); }

void MetricsFile::write(const TrainMetrics& m) {
  line(fmt::format(
      R"({{"event":"train","step":{},"samples":{},"tokens":{},"loss":{},"grad_norm":{},"lr":{},"step_time_s":{},)"
      R"("samples_per_s":{},"tokens_per_s":{},"mfu":{},"memory_gib":{}{}}})",
      m.step, m.samples, m.tokens, number(m.loss), number(m.grad_norm), number(m.lr), number(m.step_time_s),
      number(m.samples_per_s), number(m.tokens_per_s), m.mfu ? number(*m.mfu) : "null", number(m.memory_gib),
      m.global_batch_size ? fmt::format(R"(,"global_batch_size":{})", *m.global_batch_size) : ""));
}

void MetricsFile::write(const EvalMetrics& m) { write("eval", m); }

void MetricsFile::write_test(const EvalMetrics& m) { write("test", m); }

void MetricsFile::write(const char* event, const EvalMetrics& m) {
  const std::string accuracy = m.mlm_accuracy ? fmt::format(R"("mlm_accuracy":{},)", number(*m.mlm_accuracy)) : "";
  line(fmt::format(R"({{"event":"{}","step":{},"samples":{},"loss":{},{}"eval_time_s":{}}})", event, m.step, m.samples,
                   number(m.loss), accuracy, number(m.seconds)));
}

std::string console_line(const TrainMetrics& m, double eta_seconds, size_t columns) {
  struct Part {
    int leaves;  // the smallest first; 0: stays
    std::string text;
  };
  std::vector<Part> parts = {{0, fmt::format("step {}/{}", m.step, m.max_steps)},
                             {0, fmt::format("loss {:.4f}", m.loss)},
                             {4, fmt::format("gnorm {:.3g}", m.grad_norm)},
                             {5, fmt::format("lr {:.2e}", m.lr)},
                             {0, format_duration(m.step_time_s)},
                             {1, fmt::format("{:.3g} samples/s", m.samples_per_s)},
                             {0, format_short(m.tokens_per_s) + " tok/s"}};
  if (m.mfu) parts.push_back({3, fmt::format("MFU {:.1f}%", *m.mfu * 100)});
  parts.push_back({2, fmt::format("{:.1f} GiB", m.memory_gib)});
  if (const std::string eta = eta_text(eta_seconds); !eta.empty()) parts.push_back({0, eta});
  for (int leaving = 1;; ++leaving) {
    std::string text;
    for (const Part& part : parts) text += (text.empty() ? "" : " | ") + part.text;
    if (columns == 0 || text.size() <= columns || leaving > 5) return text;
    std::erase_if(parts, [&](const Part& part) { return part.leaves == leaving; });
  }
}

std::string eta_text(double seconds) {
  if (!(seconds >= 0.5)) return "";
  return "ETA " + (seconds < 59.5 ? fmt::format("{:.0f} s", seconds) : format_duration(seconds));
}

std::string test_console_line(const EvalMetrics& m) {
  std::string text = fmt::format("test after step {} | loss {:.5f}", m.step, m.loss);
  if (m.mlm_accuracy) text += fmt::format(" | accuracy {:.5f}", *m.mlm_accuracy);
  return text + fmt::format(" | {}", format_duration(m.seconds));
}

std::string console_line(const EvalMetrics& m, std::optional<double> target, std::optional<double> target_accuracy) {
  std::string text =
      fmt::format("eval after step {} ({} samples) | loss {:.5f}", m.step, format_count(m.samples), m.loss);
  if (m.mlm_accuracy) text += fmt::format(" | accuracy {:.5f}", *m.mlm_accuracy);
  if (m.mlm_accuracy && target_accuracy)
    text += fmt::format(" | target {:.4g}{}", *target_accuracy, *m.mlm_accuracy >= *target_accuracy ? " reached" : "");
  if (target) text += fmt::format(" | target {:.4g}{}", *target, m.loss <= *target ? " reached" : "");
  return text + fmt::format(" | {}", format_duration(m.seconds));
}

}  // namespace trireme
