#include "trireme/plan/plan.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/keys.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/hints.h"
#include "trireme/plan/precision.h"
#include "trireme/plan/search.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace trireme {

namespace {

constexpr size_t kShownHints = 3;

/// Memory of a GPU process for the context and the libraries before the first tensor, and memory that the allocator
/// cannot use; with several ranks also NCCL's buffers and the workspaces of concurrent streams.
int64_t gpu_overhead(int ranks) { return int64_t{ranks > 1 ? 8 : 3} << 30; }

/// "backward recomputes 3 of 32 blocks and the MLPs of 2", or "backward recomputes nothing".
std::string recomputation(const TrainingPlan& plan) {
  // What waits on the host of blocks with kMlp is not computed again.
  const auto count = [&](Recompute what) {
    return std::count(plan.recompute.begin() + (what == Recompute::kMlp ? plan.offloaded : 0), plan.recompute.end(),
                      what);
  };
  std::vector<std::string> parts;
  if (const auto full = count(Recompute::kFull); full > 0) parts.push_back(fmt::format("{} whole", full));
  if (const auto spared = count(Recompute::kAttention); spared > 0)
    parts.push_back(fmt::format("all but attention of {}", spared));
  if (const auto mlp = count(Recompute::kMlp); mlp > 0)
    parts.push_back(fmt::format("the MLP{} of {}", mlp == 1 ? "" : "s", mlp));
  if (const auto norms = count(Recompute::kNorms); norms > 0)
    parts.push_back(fmt::format("norms and activation{} of {}", norms == 1 ? "" : "s", norms));
  if (parts.empty()) return "backward recomputes nothing";
  return fmt::format("of {}, backward recomputes {}{}", counted(plan.recompute.size(), "block"), join(parts, ", "),
                     plan.tile_tokens > 0 ? fmt::format(" in tiles of {} tokens", plan.tile_tokens) : "");
}

/// Bytes of gradients, their sums and master weights. ConfigError.
void choose_number_formats(const Config& config, at::ScalarType dtype, PlanInput& input) {
  if (config.parallel.reduce_dtype == ParallelSection::ReduceDtype::kCompute)
    input.gradient_bytes = input.compute_bytes;
  const bool bf16_gradients = config.optimizer.gradients == OptimizerSection::Gradients::kBf16,
             bf16_masters = config.optimizer.masters == OptimizerSection::Masters::kBf16;
  if ((bf16_gradients || bf16_masters) && dtype != at::kBFloat16)
    throw ConfigError(fmt::format("optimizer.{} bf16 needs products in bf16, and precision.compute is {} here",
                                  bf16_masters ? "masters" : "gradients", dtype == at::kHalf ? "fp16" : "fp32"));
  if (bf16_gradients) input.gradient_bytes = input.sum_bytes = 2;
  input.master_bytes = OptimizerTraits::master_bytes(config.optimizer);
}

void choose_recompute(const Config& config, PlanInput& input) {
  switch (const auto& recompute = config.parallel.recompute; recompute.word) {
    case ParallelSection::Recompute::kAuto: break;
    case ParallelSection::Recompute::kNone: input.recompute = Recompute::kNone; break;
    case ParallelSection::Recompute::kNorms: input.recompute = Recompute::kNorms; break;
    case ParallelSection::Recompute::kMlp: input.recompute = Recompute::kMlp; break;
    case ParallelSection::Recompute::kAttention: input.recompute = Recompute::kAttention; break;
    case ParallelSection::Recompute::kFull: input.recompute = Recompute::kFull; break;
    case ParallelSection::Recompute::kShare:
      input.recompute_blocks = recompute_fraction(input.num_blocks, parse_fraction(recompute.share).value());
      break;
  }
}

/// ConfigError where the products' scales allow no tiles.
void choose_tiles(const PlanQuestion& question, const RecipeTraits& recipe, PlanInput& input) {
  const Config& config = question.config;
  // A tile may be a part of one row.
  const bool whole_codes = !question.gpu || config.data.seq_length % recipe.token_multiple == 0;
  if (!whole_codes) input.row.tile_token = 0;
  if (const int64_t tile = config.parallel.tile_tokens; tile != ParallelSection::kAutoTile) {
    if (!whole_codes)
      throw ConfigError(
          fmt::format("parallel.tile_tokens: {}: FP8 products need {} tokens or a multiple, and data.seq_length is {}",
                      tile, recipe.token_multiple, config.data.seq_length));
    if (!recipe.rows_apart)
      throw ConfigError(fmt::format(
          "parallel.tile_tokens: {}: the FP8 recipe {} has one scale for all tokens of a product, which tiles would "
          "divide: take precision.fp8_recipe: rowwise, or leave tile_tokens out",
          tile, recipe.name));
    input.tile = tile;
  }
}

/// `streams`: the optimizer's state may pass through the device. ConfigError.
void choose_offload(const PlanQuestion& question, bool streams, PlanInput& input) {
  using Offload = ParallelSection::Offload;
  const Offload offload = question.config.parallel.offload;
  if (offload == Offload::kActivations || offload == Offload::kAll) input.offload = PlanInput::Offload::kAll;
  if (offload == Offload::kOptimizer || offload == Offload::kAll) input.state = PlanInput::Offload::kAll;
  if (input.offload == PlanInput::Offload::kAll && input.recompute == Recompute::kMlp && input.row.saved_mlp == 0)
    throw ConfigError(
        fmt::format("parallel.offload: {}: blocks of this model do not recompute their MLPs alone: take "
                    "parallel.recompute: attention or full",
                    word_of(offload)));
  // CPU ranks' activations and state are in host memory already.
  if (offload == Offload::kAuto && question.gpu && question.host_memory > 0) {
    input.offload = PlanInput::Offload::kAuto;
    if (streams) input.state = PlanInput::Offload::kAuto;
  }
}

}  // namespace

