#include "mlperf_rules.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "trireme/base/text.h"

namespace trireme {

namespace {

/// What the compliance checker compares (mlperf_logging 5.1.0, closed_llama31_8b.yaml), and the target and cadence of
/// training_rules.adoc.
struct Llama31Rules {
  static constexpr int64_t kSequence = 8192, kMaxSteps = 1'200'000, kEvalSamples = 1024, kEvalEvery = 12'288;
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-5, kDecay = 0.1, kClip = 1.0, kTarget = 3.3;
};

bool closed_division() {
  const char* division = std::getenv("MLPERF_SUBMISSION_DIVISION");
  return division == nullptr || *division == '\0' || std::string_view(division) == "closed";
}

std::string show(int64_t value) { return std::to_string(value); }
std::string show(double value) { return format_exact(value); }
std::string show(const std::string& value) { return value; }

}  // namespace

void check_mlperf_pretraining(const Config& config, const ConfigFamily& family, std::vector<RuleProblem>& problems) {
  const FeatureSet& features = family.features;
  if (family.program.empty() || !config.logging.mlperf || config.lora || !features.has(Feature::kMlperfLog) ||
      !features.has(Feature::kAdapters) || !closed_division())
    return;
  const auto needs = [&](const char* key, const auto& value, const auto& wanted) {
    if (value == wanted) return;
    problems.push_back({key,
                        {key, "logging.mlperf"},
                        fmt::format("{} {} is not what MLPerf's llama31_8b has in the closed division: {} (a run that "
                                    "is none: MLPERF_SUBMISSION_DIVISION=open, or logging.mlperf: false)",
                                    key, show(value), show(wanted))});
  };
  using Rules = Llama31Rules;
  needs("data.seq_length", config.data.seq_length, Rules::kSequence);
  needs("optimizer.name", config.optimizer.name, std::string("adamw"));
  needs("optimizer.eps", config.optimizer.eps, Rules::kEpsilon);
  needs("optimizer.weight_decay", config.optimizer.weight_decay, Rules::kDecay);
  needs("optimizer.grad_clip", config.optimizer.grad_clip, Rules::kClip);
  if (config.optimizer.betas.size() == 2 &&
      (config.optimizer.betas[0] != Rules::kBeta1 || config.optimizer.betas[1] != Rules::kBeta2))
    needs("optimizer.betas", fmt::format("[{}, {}]", show(config.optimizer.betas[0]), show(config.optimizer.betas[1])),
          fmt::format("[{}, {}]", show(Rules::kBeta1), show(Rules::kBeta2)));
  needs("schedule.name", config.schedule.name, std::string("cosine"));
  needs("schedule.constant_steps", config.schedule.constant_steps, int64_t{0});
  needs("train.max_steps", config.train.max_steps, Rules::kMaxSteps);
  needs("eval.samples", config.eval.samples.value_or(0), Rules::kEvalSamples);
  needs("eval.every_samples", config.eval.every_samples.value_or(0), Rules::kEvalEvery);
  needs("eval.target_loss", config.eval.target_loss.value_or(0), Rules::kTarget);
  needs("eval.skip_first", config.eval.skip_first.value_or("null"), std::string("null"));
}

}  // namespace trireme
