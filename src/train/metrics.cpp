#include "metrics.h"

#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace trireme {

namespace {
std::string number(double value) {
  const std::string text = format_exact(value);
  return std::isfinite(value) ? text : '"' + text + '"';
}
std::string named(const NamedMetrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += fmt::format(R"(,"{}":{})", name, number(value));
  return text;
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

/// Where a start goes on from no checkpoint, the steps of the one before are lost: say how many. If it has saved some,
/// the start is that of --allow-fresh.
void warn_of_lost_steps(const std::filesystem::path& path) {
  constexpr std::string_view kTrain = R"({"event":"train","step":)";
  std::ifstream in(path);
  int64_t steps = 0;
  bool saved = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(kTrain)) steps = std::strtoll(line.c_str() + kTrain.size(), nullptr, 10);
    saved |= line.find(R"("event":"save",)") != std::string::npos;
  }
  if (steps > 0)
    log_warn(fmt::format("an earlier start of this run ended after step {}{}", steps,
                         saved ? ": the run starts again, as --allow-fresh says"
                               : " and left no checkpoint to go on from: the run starts again. "
                                 "output.save_every_samples or output.save_every_minutes keeps what was trained"));
}
}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step, bool evaluated) {
  const bool resumes = resume_step && std::filesystem::exists(path);
  if (resumes) {
    // Steps after the checkpoint are repeated: their lines are removed, so that every step is in the file once.
    std::istringstream in(read_text_file(path, ExitCode::kCannotWrite, SIZE_MAX));
    std::string kept, text;
    int64_t foreign = 0;
    bool later = false;
    while (std::getline(in, text)) {
      int64_t step = 0;
      std::optional<EvalMetrics> evaluation;
      bool repeated = false, other = false, save = false;  // repeated: with the evaluation
      try {
        const auto object = nlohmann::json::parse(text);
        step = object.value("step", int64_t{0});
        const std::string event = object.value("event", "");
        other = event == kOtherEvaluation;
        save = event == "save";
        if (event == "eval") evaluation = read_evaluation(object);
        repeated = evaluation || event == "sample";
      } catch (const nlohmann::json::exception&) {
        foreign += later ? 0 : 1;  // the lines after it are those of the run
        continue;
      }
      later = later || step > *resume_step;
      // A save ends some steps after its own.
      if (later && !(save && step <= *resume_step)) continue;
      if (!evaluated && step == *resume_step && repeated) continue;
      if (evaluation) earlier_.push_back(*evaluation);
      if (other) earlier_.clear();
      kept += text + '\n';
    }
    if (foreign > 0)
      log_warn(fmt::format("{}: removed {} that could not be read", path.string(), counted(foreign, "line")));
    write_file_atomic(path, kept);
  } else if (!resume_step) {
    warn_of_lost_steps(path);
  }
  lines_.open(path, /*append=*/resumes);
}

void MetricsFile::write(const TrainMetrics& m) {
  lines_.write(fmt::format(
      R"({{"event":"train","step":{},"samples":{},"tokens":{},"loss":{},"grad_norm":{},"lr":{},"step_time_s":{},)"
      R"("samples_per_s":{},"tokens_per_s":{},"mfu":{},"memory_gib":{}{}{}}})",
      m.step, m.samples, m.tokens, number(m.loss), number(m.grad_norm), number(m.lr), number(m.step_time_s),
      number(m.samples_per_s), number(m.tokens_per_s), m.mfu ? number(*m.mfu) : "null", number(m.memory_gib),
      m.global_batch_size ? fmt::format(R"(,"global_batch_size":{})", *m.global_batch_size) : "", named(m.more)));
}

void MetricsFile::write(const EvalMetrics& m) { write("eval", m); }

void MetricsFile::write_test(const EvalMetrics& m) { write("test", m); }

void MetricsFile::write(const char* event, const EvalMetrics& m) {
  const std::string accuracy = m.mlm_accuracy ? fmt::format(R"("mlm_accuracy":{},)", number(*m.mlm_accuracy)) : "";
  lines_.write(fmt::format(R"({{"event":"{}","step":{},"samples":{},"loss":{},{}"eval_time_s":{}{}}})", event, m.step,
                           m.samples, number(m.loss), accuracy, number(m.seconds), named(m.more)));
}

}  // namespace trireme