PlanInput plan_input(const PlanQuestion& question) {
  const Config& config = question.config;
  const at::ScalarType dtype = compute_dtype(config, question.gpu);
  PlanInput input;
  input.compute_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  input.rates = question.rates;
  input.context_size = choose_context_size(question);
  Config slices = config;  // the rows of a rank
  slices.data.seq_length /= input.context_size;
  ModelShape shape = question.model.model_shape(slices, input.compute_bytes);
  shape.context = input.context_size;
  const RecipeTraits& recipe = traits_of(block_recipe(config, question.model.facts().automatic_fp8));
  input.units = shape.units;
  input.owner = shape.owner;
  input.num_blocks = shape.num_blocks;
  input.kernels = question.kernels;
  input.row = row_memory(shape, recipe, input.compute_bytes, question.kernels);
  if (question.kernels != KernelClass::kNone)
    input.row.head.logits_most = std::min(input.row.head.logits_most, loss_head_logits(question.device_memory));
  input.times = row_times(shape, recipe, input.rates, input.compute_bytes);
  input.predicted = question.gpu;
  input.rows = static_cast<int>(config.batch.micro_batch_size);
  input.world_size = question.ranks;
  input.micro_batches = static_cast<int>(
      config.batch.global_batch_size / RankGrid(0, {.world = question.ranks, .context = input.context_size}).data.size /
      config.batch.micro_batch_size);
  const int64_t shard_size = config.parallel.shard_size;
  if (shard_size != ParallelSection::kAutoSize)
    input.shard_size = shard_size == ParallelSection::kWorldSize ? question.ranks : static_cast<int>(shard_size);
  choose_number_formats(config, dtype, input);
  input.frozen_fp8 = traits_of(frozen_recipe(config)).stores_codes;
  input.frozen_nf4 = frozen_nf4(config);
  if (input.frozen_nf4) input.times.pass += nf4_time(shape, input.rates, input.compute_bytes);
  input.trained = trained_recipe(config, question.model.facts().automatic_fp8);
  input.compute_first = config.precision.fp8_skip_first;
  input.compute_last = config.precision.fp8_skip_last;
  input.transpose_cache = config.precision.fp8_transpose_cache;
  if (question.gpu)
    input.rows_multiple =
        static_cast<int>(recipe.token_multiple / std::gcd(recipe.token_multiple, slices.data.seq_length));
  choose_recompute(config, input);
  input.row_tokens = shape.tokens;
  choose_tiles(question, recipe, input);
  const OptimizerTraits& optimizer = traits_of(config.optimizer.name);
  choose_offload(question, optimizer.streams, input);
  input.host_memory = question.gpu ? question.host_memory : std::numeric_limits<int64_t>::max() / 4;
  input.host_apart = question.gpu;
  input.moment_bytes = optimizer.moment_bytes(config.optimizer);
  input.matrix_moment_bytes = optimizer.moment_bytes(config.optimizer, /*matrix=*/true);
  input.matrix_work = matrix_work(config.optimizer, *input.units);
  input.policy = parse_policy(word_of(config.parallel.policy));
  input.ranks_per_host = question.ranks_per_host;
  input.device_memory = question.device_memory;
  input.overhead = question.gpu ? gpu_overhead(question.ranks) : 0;
  return input;
}

