#include "rules.h"

#include "trireme/config/keys.h"
#include "trireme/config/mlperf_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/dropout_steps.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"

namespace trireme {

namespace {

// "8", or "8 and 12": the multiples of `unit` around `value`.
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("the nearest is {}", unit)
                    : fmt::format("nearest are {} and {}", below, below + unit);
}

/// Those that read rows of their own: ranks, or groups of parallel.context_size of them.
struct Readers {
  int64_t count = 1, context = 1;
  std::string text() const {
    return context == 1 ? counted(count, "rank") : fmt::format("{} of {} ranks", counted(count, "group"), context);
  }
};
Readers readers_of(const Config& config, const ProgramKeys& program, int64_t world_size) {
  const int64_t context = least_context_size(config, world_size, program.features.has(Feature::kContext));
  return world_size % context == 0 ? Readers{world_size / context, context} : Readers{};
}

void check_batch(const Config& config, const Readers& readers, std::vector<RuleProblem>& problems) {
  const int64_t global = config.batch.global_batch_size, micro = config.batch.micro_batch_size;
  if (const int64_t unit = readers.count * micro; global % unit != 0) {
    const std::string what =
        readers.count == 1 ? fmt::format("is not a multiple of batch.micro_batch_size {}", micro)
                           : fmt::format("does not divide over {} x batch.micro_batch_size {}", readers.text(), micro);
    problems.push_back(
        {"batch.global_batch_size",
         {"batch.global_batch_size", "batch.micro_batch_size"},
         fmt::format("batch.global_batch_size {} {}: {}", global, what, nearest_multiples(global, unit))});
  }
  const double tokens = static_cast<double>(config.train.max_steps) * static_cast<double>(global) *
                        static_cast<double>(config.data.seq_length);
  if (tokens > std::ldexp(1.0, 62))
    problems.push_back({"train.max_steps",
                        {"train.max_steps", "batch.global_batch_size", "data.seq_length"},
                        fmt::format("train.max_steps {} x batch.global_batch_size {} x data.seq_length {} are "
                                    "more tokens than can be counted",
                                    config.train.max_steps, global, config.data.seq_length)});
}

// Megatron's ramp: whole increments, each of which divides over the ranks and micro-batches.
void check_rampup(const Config& config, const Readers& readers, std::vector<RuleProblem>& problems) {
  if (config.batch.rampup.size() != 3) return;
  constexpr int64_t kMostIncrements = 100000;
  const int64_t start = config.batch.rampup[0], increment = config.batch.rampup[1];
  const int64_t global = config.batch.global_batch_size, unit = readers.count * config.batch.micro_batch_size;
  const auto refuse = [&](std::vector<std::string> also, const std::string& why) {
    also.insert(also.begin(), "batch.rampup");
    problems.push_back({"batch.rampup", std::move(also), "batch.rampup " + why});
  };
  if (start >= global)
    refuse({"batch.global_batch_size"},
           fmt::format("starts at {}, which is not below batch.global_batch_size {}: leave it out", start, global));
  else if ((global - start) % increment != 0)
    refuse({"batch.global_batch_size"},
           fmt::format("grows from {} to batch.global_batch_size {} in steps of {}, which does not come out even",
                       start, global, increment));
  else if ((global - start) / increment > kMostIncrements)
    refuse({"batch.global_batch_size"}, fmt::format("has {} increments, of which there can be {}: take a larger one",
                                                    (global - start) / increment, kMostIncrements));
  for (const auto& [what, value] : {std::pair("start", start), std::pair("increment", increment)})
    if (value % unit != 0)
      refuse({"batch.micro_batch_size"},
             fmt::format("{} {} does not divide over {} x batch.micro_batch_size {}: {}", what, value, readers.text(),
                         config.batch.micro_batch_size, nearest_multiples(value, unit)));
  const auto one_size = [&](const char* key, const char* why) { refuse({key}, fmt::format("is not for {}", why)); };
  if (config.logging.mlperf) one_size("logging.mlperf", "logging.mlperf, whose log has one batch size");
  if (config.logging.style == LoggingSection::Style::kFms || config.logging.style == LoggingSection::Style::kFms2024)
    one_size("logging.style", "logging.style fms, whose lines count with one batch size");
}

// Keys that the schedule's formula does not have, and a decay that does not fit after the warm-up.
void check_schedule_keys(const Config& config, std::vector<RuleProblem>& problems) {
  const ScheduleSection& schedule = config.schedule;
  using Name = ScheduleSection::Name;
  const bool wsd = schedule.name == Name::kWsd, fms = schedule.name == Name::kFmsCosine,
             annealing = schedule.name == Name::kAnnealing;
  const std::string name = word_of(schedule.name);
  const auto refuse = [&](const std::string& key, const std::string& why) {
    problems.push_back(
        {"schedule." + key, {"schedule." + key, "schedule.name"}, fmt::format("schedule.{} {}", key, why)});
  };
  if ((wsd || fms || annealing) && schedule.min_lr > 0)
    refuse("min_lr", annealing ? "is not for schedule.name annealing, which ends at 0"
                               : fmt::format("is not for schedule.name {}: give schedule.min_lr_factor, the share of "
                                             "optimizer.lr",
                                             name));
  if (!wsd && !fms && schedule.min_lr_factor)
    refuse("min_lr_factor", fmt::format("is for schedule.name wsd and fms_cosine, not {}{}", name,
                                        annealing || schedule.name == Name::kConstant ? "" : ": give schedule.min_lr"));
  if (!wsd && schedule.decay_ratio) refuse("decay_ratio", "is for schedule.name wsd, not " + name);
  if (!wsd && schedule.decay_type != ScheduleSection::DecayType::kLinear)
    refuse("decay_type", "is for schedule.name wsd, not " + name);
  if (schedule.constant_steps > 0 && schedule.name != Name::kCosine)
    refuse("constant_steps", "is for schedule.name cosine, not " + name);
  if (annealing && schedule.warmup_steps > 0)
    refuse("warmup_steps", "is not for schedule.name annealing, which falls from the first step: leave it out");
  if (!wsd || !schedule.decay_ratio || schedule.warmup_steps > config.train.max_steps) return;
  const auto decay =
      static_cast<int64_t>(std::nearbyint(static_cast<double>(config.train.max_steps) * *schedule.decay_ratio));
  if (schedule.warmup_steps + decay > config.train.max_steps)
    problems.push_back(
        {"schedule.decay_ratio",
         {"schedule.decay_ratio", "schedule.warmup_steps", "train.max_steps", "schedule.name"},
         fmt::format("schedule.warmup_steps {} and the {} steps of schedule.decay_ratio {} are more than "
                     "train.max_steps {}: leave schedule.decay_ratio out to decay from the warm-up on",
                     schedule.warmup_steps, decay, format_exact(*schedule.decay_ratio), config.train.max_steps)});
}

void check_schedule(const Config& config, std::vector<RuleProblem>& problems) {
  // With constant steps a run may end inside the warm-up, as NeMo's benchmarks of 100 steps do.
  if (config.schedule.warmup_ratio && config.schedule.warmup_steps > 0)
    problems.push_back({"schedule.warmup_ratio",
                        {"schedule.warmup_ratio", "schedule.warmup_steps"},
                        "schedule.warmup_ratio and schedule.warmup_steps both say how long the warm-up is: leave one "
                        "of them out"});
  if (config.schedule.warmup_steps > config.train.max_steps && config.schedule.constant_steps == 0)
    problems.push_back({"schedule.warmup_steps",
                        {"schedule.warmup_steps", "train.max_steps"},
                        fmt::format("schedule.warmup_steps {} is more than train.max_steps {}",
                                    config.schedule.warmup_steps, config.train.max_steps)});
  if (config.schedule.constant_steps >= config.train.max_steps && config.schedule.warmup_steps == 0 &&
      !config.schedule.warmup_ratio && config.schedule.min_lr == 0)
    problems.push_back({"schedule.constant_steps",
                        {"schedule.constant_steps", "train.max_steps"},
                        fmt::format("schedule.constant_steps {} leaves no step of train.max_steps {} with a rate above "
                                    "schedule.min_lr 0: nothing would be trained",
                                    config.schedule.constant_steps, config.train.max_steps)});
  if (config.schedule.min_lr > config.optimizer.lr)
    problems.push_back({"schedule.min_lr",
                        {"schedule.min_lr", "optimizer.lr"},
                        fmt::format("schedule.min_lr {} is more than optimizer.lr {}",
                                    format_exact(config.schedule.min_lr), format_exact(config.optimizer.lr))});
  check_schedule_keys(config, problems);
}

void check_lora(const Config& config, std::vector<RuleProblem>& problems) {
  if (!config.lora) return;
  if (const std::string why = dropout_problem(config.lora->dropout, kActivationDropoutSteps); !why.empty())
    problems.push_back({"lora.dropout", {"lora.dropout"}, "lora.dropout " + why});
  if (!config.lora->layers_to_transform.empty() && !config.lora->target_modules.pattern.empty() &&
      !config.lora->target_modules.all_linear())
    problems.push_back(
        {"lora.layers_to_transform",
         {"lora.layers_to_transform", "lora.target_modules"},
         "lora.layers_to_transform is for target_modules that are a list: say the blocks in the pattern"});
  const LoraSection& lora = *config.lora;
  for (const auto& [name, ids] : lora.trainable_token_indices) {
    const std::string module = name.empty() ? "embed_tokens" : name;
    if (ids.empty())
      problems.push_back({"lora.trainable_token_indices",
                          {"lora.trainable_token_indices"},
                          fmt::format("lora.trainable_token_indices has no id for {}", module)});
    std::vector<int64_t> sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
      problems.push_back({"lora.trainable_token_indices",
                          {"lora.trainable_token_indices"},
                          fmt::format("lora.trainable_token_indices has {} twice for {}", *twice, module)});
    if (is_saved(lora, module))
      problems.push_back({"lora.trainable_token_indices",
                          {"lora.trainable_token_indices", "lora.modules_to_save"},
                          fmt::format("lora.modules_to_save trains all rows of {}: leave it out of "
                                      "lora.trainable_token_indices or of lora.modules_to_save",
                                      module)});
  }
  const std::vector<std::string>& modules = lora.target_modules.names;
  const auto has = [&](const char* name) { return std::find(modules.begin(), modules.end(), name) != modules.end(); };
  if (!has("qkv_proj")) return;
  std::vector<std::string> covered;
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    if (has(name)) covered.emplace_back(name);
  if (!covered.empty())
    problems.push_back({"lora.target_modules",
                        {"lora.target_modules"},
                        fmt::format("lora.target_modules has qkv_proj and {0}: qkv_proj is one adapter over all "
                                    "three, remove qkv_proj or {0}",
                                    join(covered, ", "))});
}

void check_eval(const Config& config, std::vector<RuleProblem>& problems) {
  if (config.eval.test_samples && config.data.test.empty() && !config.data.splits)
    problems.push_back({"eval.test_samples",
                        {"eval.test_samples", "data.test"},
                        "eval.test_samples needs data.test or data.splits, which are null"});
  if (!config.data.valid.empty() || config.data.splits) return;
  for (const char* key : keys_of_evaluation(config))
    problems.push_back({key, {key, "data.valid"}, fmt::format("{} needs data.valid, which is not given", key)});
}

void check_data(const Config& config, std::vector<RuleProblem>& problems) {
  const DataSection& data = config.data;
  const auto count = [&](const char* key, size_t given) {
    if (given != 0 && given != data.train.size())
      problems.push_back({key,
                          {key, "data.train"},
                          fmt::format("{} has {} entries for the {} of data.train", key, given, data.train.size())});
  };
  count("data.weights", data.weights.size());
  count("data.names", data.names.size());
  if (data.splits && !data.test.empty())
    problems.push_back({"data.splits",
                        {"data.splits", "data.test"},
                        "data.splits takes the test rows from data.train: remove data.test or data.splits"});
  if (data.splits && !data.valid.empty())
    problems.push_back({"data.splits",
                        {"data.splits", "data.valid"},
                        "data.splits takes the validation rows from data.train: remove data.valid or data.splits"});
  for (const auto& [key, on] : {std::pair("data.reset_position_ids", data.reset_position_ids),
                                std::pair("data.reset_attention_mask", data.reset_attention_mask),
                                std::pair("data.eod_mask_loss", data.eod_mask_loss)})
    if (on && !data.eos_token)
      problems.push_back({key,
                          {key, "data.eos_token"},
                          fmt::format("{} needs data.eos_token, the id that stands after each document", key)});
  if (data.seq_length <= data.bol_token.has_value() + data.eol_token.has_value())
    problems.push_back(
        {"data.seq_length",
         {"data.seq_length", "data.bol_token", "data.eol_token"},
         fmt::format("data.seq_length {} has no room beside data.bol_token and data.eol_token", data.seq_length)});
}

void check_precision(const Config& config, const ProgramKeys& program, std::vector<RuleProblem>& problems) {
  const PrecisionSection& precision = config.precision;
  if (precision.loss_scale && precision.compute != PrecisionSection::Compute::kFp16)
    problems.push_back({"precision.loss_scale",
                        {"precision.loss_scale", "precision.compute"},
                        "precision.loss_scale is for precision.compute fp16; the other types need none"});
  const bool fp8 = precision.linear == PrecisionSection::Linear::kFp8;
  if (fp8 && !config.lora && !program.features.has(Feature::kFp8Training))
    problems.push_back(
        {"precision.linear",
         {"precision.linear"},
         fmt::format("precision.linear fp8 without a 'lora' section is not for {}, which {}: leave it at compute",
                     program.name, without_feature(Feature::kFp8Training))});
  using Frozen = PrecisionSection::Frozen;
  if (const Frozen frozen = precision.frozen; frozen != Frozen::kAuto) {
    const auto refuse = [&](const char* other, const char* why) {
      problems.push_back({"precision.frozen",
                          {"precision.frozen", other},
                          fmt::format("precision.frozen {} {}", word_of(frozen), why)});
    };
    if (!config.lora)
      refuse("lora",
             "is for matrices beneath adapters, and without a 'lora' section all are trained: leave it at auto");
    else if (fp8 && frozen != Frozen::kFp8)
      refuse("precision.linear",
             "contradicts precision.linear fp8, with which these matrices are in FP8: give one of them");
  }
  const auto for_trained = [&](const char* key, const std::string& value) {
    const auto refuse = [&](const char* why) {
      problems.push_back({key, {key, "precision.linear"}, fmt::format("{} {} {}", key, value, why)});
    };
    if (!fp8)
      refuse("needs precision.linear: fp8");
    else if (config.lora)
      refuse("is for trained matrices, and with a 'lora' section all of the blocks' are frozen: leave it out");
  };
  if (precision.fp8_recipe) for_trained("precision.fp8_recipe", word_of(*precision.fp8_recipe));
  if (precision.fp8_skip_first > 0) for_trained("precision.fp8_skip_first", std::to_string(precision.fp8_skip_first));
  if (precision.fp8_skip_last > 0) for_trained("precision.fp8_skip_last", std::to_string(precision.fp8_skip_last));
}

void check_logging(const Config& config, std::vector<RuleProblem>& problems) {
  if (config.logging.mlperf && config.train.epochs)
    problems.push_back({"train.epochs",
                        {"train.epochs", "logging.mlperf"},
                        "train.epochs is not for logging.mlperf, whose log has steps: give train.max_steps"});
  const auto& step = config.logging.profile_step;
  if (step && *step > config.train.max_steps)
    problems.push_back({"logging.profile_step",
                        {"logging.profile_step", "train.max_steps"},
                        fmt::format("logging.profile_step {} comes after the last step, train.max_steps {}", *step,
                                    config.train.max_steps)});
}

void check_optimizer(const Config& config, std::vector<RuleProblem>& problems) {
  const OptimizerSection &ours = config.optimizer, defaults;
  const auto refuse = [&](const char* key, const std::string& what) {
    problems.push_back({key, {key, "optimizer.name"}, fmt::format("{} {}", key, what)});
  };
  if (ours.moments != defaults.moments && ours.name == OptimizerSection::Name::kLamb)
    refuse("optimizer.moments",
           fmt::format("{} is for adamw and muon, not for {}", word_of(ours.moments), word_of(ours.name)));
  if (ours.gradients != defaults.gradients && config.lora)
    problems.push_back({"optimizer.gradients",
                        {"optimizer.gradients", "lora"},
                        "optimizer.gradients bf16 is for training all parameters: those of adapters are few"});
  if (ours.masters != defaults.masters) {
    if (ours.name != OptimizerSection::Name::kAdamw)
      refuse("optimizer.masters",
             fmt::format("bf16 is for adamw, which rounds its updates stochastically, not for {}", word_of(ours.name)));
    if (config.lora)
      problems.push_back(
          {"optimizer.masters",
           {"optimizer.masters", "lora"},
           "optimizer.masters bf16 is for training all parameters: master weights of adapters are fp32"});
  }
  const auto needs_bf16 = [&](const char* key, bool is_bf16) {
    const auto& compute = config.precision.compute;  // null: the device decides, and the plan checks
    if (is_bf16 && compute && *compute != PrecisionSection::Compute::kBf16)
      problems.push_back(
          {key,
           {key, "precision.compute"},
           fmt::format("{} bf16 needs products in bf16, and precision.compute is {}", key, word_of(*compute))});
  };
  needs_bf16("optimizer.gradients", ours.gradients == OptimizerSection::Gradients::kBf16);
  needs_bf16("optimizer.masters", ours.masters == OptimizerSection::Masters::kBf16);
  if (ours.trust_ratio != defaults.trust_ratio && ours.name != OptimizerSection::Name::kLamb)
    refuse("optimizer.trust_ratio", fmt::format("is for optimizer.name: lamb, not for {}", word_of(ours.name)));
  if (ours.name != OptimizerSection::Name::kMuon) {
    const std::string only = fmt::format("is for optimizer.name: muon, not for {}", word_of(ours.name));
    if (ours.momentum != defaults.momentum) refuse("optimizer.momentum", only);
    if (ours.adjust_lr_fn != defaults.adjust_lr_fn) refuse("optimizer.adjust_lr_fn", only);
    if (ours.matrix_lr) refuse("optimizer.matrix_lr", only);
  } else if (ours.matrix_lr && ours.lr == 0) {
    refuse("optimizer.matrix_lr", "follows the schedule of optimizer.lr, which is 0: set a rate above 0 there");
  }
}

void check_objective(const Config& config, const ProgramKeys& program, std::vector<RuleProblem>& problems) {
  using Objective = TrainSection::Objective;
  const Objective objective = config.train.objective;
  const char* name = word_of(objective);
  const auto refuse = [&](const char* key, const std::string& why) {
    problems.push_back({key, {key, "train.objective"}, fmt::format("{} {}", key, why)});
  };
  if (objective == Objective::kSft) {
    if (config.preference)
      refuse("preference",
             "is a section for train.objective dpo, orpo and kto: set one of them, or leave the section out");
    return;
  }
  // The file of a run has the default of its program, which is not known here.
  if (!program.name.empty() && config.train.loss != program.defaults.train.loss)
    refuse("train.loss", fmt::format("is for train.objective sft; the loss of {} is a mean over {}: leave it out", name,
                                     objective == Objective::kKto ? "answers" : "pairs"));
  if (config.train.neftune_alpha > 0) refuse("train.neftune_alpha", "is for train.objective sft: leave it out");
  if (config.train.label_smoothing > 0)
    refuse("train.label_smoothing", "is for train.objective sft; of dpo there is preference.label_smoothing");
  if (config.logging.mlperf) refuse("logging.mlperf", "is for train.objective sft: MLPerf has no benchmark of pairs");
  const PreferenceSection preference = config.preference.value_or(PreferenceSection());
  using LossType = PreferenceSection::LossType;
  const auto only = [&](const char* key, bool given, const char* whose) {
    if (given) refuse(key, fmt::format("is for train.objective {}: leave it out", whose));
  };
  const bool dpo = objective == Objective::kDpo, kto = objective == Objective::kKto;
  const LossType type = preference.loss_type.value_or(kto ? LossType::kKto : LossType::kSigmoid);
  const bool unpaired = type == LossType::kKto || type == LossType::kApoZeroUnpaired;
  if (!dpo) {
    only("preference.loss_type", !kto && preference.loss_type && type != LossType::kSigmoid, unpaired ? "kto" : "dpo");
    only("preference.label_smoothing", preference.label_smoothing > 0, "dpo");
    only("preference.rpo_alpha", preference.rpo_alpha > 0, "dpo");
  }
  if (kto && preference.desirable_weight == 0 && preference.undesirable_weight == 0)
    problems.push_back(
        {"preference.desirable_weight",
         {"preference.desirable_weight", "preference.undesirable_weight"},
         "preference.desirable_weight and preference.undesirable_weight are both 0: nothing is trained"});
  if (!kto) {
    only("preference.desirable_weight", preference.desirable_weight != 1, "kto");
    only("preference.undesirable_weight", preference.undesirable_weight != 1, "kto");
  }
  if (objective == Objective::kOrpo)
    return only("preference.precompute_ref_log_probs", preference.precompute_ref_log_probs.has_value(), "dpo and kto");
  if (unpaired != kto)
    refuse("preference.loss_type", fmt::format("{} is not one of train.objective {}, which has {}", word_of(type), name,
                                               kto ? "kto and apo_zero_unpaired" : "sigmoid, hinge, ipo and robust"));
  if (dpo && preference.label_smoothing > 0 && (type == LossType::kIpo || type == LossType::kHinge))
    problems.push_back(
        {"preference.label_smoothing",
         {"preference.label_smoothing", "preference.loss_type"},
         fmt::format("preference.label_smoothing is for loss_type sigmoid and robust, not {}", word_of(type))});
  if (!config.lora && !preference.precompute_ref_log_probs.value_or(true))
    problems.push_back({"preference.precompute_ref_log_probs",
                        {"preference.precompute_ref_log_probs", "lora"},
                        "preference.precompute_ref_log_probs false needs a 'lora' section: where all parameters are "
                        "trained the reference is gone after the first step"});
  if (config.lora && !config.lora->modules_to_save.empty() && !preference.precompute_ref_log_probs.value_or(true))
    problems.push_back({"preference.precompute_ref_log_probs",
                        {"preference.precompute_ref_log_probs", "lora.modules_to_save"},
                        "preference.precompute_ref_log_probs false needs a base that stays as it is, and "
                        "lora.modules_to_save trains a part of it: leave one of them out"});
}

void check_policy(const Config& config, std::vector<RuleProblem>& problems) {
  using Policy = ParallelSection::Policy;
  if (config.parallel.policy == Policy::kAuto || config.parallel.policy == Policy::kNone) return;
  const char* policy = word_of(config.parallel.policy);
  if (config.lora && config.lora->modules_to_save.empty())
    problems.push_back({"parallel.policy",
                        {"parallel.policy", "lora"},
                        fmt::format("parallel.policy {} divides trained weights, and adapters are whole on every rank: "
                                    "leave it at auto (parallel.shard_size divides the frozen weights)",
                                    policy)});
  else if (config.parallel.shard_size == 1)
    problems.push_back({"parallel.policy",
                        {"parallel.policy", "parallel.shard_size"},
                        fmt::format("parallel.policy {} with parallel.shard_size 1 divides nothing: take policy none "
                                    "or a larger shard_size",
                                    policy)});
}

/// Tiles and offload are of blocks that are recomputed whole, or but for attention; offload also of MLPs.
void check_kept_activations(const Config& config, std::vector<RuleProblem>& problems) {
  const ParallelSection& parallel = config.parallel;
  using Recompute = ParallelSection::Recompute;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    problems.push_back({"parallel." + key, {"parallel." + key, "parallel.recompute"}, "parallel." + key + why});
  };
  const auto word = parallel.recompute.word;
  const bool whole = word == Recompute::kAuto || word == Recompute::kAttention || word == Recompute::kFull;
  if (parallel.tile_tokens != ParallelSection::kAutoTile) {
    if (parallel.tile_tokens % 128 != 0)
      refuse("tile_tokens", fmt::format(" {} is not a multiple of 128: {}", parallel.tile_tokens,
                                        nearest_multiples(parallel.tile_tokens, 128)));
    if (!whole)
      refuse("tile_tokens",
             " is for blocks that are recomputed whole: take parallel.recompute auto, attention or full");
  }
  using Offload = ParallelSection::Offload;
  if ((parallel.offload == Offload::kActivations || parallel.offload == Offload::kAll) && !whole &&
      word != Recompute::kMlp)
    refuse("offload", fmt::format(" {} takes what blocks keep in place of what they recompute: take "
                                  "parallel.recompute auto, mlp, attention or full",
                                  word_of(parallel.offload)));
  if (const OptimizerSection& optimizer = config.optimizer;
      (parallel.offload == Offload::kOptimizer || parallel.offload == Offload::kAll) &&
      optimizer.name != OptimizerSection::Name::kAdamw)
    problems.push_back(
        {"parallel.offload",
         {"parallel.offload", "optimizer.name"},
         fmt::format("parallel.offload {} is for optimizer.name: adamw, whose state goes through the GPU in parts: {}",
                     word_of(parallel.offload),
                     optimizer.name == OptimizerSection::Name::kLamb
                         ? "lamb needs the norms of whole tensors before it changes an element"
                         : "muon updates whole matrices")});
}

