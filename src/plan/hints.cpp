#include "trireme/plan/hints.h"

#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/keys.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/precision.h"
#include "trireme/plan/search.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr int64_t kMostRanks = 4096, kShortestRow = 128;
constexpr size_t kMostTogether = 3;
/// Savings below this part of what the run needs are none to speak of.
constexpr double kLeastSaving = 0.001;

/// Whether a batch that grows has sizes that divide over the ranks.
bool ramp_fits(const BatchSection& batch, int64_t ranks) {
  if (batch.rampup.empty()) return true;
  const int64_t start = batch.rampup[0], increment = batch.rampup[1], unit = ranks * batch.micro_batch_size;
  return batch.global_batch_size > start && (batch.global_batch_size - start) % increment == 0 && start % unit == 0 &&
         increment % unit == 0;
}

/// The recipe of the blocks' matrices in a changed configuration.
const RecipeTraits& block_traits(const PlanQuestion& question, const Config& config) {
  return traits_of(block_recipe(config, question.model.facts().automatic_fp8));
}

/// The rows of a global batch that one rank or context group has.
int64_t rows_of_reader(const PlanQuestion& question) {
  const int64_t context = question.context_size > 0 ? question.context_size
                                                    : least_context_size(question.config, question.ranks,
                                                                         question.model.facts().divides_rows);
  return question.config.batch.global_batch_size * context / question.ranks;
}

/// The changes that are worth a thought for a configuration, from the least to the most intrusive; each is one setting.
class Changes {
 public:
  explicit Changes(const PlanQuestion& question) : question_(question) {
    const Config& config = question.config;
    const int64_t local = rows_of_reader(question), micro = config.batch.micro_batch_size;
    if (question.ranks > 1 && config.parallel.shard_size > 0) add("parallel.shard_size", "world");
    add_context();
    using Policy = ParallelSection::Policy;
    if (const Policy policy = config.parallel.policy;
        policy != Policy::kAuto && policy != Policy::kFull && question.ranks > 1)
      add("parallel.policy", "full");
    using Recomputed = ParallelSection::Recompute;
    if (const auto word = config.parallel.recompute.word; word != Recomputed::kAuto && word != Recomputed::kFull)
      add("parallel.recompute", "full");
    if (config.parallel.tile_tokens != ParallelSection::kAutoTile) add("parallel.tile_tokens", "auto");
    using Offload = ParallelSection::Offload;
    if (config.parallel.offload == Offload::kNone) add("parallel.offload", "auto");
    if ((config.parallel.offload == Offload::kActivations && traits_of(config.optimizer.name).streams) ||
        (config.parallel.offload == Offload::kOptimizer && config.parallel.recompute.word == Recomputed::kAuto))
      add("parallel.offload", "all");
    // With one pass a step each gradient is reduced as soon as it is computed, under every policy.
    if (local > micro) add("batch.micro_batch_size", std::to_string(local));
    if (question.gpu && compute_dtype(config, question.gpu) == at::kFloat) add("precision.compute", "bf16");
    add_ranks();
    if (local > micro) add("batch.global_batch_size", std::to_string(config.batch.global_batch_size / local * micro));
    if (!config.lora && traits_of(config.optimizer.name).bf16_moments &&
        config.optimizer.moments == OptimizerSection::Moments::kFp32)
      add("optimizer.moments", "bf16");
    if (!config.lora && compute_dtype(config, question.gpu) == at::kBFloat16 &&
        config.optimizer.gradients == OptimizerSection::Gradients::kFp32)
      add("optimizer.gradients", "bf16");
    if (!config.lora && compute_dtype(config, question.gpu) == at::kBFloat16 &&
        traits_of(config.optimizer.name).bf16_masters && config.optimizer.masters == OptimizerSection::Masters::kFp32)
      add("optimizer.masters", "bf16");
    const ModelFacts& facts = question.model.facts();
    const bool plain = config.precision.linear != PrecisionSection::Linear::kFp8 &&
                       config.precision.frozen == PrecisionSection::Frozen::kAuto;
    if (question.gpu && plain && (config.lora ? facts.frozen_fp8 : facts.trained_fp8)) add("precision.linear", "fp8");
    if (config.lora && plain && facts.frozen_nf4) add("precision.frozen", "nf4");
    const std::vector<Recipe>& all = trained_fp8_recipes();
    const auto codes = std::ranges::find_if(all, [](Recipe recipe) { return traits_of(recipe).stores_codes; });
    if (trains_in_fp8(config) && codes != all.end() && !block_traits(question, config).stores_codes)
      add("precision.fp8_recipe", word_of(*codes));
    const bool fp8_keys = config.precision.fp8_recipe || config.precision.fp8_skip_first > 0 ||
                          config.precision.fp8_skip_last > 0;  // not with a lora section
    if (!config.lora && !facts.adapter_targets.empty() && !fp8_keys) add_adapters(facts.adapter_targets);
    add_shorter_rows();
  }