std::vector<Recompute> recompute_fraction(int num_blocks, double fraction) {
  std::vector<Recompute> blocks(static_cast<size_t>(num_blocks), Recompute::kNone);
  double threshold = 0.5;
  for (int i = 1; i <= num_blocks; ++i) {
    if (i * fraction < threshold) continue;
    blocks[static_cast<size_t>(i - 1)] = Recompute::kFull;
    threshold += 1;
  }
  return blocks;
}

namespace {

/// Why the ranks of `question` cannot share a row in groups of `size`; empty: they can.
std::string context_problem(const PlanQuestion& question, int64_t size) {
  const Config& config = question.config;
  if (size == 1) return "";
  if (!question.model.facts().divides_rows) return "is not for this model, whose ranks read rows of their own";
  if (question.ranks % size != 0 || config.data.seq_length % size != 0)
    return fmt::format("does not divide {} and data.seq_length {}", counted(question.ranks, "rank"),
                       config.data.seq_length);
  const ModelShape shape = question.model.model_shape(config, 1);
  const BlockTable& block = *shape.block;
  if (block.heads % size != 0) {
    const int64_t common = std::gcd(block.heads, question.ranks);
    return fmt::format(
        "does not divide the model's {} query heads, of which each rank takes its part: take {}; for more ranks than "
        "heads keys and values would have to be divided by tokens as well, which is not there",
        block.heads, common == 1 ? "1" : fmt::format("a divisor of {}", common));
  }
  if (question.ranks_per_host > 0 && question.ranks_per_host % size != 0)
    return fmt::format(
        "reaches over hosts of {}: heads are exchanged between ranks of one host; between hosts keys and values would "
        "have to be divided by tokens as well, which is not there",
        counted(question.ranks_per_host, "rank"));
  const int64_t tokens = config.batch.micro_batch_size * config.data.seq_length / size;
  const int64_t multiple = traits_of(block_recipe(config, question.model.facts().automatic_fp8)).token_multiple;
  if (question.gpu && tokens % multiple != 0)
    return fmt::format("leaves a rank {} tokens of a micro-batch, of which products in FP8 need multiples of {}",
                       tokens, multiple);
  return "";
}

/// Whether the rows of every global batch divide over groups of `size` ranks.
bool rows_divide(const PlanQuestion& question, int size) {
  const BatchSection& batch = question.config.batch;
  const int64_t unit = question.ranks / size * batch.micro_batch_size;
  return batch.global_batch_size % unit == 0 &&
         (batch.rampup.empty() || (batch.rampup[0] % unit == 0 && batch.rampup[1] % unit == 0));
}

}  // namespace

std::vector<int> context_sizes(const PlanQuestion& question) {
  const ParallelSection& parallel = question.config.parallel;
  std::vector<int> sizes;
  for (int size = 1; size <= (question.model.facts().divides_rows ? question.ranks : 1); ++size) {
    if (question.ranks % size != 0) continue;
    if (parallel.context_size > 0 ? size != parallel.context_size : !rows_divide(question, size)) continue;
    if (const int64_t shard = parallel.shard_size; shard > 0 && shard % size != 0 && size % shard != 0) continue;
    if (context_problem(question, size).empty()) sizes.push_back(size);
  }
  return sizes;
}

TrainingPlan least_plan(const PlanQuestion& question) {
  // Sharing that saves less than this is not where the memory lacks.
  constexpr double kWorthSharing = 0.8;
  if (question.context_size > 0) return least_plan(plan_input(question));
  std::optional<TrainingPlan> first, least;
  PlanQuestion one = question;
  using Offload = PlanInput::Offload;
  // State goes to the host where no context size is enough without.
  for (const bool leaves : {false, true}) {
    for (const int size : context_sizes(question)) {
      one.context_size = size;
      PlanInput input = plan_input(one);
      if (leaves && input.state != Offload::kAuto) break;
      if (!leaves && input.state == Offload::kAuto) input.state = Offload::kNone;
      const TrainingPlan plan = least_plan(input);
      if (plan.fits()) return plan;
      if (!first || (leaves && first->host_units == 0)) first = plan;
      if (!least || plan.total() < least->total()) least = plan;
    }
  }
  TRIREME_CHECK(first, "no context size is possible");
  const bool worth = static_cast<double>(least->total()) < kWorthSharing * static_cast<double>(first->total());
  return worth ? *least : *first;
}

