#include "trireme/config/mlperf_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "rules.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

namespace trireme {

namespace {

/// A name, and the values that it may have, as print_config() writes them.
struct Fixed {
  const char* name;
  std::vector<std::string> allowed;
};

struct Benchmark {
  const char* name;
  std::vector<Fixed> keys;   // of the configuration
  std::vector<Fixed> model;  // of config.json and of the rows
};

// Sources: training_rules.adoc (hyper-parameters, quality targets, evaluation cadence), the compliance checker's
// closed_*.yaml, and the reference implementations for what these leave open: what no list calls free is the
// reference's.
const Benchmark kLora = {"llama2_70b_lora",
                         {{"model.init", {"checkpoint"}},
                          {"lora.r", {"16"}},
                          {"lora.alpha", {"32"}},
                          {"lora.dropout", {"0.1"}},
                          {"lora.target_modules", {"[qkv_proj, o_proj]", "[o_proj, qkv_proj]"}},
                          {"lora.exclude_modules", {"null"}},
                          {"lora.layers_to_transform", {"null"}},
                          {"lora.use_rslora", {"false"}},
                          {"lora.rank_pattern", {"null"}},
                          {"lora.alpha_pattern", {"null"}},
                          {"lora.use_dora", {"false"}},
                          {"lora.bias", {"none"}},
                          {"lora.modules_to_save", {"null"}},
                          {"lora.trainable_token_indices", {"null"}},
                          {"lora.adapter", {"null"}},
                          {"data.seq_length", {"8192"}},
                          {"optimizer.name", {"adamw"}},
                          {"optimizer.betas", {"[0.9, 0.999]"}},
                          {"optimizer.eps", {"1e-8"}},
                          {"optimizer.weight_decay", {"1e-4"}},
                          {"optimizer.grad_clip", {"0.3"}},
                          {"schedule.name", {"cosine"}},
                          {"schedule.constant_steps", {"0"}},
                          {"schedule.min_lr", {"0"}},
                          {"train.loss", {"sample_mean"}},
                          {"eval.samples", {"null", "173"}},
                          {"eval.every_samples", {"384"}},
                          {"eval.skip_first", {"mlperf"}},
                          {"eval.target_loss", {"0.925"}}},
                         {{"model_type", {"llama"}},
                          {"num_hidden_layers", {"80"}},
                          {"hidden_size", {"8192"}},
                          {"intermediate_size", {"28672"}},
                          {"num_attention_heads", {"64"}},
                          {"num_key_value_heads", {"8"}},
                          {"head_dim", {"128"}},
                          {"vocab_size", {"32000"}},
                          {"rms_norm_eps", {"1e-5"}},
                          {"rope_theta", {"10000"}},
                          {"rope_scaling", {"none"}},
                          {"tie_word_embeddings", {"false"}},
                          {"attention_dropout", {"0"}},
                          {"rows of data.train", {"3901"}},
                          {"rows of data.valid", {"173"}}}};

const Benchmark kPretraining = {"llama31_8b",
                                {{"model.init", {"random"}},
                                 {"model.scaled_residual_init", {"true"}},
                                 {"data.seq_length", {"8192"}},
                                 {"data.splits", {"null"}},
                                 {"data.eos_token", {"null"}},
                                 {"optimizer.name", {"adamw"}},
                                 {"optimizer.betas", {"[0.9, 0.95]"}},
                                 {"optimizer.eps", {"1e-5"}},
                                 {"optimizer.weight_decay", {"0.1"}},
                                 {"optimizer.grad_clip", {"1"}},
                                 {"schedule.name", {"cosine"}},
                                 {"schedule.constant_steps", {"0"}},
                                 {"train.max_steps", {"1200000"}},
                                 {"train.loss", {"token_mean"}},
                                 {"eval.samples", {"1024"}},
                                 {"eval.every_samples", {"12288"}},
                                 {"eval.skip_first", {"null", "0"}},
                                 {"eval.target_loss", {"3.3"}}},
                                {{"model_type", {"llama"}},
                                 {"num_hidden_layers", {"32"}},
                                 {"hidden_size", {"4096"}},
                                 {"intermediate_size", {"14336"}},
                                 {"num_attention_heads", {"32"}},
                                 {"num_key_value_heads", {"8"}},
                                 {"head_dim", {"128"}},
                                 {"vocab_size", {"128256"}},
                                 {"rms_norm_eps", {"1e-5"}},
                                 {"rope_theta", {"500000"}},
                                 {"rope_scaling", {"llama3 8 1 4 8192"}},
                                 {"tie_word_embeddings", {"false"}},
                                 {"attention_dropout", {"0"}},
                                 {"initializer_range", {"0.02"}},
                                 {"format of data.train", {"Megatron"}}}};

const Benchmark kBert = {"bert",
                         {{"model.init", {"checkpoint"}},
                          {"data.seq_length", {"512"}},
                          {"optimizer.name", {"lamb"}},
                          {"optimizer.grad_clip", {"1"}},
                          {"optimizer.trust_ratio", {"decayed"}},
                          {"schedule.name", {"linear"}},
                          {"schedule.min_lr", {"0"}},
                          {"train.loss", {"rank_mean", "token_mean"}},
                          {"eval.samples", {"10000"}},
                          {"eval.skip_first", {"null", "0"}},
                          {"eval.target_loss", {"null"}},
                          {"eval.target_accuracy", {"0.72"}}},
                         {{"num_hidden_layers", {"24"}},
                          {"hidden_size", {"1024"}},
                          {"intermediate_size", {"4096"}},
                          {"num_attention_heads", {"16"}},
                          {"vocab_size", {"30522"}},
                          {"max_position_embeddings", {"512"}},
                          {"type_vocab_size", {"2"}},
                          {"layer_norm_eps", {"1e-12"}},
                          {"hidden_dropout_prob", {"0.1"}},
                          {"attention_probs_dropout_prob", {"0.1"}},
                          {"hidden_act", {"gelu by tanh"}},
                          {"next-sentence head", {"true"}}}};

/// Fixed in all three: the order of the rows is random, each row comes once in an epoch, and no step is skipped for its
/// loss.
const std::vector<Fixed> kCommon = {{"model.vocab_size", {"null"}}, {"data.weights", {"null", "[]"}},
                                    {"data.shuffle", {"true"}},     {"optimizer.decay_norms", {"false"}},
                                    {"train.neftune_alpha", {"0"}}, {"train.label_smoothing", {"0"}},
                                    {"train.on_spike", {"report"}}};

const Benchmark* benchmark_of(const Config& config, const ProgramKeys& program) {
  if (program.name.empty() || !config.logging.mlperf || !program.features.has(Feature::kMlperfLog)) return nullptr;
  if (program.features.has(Feature::kPackedRows)) return &kBert;
  return config.lora ? &kLora : &kPretraining;
}

/// Whether the run is of the closed division; nullopt: it is if it has the values of that division.
std::optional<bool> closed_division(const Benchmark& benchmark) {
  const std::string division = environment("MLPERF_SUBMISSION_DIVISION");
  if (!division.empty()) return division == "closed";
  if (&benchmark == &kPretraining) return true;
  return std::nullopt;
}

bool same_value(const std::string& one, const std::string& other) {
  const auto a = parse_whole<double>(one), b = parse_whole<double>(other);
  return a && b ? *a == *b : one == other;
}

/// Empty where `value` is allowed.
std::string difference(const Benchmark& benchmark, const std::string& name, const std::string& value,
                       const std::vector<std::string>& allowed) {
  if (std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) { return same_value(one, value); }))
    return "";
  return fmt::format("{} {} is not what MLPerf's {} has in the closed division: {}", name, value, benchmark.name,
                     join(allowed, " or "));
}

