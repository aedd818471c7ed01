#include "trireme/train/metrics.h"

#include "line_file.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace trireme {

namespace {
std::string number(double value) {
  const std::string text = format_exact(value);
  return std::isfinite(value) ? text : '"' + text + '"';
}
}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step, bool evaluated)
    : lines_(std::make_unique<LineFile>()) {
  const bool resumes = resume_step && std::filesystem::exists(path);
  if (resumes) {
    // Steps after the checkpoint are repeated: their lines are removed, so that every step is in the file once.
    std::ifstream in(path);
    std::string kept, text;
    while (std::getline(in, text)) {
      const auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (object.is_discarded()) break;
      const int64_t step = object.value("step", int64_t{0});
      if (step > *resume_step) break;
      if (!evaluated && step == *resume_step && object.value("event", "") == "eval") continue;
      kept += text + '\n';
    }
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

void MetricsFile::write(const EvalMetrics& m) {
  const std::string accuracy = m.mlm_accuracy ? fmt::format(R"("mlm_accuracy":{},)", number(*m.mlm_accuracy)) : "";
  line(fmt::format(R"({{"event":"eval","step":{},"samples":{},"loss":{},{}"eval_time_s":{}}})", m.step, m.samples,
                   number(m.loss), accuracy, number(m.seconds)));
}

std::string console_line(const TrainMetrics& m, double eta_seconds) {
  std::string text = fmt::format(
      "step {}/{} | loss {:.4f} | gnorm {:.3g} | lr {:.2e} | {} | {:.3g} samples/s | {} tok/s", m.step, m.max_steps,
      m.loss, m.grad_norm, m.lr, format_duration(m.step_time_s), m.samples_per_s, format_short(m.tokens_per_s));
  if (m.mfu) text += fmt::format(" | MFU {:.1f}%", *m.mfu * 100);
  text += fmt::format(" | {:.1f} GiB | ETA {}", m.memory_gib, format_duration(eta_seconds));
  return text;
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