int choose_context_size(const PlanQuestion& question) {
  if (question.context_size > 0) return question.context_size;
  const std::vector<int> sizes = context_sizes(question);
  if (sizes.empty()) {
    const int64_t size = least_context_size(question.config, question.ranks, question.model.facts().divides_rows);
    const ParallelSection& parallel = question.config.parallel;
    std::string problem = context_problem(question, size);
    if (problem.empty()) problem = fmt::format("does not fit parallel.shard_size {}", parallel.shard_size);
    problem = fmt::format("parallel.context_size {} {}", size, problem);
    if (parallel.context_size > 0) throw ConfigError(problem);
    const BatchSection& batch = question.config.batch;
    const bool whole = batch.global_batch_size % (question.ranks * batch.micro_batch_size) != 0;
    throw ConfigError(fmt::format(
        "batch.{} does not divide over {} x batch.micro_batch_size {}: take fewer ranks, larger batches or a smaller "
        "micro-batch. Ranks that share a row would do it, but {}",
        whole ? fmt::format("global_batch_size {}", batch.global_batch_size) : "rampup",
        counted(question.ranks, "rank"), batch.micro_batch_size, problem));
  }
  return sizes.size() == 1 ? sizes.front() : least_plan(question).context_size;
}

TrainingPlan plan_run(const PlanQuestion& question) {
  const PlanInput input = plan_input(question);
  if (auto plan = find_plan(input)) return *std::move(plan);
  const std::vector<PlanHint> hints = plan_hints(question);
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShownHints, hints.size()); ++i) shown.push_back(hints[i].text());
  const TrainingPlan least = least_plan(input);
  // At least the inputs of all blocks, or what their MLPs keep, but of the last, which stays on the device.
  const int64_t needed =
      (input.num_blocks - 1) * (input.recompute == Recompute::kMlp ? input.row.projection : input.row.saved_input);
  if (input.offload == PlanInput::Offload::kAll && needed > input.host_memory)
    throw ConfigError(fmt::format(
        "parallel.offload: activations needs {} of pinned memory for each rank, and its host has {} for it: take "
        "parallel.offload: auto, or fewer ranks on a host",
        format_bytes(needed), format_bytes(input.host_memory)));
  if (input.state == PlanInput::Offload::kAll && least.host_units == 0)
    throw ConfigError(
        fmt::format("parallel.offload: {} needs pinned memory for master weights and moments of a unit, and a rank's "
                    "host has {} for "
                    "it: take parallel.offload: auto, or fewer ranks on a host",
                    word_of(question.config.parallel.offload), format_bytes(input.host_memory)));
  const bool long_rows = 2 * (least.activations + least.working) > least.total();
  const std::string whole =
      long_rows ? fmt::format("; a row of {} tokens is on {}: more of a host may share it (parallel.context_size)",
                              question.config.data.seq_length,
                              input.context_size == 1 ? "one rank" : fmt::format("{} ranks", input.context_size))
                : "";
  // Where the host is full, too.
  const int trained = static_cast<int>(std::ranges::count_if(*input.units, &UnitSpec::trained));
  const std::string host = least.host_units > 0 && least.host_units < trained
                               ? fmt::format("; {} of its host hold the state of {} of {} units",
                                             format_bytes(input.host_memory), least.host_units, trained)
                               : "";
  throw ConfigError(
      fmt::format("{}{}{}; try {}", describe_need(least), host, whole,
                  shown.empty() ? "a smaller model: no setting saves memory here" : join(shown, ", or ")));
}

std::string describe_parts(const TrainingPlan& plan) {
  const std::string why =
      plan.accumulated_passes > 1 && plan.shard_size > 1 && plan.gradients > plan.total() / 10
          ? fmt::format(", whole on every rank because the gradients of {} forward passes are summed",
                        plan.accumulated_passes)
          : "";
  return fmt::format(
      "weights {}, master weights {}, moments {}, gradients {}{}, gather slots {}, activations {}, working memory {}, "
      "libraries {}{}{}",
      format_bytes(plan.weights), format_bytes(plan.masters), format_bytes(plan.moments), format_bytes(plan.gradients),
      why, format_bytes(plan.gather_slots), format_bytes(plan.activations), format_bytes(plan.working),
      format_bytes(plan.overhead),
      plan.transposed > 0 ? fmt::format(", transposed FP8 codes {}", format_bytes(plan.transposed)) : "",
      plan.host_state > 0 ? fmt::format("; master weights and moments on the host {}", format_bytes(plan.host_state))
                          : "");
}