constexpr const char* kWayOut = " (a run that is none: MLPERF_SUBMISSION_DIVISION=open, or logging.mlperf: false)";

/// Values that follow from others of the same configuration.
std::vector<Fixed> derived_keys(const Config& config, const Benchmark& benchmark) {
  if (&benchmark == &kPretraining) {
    // 0.1 * lr may be off by one unit in the last place from the number that a file gives.
    const double tenth = config.optimizer.lr / 10;
    const bool equal = std::abs(config.schedule.min_lr - tenth) <= 1e-9 * tenth;
    return {{"schedule.min_lr", {format_exact(equal ? config.schedule.min_lr : tenth)}}};
  }
  if (&benchmark != &kBert) return {};
  // FLOOR(0.05 * (230.23 * GBS + 3000000), 25000), where the batch counts sequences.
  const double sequences = static_cast<double>(config.batch.global_batch_size) * config.batch.packing_rate;
  const double every = std::floor(0.05 * (230.23 * sequences + 3e6) / 25000) * 25000;
  return {{"eval.every_samples", {format_exact(every)}}};
}

/// Key and sentence of each value that differs.
std::vector<std::pair<std::string, std::string>> differing_keys(const Config& config, const Benchmark& benchmark) {
  std::vector<std::pair<std::string, std::string>> found;
  if (const std::string said = environment("MLPERF_SUBMISSION_BENCHMARK"); !said.empty() && said != benchmark.name)
    found.emplace_back(
        "logging.mlperf",
        fmt::format("MLPERF_SUBMISSION_BENCHMARK is '{}', and this configuration is of {}", said, benchmark.name));
  std::map<std::string, std::string> values;
  for (auto& [key, value] : flatten_config(config)) {
    std::erase(value, '"');
    values.emplace(key, value);
  }
  for (const auto& list : {kCommon, benchmark.keys, derived_keys(config, benchmark)})
    for (const Fixed& fixed : list) {
      const auto value = values.find(fixed.name);
      TRIREME_CHECK(value != values.end(), "no key ", fixed.name);
      std::string text = difference(benchmark, fixed.name, value->second, fixed.allowed);
      if (!text.empty()) found.emplace_back(fixed.name, std::move(text));
    }
  return found;
}

}  // namespace

