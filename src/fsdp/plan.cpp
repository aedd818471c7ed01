#include "trireme/fsdp/plan.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/fsdp/layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

int num_recomputed(const MemoryPlan& plan) {
  return static_cast<int>(std::count(plan.recompute.begin(), plan.recompute.end(), true));
}

/// Everything but the choice of resident units.
MemoryPlan evaluate(const PlanInput& input, int shard_size, int recomputed_blocks) {
  MemoryPlan plan;
  plan.shard_size = shard_size;
  plan.device_memory = input.device_memory;
  plan.overhead = input.overhead;
  plan.resident.assign(input.units->size(), false);
  // Recomputed blocks come last in forward: they are the first that backward frees, so the saved ones of the front are what stays.
  plan.recompute.assign(input.num_blocks, false);
  for (int i = 0; i < recomputed_blocks; ++i) plan.recompute[input.num_blocks - 1 - i] = true;

  int64_t largest_slot = 0, largest_gradient = 0, all_gradients = 0;
  for (const UnitSpec& unit : *input.units) {
    const bool sharded = shard_size > 1 && !unit.replicated;
    const UnitLayout layout = make_layout(unit, sharded ? shard_size : 1);
    plan.weights += layout.shard_numel * input.compute_bytes;
    if (sharded) {
      const int64_t whole = layout.numel * input.compute_bytes;
      if (unit.keep) plan.gather_slots += whole;
      else largest_slot = std::max(largest_slot, whole);
      plan.gathered_per_pass += whole - layout.shard_numel * input.compute_bytes;
    }
    if (unit.trained) {
      if (input.compute_bytes < 4) plan.masters += layout.shard_numel * 4;
      plan.moments += layout.shard_numel * 8;
      if (sharded) plan.gradients += layout.shard_numel * 4;
      largest_gradient = std::max(largest_gradient, layout.numel * 4);
      all_gradients += layout.numel * 4;
    }
  }
  plan.gather_slots += 2 * largest_slot;
  // Whole gradients: all of them while micro-batches accumulate or units are not cut; else the few whose reduction is under way.
  plan.gradients += shard_size == 1 || input.micro_batches > 1 ? all_gradients : std::min(all_gradients, 3 * largest_gradient);
  plan.activations = (input.num_blocks - recomputed_blocks) * input.block_saved + recomputed_blocks * input.block_recomputed;
  if (recomputed_blocks > 0) plan.activations += input.block_saved;  // of the block being recomputed
  plan.working = std::max(input.working_peak, input.head);
  return plan;
}

void add_resident_units(const PlanInput& input, MemoryPlan& plan) {
  if (plan.shard_size == 1) return;
  for (size_t u = 0; u < input.units->size(); ++u) {
    const UnitSpec& unit = (*input.units)[u];
    if (unit.trained || unit.replicated || unit.keep) continue;
    const UnitLayout layout = make_layout(unit, plan.shard_size);
    const int64_t extra = (layout.numel - layout.shard_numel) * input.compute_bytes;
    if (input.device_memory != 0 && plan.total() + extra > input.device_memory) continue;
    if (input.device_memory == 0) continue;
    plan.resident[u] = true;
    plan.weights += extra;
    plan.gathered_per_pass -= extra;
  }
}