  std::vector<PlanHint> take() {
    std::erase_if(hints_, [this](const PlanHint& hint) {
      const Config& config = hint.config;
      const int64_t tokens = config.batch.micro_batch_size * config.data.seq_length;
      const PlanQuestion changed = question_.with(config, hint.ranks);
      return context_sizes(changed).empty() ||
             !ramp_fits(config.batch, config.batch.global_batch_size / rows_of_reader(changed)) ||
             (question_.gpu && tokens % block_traits(question_, config).token_multiple != 0);
    });
    return std::move(hints_);
  }

 private:
  void add(const std::string& key, const std::string& value) {
    PlanHint hint{{fmt::format("{}: {}", key, value)}, question_.config, question_.ranks};
    set_key(hint.config, key, value);
    hints_.push_back(std::move(hint));
  }

  void add_adapters(const std::vector<std::string>& targets) {
    add("lora.r", "16");
    if (targets == LoraSection{}.target_modules.names) return;
    hints_.back().config.lora->target_modules = {targets};
    hints_.back().settings.push_back(fmt::format("lora.target_modules: [{}]", join(targets, ", ")));
  }

  bool fits(const PlanHint& hint) const {
    const PlanQuestion changed = question_.with(hint.config, hint.ranks);
    return !context_sizes(changed).empty() && least_plan(changed).fits();
  }

  /// Where the configuration has a context size: the next larger one that fits; if none does, the largest.
  void add_context() {
    if (question_.config.parallel.context_size == ParallelSection::kAutoSize) return;
    std::optional<PlanHint> last;
    for (int64_t size = question_.config.parallel.context_size + 1; size <= question_.ranks; ++size) {
      PlanHint hint{{fmt::format("parallel.context_size: {}", size)}, question_.config, question_.ranks};
      hint.config.parallel.context_size = size;
      if (context_sizes(question_.with(hint.config, hint.ranks)).empty()) continue;
      last = hint;
      if (fits(hint)) break;
    }
    if (last) hints_.push_back(*std::move(last));
  }

  /// The fewest ranks that fit, in doublings; if none do, twice as many.
  void add_ranks() {
    std::optional<PlanHint> first;
    for (int64_t ranks = 2 * int64_t{question_.ranks}; ranks <= kMostRanks; ranks *= 2) {
      PlanHint hint{{fmt::format("{} ranks", ranks)}, question_.config, static_cast<int>(ranks)};
      BatchSection& batch = hint.config.batch;
      if (hint.config.parallel.shard_size != ParallelSection::kAutoSize)
        hint.config.parallel.shard_size = ParallelSection::kWorldSize;
      const int64_t context = least_context_size(hint.config, ranks, question_.model.facts().divides_rows);
      if (ranks % context != 0) continue;
      const int64_t readers = ranks / context;
      if (batch.global_batch_size % readers != 0) {
        batch.global_batch_size = round_up(batch.global_batch_size, readers);
        hint.settings.push_back(fmt::format("batch.global_batch_size: {}", batch.global_batch_size));
      }
      const int64_t local = batch.global_batch_size / readers, micro = batch.micro_batch_size;
      while (local % batch.micro_batch_size != 0) --batch.micro_batch_size;
      if (batch.micro_batch_size != micro)
        hint.settings.push_back(fmt::format("batch.micro_batch_size: {}", batch.micro_batch_size));
      if (hint.config.parallel.shard_size != question_.config.parallel.shard_size)
        hint.settings.emplace_back("parallel.shard_size: world");
      if (!first && !context_sizes(question_.with(hint.config, hint.ranks)).empty()) first = hint;
      if (!fits(hint)) continue;
      first = hint;
      break;
    }
    if (first) hints_.push_back(*std::move(first));
  }