void check_mlperf_rules(const Config& config, const ProgramKeys& program, std::vector<RuleProblem>& problems) {
  const Benchmark* benchmark = benchmark_of(config, program);
  if (benchmark == nullptr) return;
  const auto refuse = [&](const std::string& key, const std::string& text) {
    problems.push_back({key, {key, "logging.mlperf"}, text});
  };
  const std::string division = environment("MLPERF_SUBMISSION_DIVISION");
  if (!division.empty() && division != "closed" && division != "open")
    refuse("logging.mlperf",
           fmt::format("MLPERF_SUBMISSION_DIVISION is '{}', and MLPerf has the divisions closed and open", division));
  if (closed_division(*benchmark) != true) return;
  for (const auto& [key, text] : differing_keys(config, *benchmark)) refuse(key, text + kWayOut);
}

std::string check_mlperf_model(const Config& config, const ProgramKeys& program,
                               const std::vector<std::pair<std::string, std::string>>& found) {
  const Benchmark* benchmark = benchmark_of(config, program);
  const std::optional<bool> closed = benchmark == nullptr ? std::nullopt : closed_division(*benchmark);
  if (benchmark == nullptr || closed == false) return "open";
  std::vector<std::string> problems;
  for (const auto& [name, value] : found)
    for (const Fixed& fixed : benchmark->model)
      if (fixed.name == name)
        if (std::string text = difference(*benchmark, name, value, fixed.allowed); !text.empty())
          problems.push_back(std::move(text));
  if (!closed)
    for (auto& [key, text] : differing_keys(config, *benchmark)) problems.push_back(std::move(text));
  if (problems.empty()) return "closed";
  if (closed) throw ConfigError(fmt::format("{}: {}{}", config.model.path, join(problems, "; "), kWayOut));
  log_run_warn(fmt::format(
      "MLPerf: the log names the open division, because {}{}; MLPERF_SUBMISSION_DIVISION=closed refuses what differs",
      problems.front(), problems.size() > 1 ? fmt::format(" (and {} more values differ)", problems.size() - 1) : ""));
  return "open";
}

}  // namespace trireme