void check_profile(const Config& config, const ProgramKeys& program, std::optional<int64_t> world_size,
                   std::vector<RuleProblem>& problems) {
  if (!config.profile) return;
  const ProfileSection& profile = *config.profile;
  if (profile.stacks && !program.name.empty())
    problems.push_back({"profile.stacks",
                        {"profile.stacks"},
                        "profile.stacks: true is not available: LibTorch's profiler takes stacks of Python and "
                        "TorchScript only; the ranges around an operation say where it was called"});
  if (config.logging.profile_step)
    problems.push_back({"logging.profile_step",
                        {"logging.profile_step"},
                        "logging.profile_step is a short form of section 'profile': give one of them"});
  const int64_t first = profile.wait + profile.warmup + 1;
  if (first > config.train.max_steps)
    problems.push_back({"profile.wait",
                        {"profile.wait", "profile.warmup", "train.max_steps"},
                        fmt::format("profile records nothing: its first active step is wait + warmup + 1 = {}, after "
                                    "the last step, train.max_steps {}",
                                    first, config.train.max_steps)});
  const bool all =
      std::find(profile.ranks.begin(), profile.ranks.end(), ProfileSection::kAllRanks) != profile.ranks.end();
  if (all && profile.ranks.size() > 1)
    problems.push_back({"profile.ranks", {"profile.ranks"}, "profile.ranks has 'all' beside single ranks"});
  for (const int64_t rank : profile.ranks)
    if (!all && world_size && rank >= *world_size)
      problems.push_back({"profile.ranks",
                          {"profile.ranks"},
                          fmt::format("profile.ranks has rank {}, the run has {}, counted from 0", rank,
                                      counted(*world_size, "rank"))});
}