  /// The longest rows that fit, in halvings; if none do, half as long.
  void add_shorter_rows() {
    std::optional<PlanHint> first;
    for (int64_t length = question_.config.data.seq_length / 2; length >= kShortestRow; length /= 2) {
      PlanHint hint{{fmt::format("data.seq_length: {}", length)}, question_.config, question_.ranks};
      hint.config.data.seq_length = length;
      if (!first) first = hint;
      if (!fits(hint)) continue;
      first = hint;
      break;
    }
    if (first) hints_.push_back(*std::move(first));
  }

  const PlanQuestion& question_;
  std::vector<PlanHint> hints_;
};

/// All changes of one setting that save something.
std::vector<PlanHint> single_hints(const PlanQuestion& question, int64_t total) {
  std::vector<PlanHint> hints = Changes(question).take();
  for (PlanHint& hint : hints) {
    const TrainingPlan plan = least_plan(question.with(hint.config, hint.ranks));
    hint.saved = total - plan.total();
    hint.lacking = plan.lacking();
  }
  std::erase_if(hints, [&](const PlanHint& hint) {
    return static_cast<double>(hint.saved) < kLeastSaving * static_cast<double>(total);
  });
  return hints;
}

/// The best setting, the best beside it, and so on, until the run fits.
std::optional<PlanHint> combined_hint(const PlanQuestion& question, int64_t total) {
  PlanHint all{{}, question.config, question.ranks};
  for (size_t i = 0; i < kMostTogether; ++i) {
    const PlanQuestion now = question.with(all.config, all.ranks);
    std::vector<PlanHint> hints = single_hints(now, least_plan(now).total());
    const auto best = std::min_element(hints.begin(), hints.end(), [](const PlanHint& a, const PlanHint& b) {
      return std::max<int64_t>(a.lacking, 0) < std::max<int64_t>(b.lacking, 0);
    });
    if (best == hints.end()) return std::nullopt;
    best->settings.insert(best->settings.begin(), all.settings.begin(), all.settings.end());
    all = std::move(*best);
    if (all.lacking > 0) continue;
    all.saved = total - least_plan(question.with(all.config, all.ranks)).total();
    return all;
  }
  return std::nullopt;
}

}  // namespace

std::string PlanHint::text() const {
  std::string all = settings.front();
  for (size_t i = 1; i < settings.size(); ++i) all += (i == 1 ? " with " : " and ") + settings[i];
  return fmt::format("{} (saves {}{})", all, format_bytes(saved),
                     lacking > 0 ? fmt::format(", {} still lack", format_bytes(lacking)) : ": fits");
}

std::vector<PlanHint> plan_hints(const PlanQuestion& question) {
  const int64_t total = least_plan(question).total();
  std::vector<PlanHint> hints = single_hints(question, total);
  const auto rest =
      std::stable_partition(hints.begin(), hints.end(), [](const PlanHint& hint) { return hint.lacking <= 0; });
  std::stable_sort(rest, hints.end(), [](const PlanHint& a, const PlanHint& b) { return a.saved > b.saved; });
  if (rest == hints.begin() && !hints.empty())
    if (auto together = combined_hint(question, total)) hints.insert(hints.begin(), *std::move(together));
  return hints;
}

}  // namespace trireme