std::string advice(const PlanInput& input, const MemoryPlan& tightest) {
  struct Option {
    std::string what;
    int64_t saved;
  };
  std::vector<Option> options;
  const MemoryPlan all = evaluate(input, input.world_size, input.num_blocks);
  if (tightest.shard_size < input.world_size)
    options.push_back({fmt::format("parallel.shard_size: {}", input.world_size), tightest.total() - evaluate(input, input.world_size, num_recomputed(tightest)).total()});
  if (num_recomputed(tightest) < input.num_blocks)
    options.push_back({"parallel.recompute: full", tightest.total() - evaluate(input, tightest.shard_size, input.num_blocks).total()});
  options.push_back({"half the batch.micro_batch_size", (all.activations + all.working) / 2});
  options.push_back({"half the data.seq_length", (all.activations + all.working) / 2});
  PlanInput twice = input;
  twice.world_size *= 2;
  options.push_back({fmt::format("twice the ranks ({})", twice.world_size), all.total() - evaluate(twice, twice.world_size, input.num_blocks).total()});
  std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) { return a.saved > b.saved; });
  std::string text;
  for (size_t i = 0; i < options.size() && i < 3; ++i)
    text += fmt::format("{}{} (saves {})", i == 0 ? "" : ", ", options[i].what, format_bytes(static_cast<double>(options[i].saved)));
  return text;
}

}  // namespace

MemoryPlan make_plan(const PlanInput& input) {
  TRIREME_CHECK(input.units != nullptr && !input.units->empty(), "a plan needs units");
  std::vector<int> sizes;
  for (int size = 1; size <= input.world_size; ++size)
    if (input.world_size % size == 0 && (!input.shard_size || *input.shard_size == size)) sizes.push_back(size);
  TRIREME_CHECK(!sizes.empty(), "shard size ", input.shard_size.value_or(0), " does not divide ", input.world_size);

  std::optional<MemoryPlan> best;
  for (const int size : sizes) {
    const int fewest = input.recompute_all.value_or(false) ? input.num_blocks : 0;
    const int most = input.recompute_all.has_value() && !*input.recompute_all ? 0 : input.num_blocks;
    for (int blocks = fewest; blocks <= most; ++blocks) {
      MemoryPlan plan = evaluate(input, size, blocks);
      if (!plan.fits()) continue;
      if (!best || num_recomputed(plan) < num_recomputed(*best)) best = plan;
      break;
    }
  }
  if (!best) {
    const int blocks = input.recompute_all.has_value() && !*input.recompute_all ? 0 : input.num_blocks;
    const MemoryPlan tightest = evaluate(input, sizes.back(), blocks);
    throw ConfigError(fmt::format("the run needs {} per rank and {} is there (weights {}, masters and moments {}, gradients {}, "
                                  "gather slots {}, activations {}, working memory {}); what would save most: {}",
                                  format_bytes(static_cast<double>(tightest.total())),
                                  format_bytes(static_cast<double>(input.device_memory)),
                                  format_bytes(static_cast<double>(tightest.weights)),
                                  format_bytes(static_cast<double>(tightest.masters + tightest.moments)),
                                  format_bytes(static_cast<double>(tightest.gradients)),
                                  format_bytes(static_cast<double>(tightest.gather_slots)),
                                  format_bytes(static_cast<double>(tightest.activations)),
                                  format_bytes(static_cast<double>(tightest.working)), advice(input, tightest)));
  }
  // Somebody who asks for a shard size gets that; residency is the automatic plan's way of using what is left.
  if (!input.shard_size) add_resident_units(input, *best);
  return *best;
}

std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units) {
  int sharded = 0, whole = 0;
  for (size_t u = 0; u < units.size(); ++u) (plan.shard_size > 1 && !units[u].replicated && !plan.resident[u] ? sharded : whole)++;
  std::string text = fmt::format("units: {} whole, {} sharded over {} rank{}; recomputed blocks: {} of {}\n", whole, sharded, plan.shard_size,
                                 plan.shard_size == 1 ? "" : "s", num_recomputed(plan), plan.recompute.size());
  auto row = [&](const char* name, int64_t bytes) {
    text += fmt::format("  {:<22}{:>12}\n", name, format_bytes(static_cast<double>(bytes)));
  };
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
  if (plan.device_memory > 0) row("available", plan.device_memory);
  text += fmt::format("gathered per forward pass: {} per rank\n", format_bytes(static_cast<double>(plan.gathered_per_pass)));
  return text;
}

}  // namespace trireme