void check_shard_size(const Config& config, int64_t world_size, std::vector<RuleProblem>& problems) {
  const int64_t size = config.parallel.shard_size;
  if (size <= 0 || world_size % size == 0) return;
  int64_t below = std::min(size, world_size), above = size;
  while (world_size % below != 0) --below;
  while (above < world_size && world_size % above != 0) ++above;
  problems.push_back({"parallel.shard_size",
                      {"parallel.shard_size"},
                      fmt::format("parallel.shard_size {} does not divide the {} {}: {}", size, world_size,
                                  world_size == 1 ? "rank" : "ranks",
                                  above > world_size ? fmt::format("the nearest is {}", below)
                                                     : fmt::format("nearest are {} and {}", below, above))});
}

/// `context`: the number of ranks that share a row.
void check_context(const Config& config, int64_t context, std::optional<int64_t> world_size,
                   std::vector<RuleProblem>& problems) {
  if (context <= 1) return;
  const bool chosen = config.parallel.context_size == ParallelSection::kAutoSize;
  const std::string why = chosen ? fmt::format(" (auto: batch.global_batch_size {} has fewer rows than {} ranks)",
                                               config.batch.global_batch_size, *world_size)
                                 : "";
  const auto refuse = [&](std::vector<std::string> also, const std::string& what) {
    also.insert(also.begin(), "parallel.context_size");
    problems.push_back(
        {"parallel.context_size", std::move(also), fmt::format("parallel.context_size {}{} {}", context, why, what)});
  };
  if (config.train.objective != TrainSection::Objective::kSft)
    return refuse({"train.objective"},
                  fmt::format("is for train.objective sft: the rows of {} stay whole on a rank: leave it at auto",
                              word_of(config.train.objective)));
  if (world_size && *world_size % context != 0)
    refuse({}, fmt::format("does not divide the {}", counted(*world_size, "rank")));
  if (config.data.seq_length % context != 0)
    refuse({"data.seq_length"},
           fmt::format("does not divide data.seq_length {}: each rank has an equal part of a row's tokens",
                       config.data.seq_length));
  if (const int64_t shard = config.parallel.shard_size; shard > 0 && shard % context != 0 && context % shard != 0)
    refuse({"parallel.shard_size"}, fmt::format("and parallel.shard_size {} do not divide each other", shard));
  if (config.optimizer.clip == OptimizerSection::Clip::kLocal)
    refuse({"optimizer.clip"}, "is not for optimizer.clip local, which clips the gradients of each rank's own rows");
}

}  // namespace