std::string describe_need(const TrainingPlan& plan) {
  return fmt::format("the run needs {} per rank and {} of headroom, {} is available ({})", format_bytes(plan.total()),
                     format_bytes(plan.headroom()), format_bytes(plan.device_memory), describe_parts(plan));
}

std::string describe_plan(const TrainingPlan& plan, const std::vector<UnitSpec>& units) {
  int sharded = 0, whole = 0;
  bool divides = false;
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitDivision division = divide_unit(units[u], plan.shard_size, plan.policy, plan.resident[u]);
    divides = divides || division.state;
    (division.weights ? sharded : whole)++;
  }
  std::string text;
  if (plan.context_size > 1)
    text = fmt::format("context: {} ranks share a row, each with its part of the tokens\n", plan.context_size);
  text +=
      fmt::format("units: {} whole, {} sharded over {}; {}{} per forward pass; {}\n", whole, sharded,
                  counted(plan.shard_size, "rank"), divides ? fmt::format("policy {}; ", policy_name(plan.policy)) : "",
                  counted(plan.rows_per_pass, "row"), recomputation(plan));
  auto row = [&](const char* name, int64_t bytes) {
    text += fmt::format("  {:<22}{:>12}\n", name, format_bytes(bytes));
  };
  text += "memory per rank:\n";
  row("weights", plan.weights);
  row("master weights", plan.masters);
  row("optimizer moments", plan.moments);
  row("gradients", plan.gradients);
  row("gather slots", plan.gather_slots);
  row("saved activations", plan.activations);
  if (plan.reused > 0) row("reused by gradients", -plan.reused);
  row("working memory", plan.working);
  if (plan.transposed > 0) row("transposed FP8 codes", plan.transposed);
  row("context and libraries", plan.overhead);
  row("total", plan.total());
  if (plan.offloaded > 0) row("pinned on the host", plan.host);
  if (plan.host_state > 0) row("state on the host", plan.host_state);
  if (plan.device_memory > 0) {
    row("available", plan.device_memory);
    row("left free", plan.device_memory - plan.total());
  }
  text += fmt::format(
      "gathered per forward pass: {} per rank; gradients received per step: {} from the shard group, {} from "
      "replicas\n",
      format_bytes(plan.gathered_per_pass), format_bytes(plan.reduced_per_step),
      format_bytes(plan.replica_reduced_per_step));
  if (plan.offloaded > 0)
    text += fmt::format("{} of the first {} wait on the host{}\n",
                        plan.recompute.front() == Recompute::kMlp ? "first projections of the MLPs" : "activations",
                        counted(plan.offloaded, "block"),
                        plan.cost.known ? fmt::format(": copies of {:.1f} ms per step, {:.1f} ms of them not hidden",
                                                      plan.cost.copies * 1e3, plan.cost.offload * 1e3)
                                        : "");
  if (plan.host_units > 0)
    text += fmt::format(
        "master weights and moments of the first {} wait on the host{}\n", counted(plan.host_units, "trained unit"),
        plan.cost.known ? fmt::format(": {:.1f} ms per step through the GPU", plan.cost.state * 1e3) : "");
  if (plan.cost.known) text += describe_cost(plan.cost) + '\n';
  return text;
}

std::string describe_cost(const StepCost& cost) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  return fmt::format(
      "predicted step: {:.1f} ms (computation {:.1f}, recomputation {:.1f}, communication that is not hidden {:.1f}, "
      "slowed by communication {:.1f}, optimizer {:.1f}, other {:.1f}{}{})",
      ms(cost.total()), ms(cost.compute), ms(cost.recompute), ms(cost.exposed), ms(cost.interference),
      ms(cost.optimizer), ms(cost.fixed),
      cost.offload > 0 ? fmt::format(", waiting for the host's copies {:.1f}", ms(cost.offload)) : "",
      cost.state > 0 ? fmt::format(", optimizer's state from the host and back {:.1f}", ms(cost.state)) : "");
}

}  // namespace trireme
