#include "trireme/fsdp/plan.h"

#include "recompute_fraction.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/fsdp/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace trireme {

namespace {

/// Fraction of a gather's time by which it slows the products that run at the same time (copies share memory bandwidth
/// and power with them).
constexpr double kGatherInterference = 0.25;

int count(const MemoryPlan& plan, Recompute what) {
  return static_cast<int>(std::count(plan.recompute.begin(), plan.recompute.end(), what));
}

/// The decisions of a plan; everything else follows from them.
struct Choice {
  int shard_size = 1, rows = 1, resident = 0, mlp = 0, full = 0;
};

/// The part of a shard size's memory that does not depend on the other decisions.
struct Storage {
  MemoryPlan bytes;  // with no resident unit and no activations
  int64_t largest_slot = 0, all_gradients = 0, few_gradients = 0;
  std::vector<size_t> gathered;  // indices of the units that could stay whole
  std::vector<int64_t> extra;    // bytes that each of them adds if it does
};

/// Bytes of a unit. Frozen FP8 units keep their vectors whole, in the compute dtype.
struct UnitBytes {
  int64_t shard, whole;
};
UnitBytes storage_bytes(const PlanInput& input, const UnitSpec& unit, int shard_count) {
  if (!input.frozen_fp8 || unit.trained) {
    const UnitLayout layout = make_layout(unit, shard_count);
    return {layout.shard_numel * input.compute_bytes, layout.numel * input.compute_bytes};
  }
  UnitSpec matrices = unit, vectors = unit;
  std::erase_if(matrices.parameters, [](const ParameterSpec& p) { return !p.quantisable; });
  std::erase_if(vectors.parameters, [](const ParameterSpec& p) { return p.quantisable; });
  if (matrices.parameters.empty()) {
    const UnitLayout layout = make_layout(unit, shard_count);
    return {layout.shard_numel * input.compute_bytes, layout.numel * input.compute_bytes};
  }
  const UnitLayout layout = make_layout(matrices, shard_count);
  const int64_t beside = make_layout(vectors, 1).numel * input.compute_bytes;
  return {layout.shard_numel + beside, layout.numel + beside};
}

Storage storage_of(const PlanInput& input, int shard_size) {
  Storage storage;
  MemoryPlan& plan = storage.bytes;
  plan.shard_size = shard_size;
  plan.device_memory = input.device_memory;
  plan.overhead = input.overhead;
  int64_t largest_gradient = 0;
  for (size_t u = 0; u < input.units->size(); ++u) {
    const UnitSpec& unit = (*input.units)[u];
    const bool sharded = shard_size > 1 && !unit.replicated;
    const UnitBytes bytes = storage_bytes(input, unit, sharded ? shard_size : 1);
    plan.weights += bytes.shard;
    if (sharded) {
      if (unit.keep)
        plan.gather_slots += bytes.whole;
      else
        storage.largest_slot = std::max(storage.largest_slot, bytes.whole);
      plan.gathered_per_pass += bytes.whole - bytes.shard;
      if (!unit.trained && !unit.keep) {
        storage.gathered.push_back(u);
        storage.extra.push_back(bytes.whole - bytes.shard);
      }
    }
    if (unit.trained) {
      const UnitLayout layout = make_layout(unit, sharded ? shard_size : 1);
      if (input.compute_bytes < 4) plan.masters += layout.shard_numel * 4;
      plan.moments += layout.shard_numel * 8;
      if (sharded) plan.gradients += layout.shard_numel * input.gradient_bytes;
      largest_gradient = std::max(largest_gradient, layout.numel * 4);
      storage.all_gradients += layout.numel * 4;
    }
  }
  storage.few_gradients = std::min(storage.all_gradients, 3 * largest_gradient);
  return storage;
}

/// Spreads the resident units evenly between sharded ones, so that a gather can overlap with more than one block.
bool is_resident(size_t index, size_t count, int resident) {
  const auto r = static_cast<size_t>(resident);
  return (index + 1) * r / count > index * r / count;
}

MemoryPlan evaluate(const PlanInput& input, const Storage& storage, const Choice& choice) {
  MemoryPlan plan = storage.bytes;
  plan.rows_per_pass = choice.rows;
  const int passes = input.micro_batches * (input.rows / choice.rows);
  plan.accumulated_passes = passes;
  // Whole gradients in memory: those of all units if passes accumulate or units are not sharded; otherwise only those
  // whose reduction is running.
  const int64_t whole = plan.shard_size == 1 || passes > 1 ? storage.all_gradients : storage.few_gradients;
  plan.gradients += passes > 1 ? whole : whole / 4 * input.gradient_bytes;
  if (choice.resident < static_cast<int>(storage.gathered.size()) || storage.gathered.empty())
    plan.gather_slots += kGatherSlots * storage.largest_slot;
  for (size_t i = 0; i < storage.gathered.size(); ++i) {
    if (!is_resident(i, storage.gathered.size(), choice.resident)) continue;
    plan.weights += storage.extra[i];
    plan.gathered_per_pass -= storage.extra[i];
  }
  const int none = input.num_blocks - choice.mlp - choice.full;
  int64_t row = none * input.block_saved + choice.mlp * input.block_saved_mlp + choice.full * input.block_recomputed;
  if (choice.full > 0) row += input.block_saved;  // of the block that is being recomputed
  plan.activations = row * choice.rows;
  plan.working = std::max(input.working_peak, input.head) * choice.rows + input.working_fixed;
  return plan;
}

/// Seconds that a step loses to recomputation and gathers.
double cost(const PlanInput& input, const Storage& storage, const Choice& choice, const MemoryPlan& plan) {
  const double passes = input.micro_batches * (input.rows / choice.rows), rows = choice.rows;
  double seconds = rows * (choice.mlp * input.mlp_forward_s + choice.full * input.block_forward_s);
  const auto sharded = static_cast<int>(storage.gathered.size()) - choice.resident;
  if (plan.shard_size > 1 && sharded > 0) {
    const double gather = static_cast<double>(plan.gathered_per_pass) * input.gathered_byte_s / sharded;
    const double beside = rows * input.block_forward_s * input.num_blocks / sharded;
    // Forward, and backward, which computes at least as long.
    seconds += 2 * sharded * (kGatherInterference * gather + std::max(0.0, gather - beside));
  }
  return passes * seconds;
}

/// Completes the plan with what a run reads.
MemoryPlan finish(const PlanInput& input, const Storage& storage, const Choice& choice) {
  MemoryPlan plan = evaluate(input, storage, choice);
  plan.resident.assign(input.units->size(), false);
  for (size_t i = 0; i < storage.gathered.size(); ++i)
    plan.resident[storage.gathered[i]] = is_resident(i, storage.gathered.size(), choice.resident);
  // Backward frees the last blocks of forward first. The last blocks are the recomputed ones, so that saved activations
  // are those of the first blocks.
  plan.recompute.assign(input.num_blocks, Recompute::kNone);
  for (int i = 0; i < choice.mlp + choice.full; ++i)
    plan.recompute[input.num_blocks - 1 - i] = i < choice.full ? Recompute::kFull : Recompute::kMlp;
  if (input.recompute_share) plan.recompute = recompute_fraction(input.num_blocks, *input.recompute_share);
  return plan;
}

/// Raises recomputation to the least amount with which the choice fits, if there is one.
std::optional<Choice> fit_recomputation(const PlanInput& input, const Storage& storage, Choice choice) {
  const int blocks = input.num_blocks;
  const auto fits = [&] { return evaluate(input, storage, choice).fits(); };
  if (input.recompute) {
    choice.mlp = *input.recompute == Recompute::kMlp ? blocks : 0;
    choice.full = *input.recompute == Recompute::kFull ? blocks : 0;
    if (input.recompute_share) choice.full = recomputed_blocks(blocks, *input.recompute_share);
    return fits() ? std::optional(choice) : std::nullopt;
  }
  if (fits()) return choice;
  std::optional<Choice> best;
  const auto loss = [&](const Choice& c) { return c.mlp * input.mlp_forward_s + c.full * input.block_forward_s; };
  for (int mlp = 0; mlp <= (input.block_saved_mlp > 0 ? blocks : 0); ++mlp) {
    for (int full = 0; mlp + full <= blocks; ++full) {
      choice.mlp = mlp;
      choice.full = full;
      if (best && loss(choice) >= loss(*best)) break;
      if (!fits()) continue;
      best = choice;
      break;
    }
  }
  return best;
}

std::string text_of(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// The shard sizes that the input allows.
std::vector<int> shard_sizes(const PlanInput& input) {
  TRIREME_CHECK(input.units != nullptr && !input.units->empty(), "a memory plan needs at least one unit");
  std::vector<int> sizes;
  for (int size = 1; size <= input.world_size; ++size)
    if (input.world_size % size == 0 && (!input.shard_size || *input.shard_size == size)) sizes.push_back(size);
  TRIREME_CHECK(!sizes.empty(), "shard size ", input.shard_size.value_or(0), " does not divide the number of ranks ",
                input.world_size);
  return sizes;
}

}  // namespace

std::optional<MemoryPlan> find_plan(const PlanInput& input) {
  std::optional<MemoryPlan> best;
  std::tuple<double, int, int, int> best_rank;
  for (const int size : shard_sizes(input)) {
    const Storage storage = storage_of(input, size);
    // A given shard size is used as it is; only the automatic plan fills free memory with resident units.
    const int most = input.shard_size || input.device_memory == 0 ? 0 : static_cast<int>(storage.gathered.size());
    for (int rows = input.rows; rows >= 1; --rows) {
      if (input.rows % rows != 0) continue;
      for (int resident = 0; resident <= most; ++resident) {
        const auto choice = fit_recomputation(input, storage, {size, rows, resident, 0, 0});
        if (!choice) break;  // more resident units leave even less memory
        const MemoryPlan plan = evaluate(input, storage, *choice);
        const std::tuple rank{cost(input, storage, *choice, plan), size, -rows, -resident};
        if (best && rank >= best_rank) continue;
        best = finish(input, storage, *choice);
        best_rank = rank;
      }
    }
  }
  return best;
}

MemoryPlan least_plan(const PlanInput& input) {
  const int blocks = input.num_blocks;
  std::optional<MemoryPlan> least;
  for (const int size : shard_sizes(input)) {
    const Storage storage = storage_of(input, size);
    for (int rows = 1; rows <= input.rows; ++rows) {
      if (input.rows % rows != 0) continue;
      for (const Recompute what : {Recompute::kNone, Recompute::kMlp, Recompute::kFull}) {
        if (input.recompute ? what != *input.recompute : what == Recompute::kMlp && input.block_saved_mlp == 0)
          continue;
        Choice choice{size, rows, 0, what == Recompute::kMlp ? blocks : 0, what == Recompute::kFull ? blocks : 0};
        if (input.recompute_share) choice.full = recomputed_blocks(blocks, *input.recompute_share);
        if (!least || evaluate(input, storage, choice).total() < least->total()) least = finish(input, storage, choice);
      }
    }
  }
  return *least;
}

std::string describe_need(const MemoryPlan& plan) {
  const std::string why =
      plan.accumulated_passes > 1 && plan.shard_size > 1 && plan.gradients > plan.total() / 10
          ? fmt::format(", in fp32 and whole on every rank because {} passes add up", plan.accumulated_passes)
          : "";
  return fmt::format(
      "the run needs {} per rank and {} of headroom, {} is available (weights {}, masters and moments {}, gradients "
      "{}{}, "
      "gather slots {}, activations {}, working memory {}, libraries {})",
      text_of(plan.total()), text_of(plan.headroom()), text_of(plan.device_memory), text_of(plan.weights),
      text_of(plan.masters + plan.moments), text_of(plan.gradients), why, text_of(plan.gather_slots),
      text_of(plan.activations), text_of(plan.working), text_of(plan.overhead));
}

MemoryPlan make_plan(const PlanInput& input) {
  if (auto plan = find_plan(input)) return *std::move(plan);
  throw ConfigError(describe_need(least_plan(input)));
}

std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units) {
  int sharded = 0, whole = 0;
  for (size_t u = 0; u < units.size(); ++u)
    (plan.shard_size > 1 && !units[u].replicated && !plan.resident[u] ? sharded : whole)++;
  std::string text = fmt::format(
      "units: {} whole, {} sharded over {} rank{}; {} row{} a pass; of {} blocks backward recomputes {}, and the MLP "
      "of "
      "{}\n",
      whole, sharded, plan.shard_size, plan.shard_size == 1 ? "" : "s", plan.rows_per_pass,
      plan.rows_per_pass == 1 ? "" : "s", plan.recompute.size(), count(plan, Recompute::kFull),
      count(plan, Recompute::kMlp));
  auto row = [&](const char* name, int64_t bytes) { text += fmt::format("  {:<22}{:>12}\n", name, text_of(bytes)); };
  text += "memory per rank:\n";
  row("weights", plan.weights);
  row("master weights", plan.masters);
  row("optimizer moments", plan.moments);
  row("gradients", plan.gradients);
  row("gather slots", plan.gather_slots);
  row("saved activations", plan.activations);
  row("working memory", plan.working);
  row("context and libraries", plan.overhead);
  row("total", plan.total());
  if (plan.device_memory > 0) {
    row("available", plan.device_memory);
    row("left free", plan.device_memory - plan.total());
  }
  text += fmt::format("gathered per forward pass: {} per rank\n", text_of(plan.gathered_per_pass));
  return text;
}

}  // namespace trireme