std::vector<const char*> keys_of_evaluation(const Config& config) {
  std::vector<const char*> keys;
  const auto add = [&](bool given, const char* key) {
    if (given) keys.push_back(key);
  };
  add(config.eval.target_loss.has_value(), "eval.target_loss");
  add(config.eval.every_samples.has_value(), "eval.every_samples");
  add(config.eval.target_accuracy.has_value(), "eval.target_accuracy");
  add(config.train.patience.has_value(), "train.patience");
  add(config.output.keep_best, "output.keep_best");
  add(config.eval.samples.has_value(), "eval.samples");
  add(!config.eval.prompts.empty(), "eval.prompts");
  return keys;
}

std::vector<RuleProblem> check_rules(const Config& config, const ProgramKeys& program,
                                     std::optional<int64_t> world_size) {
  std::vector<RuleProblem> problems;
  const Readers readers = readers_of(config, program, world_size.value_or(1));
  check_batch(config, readers, problems);
  check_rampup(config, readers, problems);
  check_schedule(config, problems);
  check_lora(config, problems);
  check_data(config, problems);
  check_eval(config, problems);
  check_precision(config, program, problems);
  check_logging(config, problems);
  check_objective(config, program, problems);
  check_policy(config, problems);
  check_kept_activations(config, problems);
  check_optimizer(config, problems);
  check_mlperf_rules(config, program, problems);
  check_profile(config, program, world_size, problems);
  if (world_size) check_shard_size(config, *world_size, problems);
  check_context(config, std::max(readers.context, config.parallel.context_size), world_size, problems);
  return problems;
}

std::vector<std::string> config_warnings(const Config& config, const ProgramKeys& program) {
  const Config& defaults = program.defaults;
  std::vector<std::string> sentences;
  const auto idle = [&](const char* key, bool differs, bool unused, const char* why) {
    if (differs && unused) sentences.push_back(fmt::format("{} has no effect: {}", key, why));
  };
  const char* const kOnce = "without eval.every_samples a run is evaluated at its end alone";
  const bool constant = config.schedule.name == ScheduleSection::Name::kConstant, once = !config.eval.every_samples,
             silent = config.eval.prompts.empty();
  idle("schedule.min_lr", config.schedule.min_lr != defaults.schedule.min_lr, constant, "schedule.name is constant");
  idle("eval.skip_first", config.eval.skip_first != defaults.eval.skip_first, once, kOnce);
  idle("train.patience", config.train.patience != defaults.train.patience, once, kOnce);
  idle("eval.max_new_tokens", config.eval.max_new_tokens != defaults.eval.max_new_tokens, silent,
       "there are no eval.prompts");
  idle("eval.temperature", config.eval.temperature != defaults.eval.temperature, silent, "there are no eval.prompts");
  idle("model.scaled_residual_init", config.model.scaled_residual_init != defaults.model.scaled_residual_init,
       config.model.init == ModelSection::Init::kCheckpoint, "model.init is checkpoint");
  idle("precision.fp8_transpose_cache", config.precision.fp8_transpose_cache != defaults.precision.fp8_transpose_cache,
       config.precision.linear != PrecisionSection::Linear::kFp8 &&
           config.precision.frozen != PrecisionSection::Frozen::kFp8,
       "no matrix is in FP8");
  const bool pairs = config.train.objective != TrainSection::Objective::kSft,
             tunes_all = !config.lora && config.model.init == ModelSection::Init::kCheckpoint;
  if (program.features.has(Feature::kAdapters) && config.optimizer.lr == defaults.optimizer.lr && (pairs || tunes_all))
    sentences.push_back(fmt::format(
        "optimizer.lr is {}, as by default, which is for tuning with adapters: {}", format_exact(config.optimizer.lr),
        pairs ? fmt::format("try 1e-6 for {}, with adapters 1e-5", word_of(config.train.objective))
              : "try 1e-5 to 5e-5 for all parameters of a trained model"));
  return sentences;
}

}  // namespace trireme
