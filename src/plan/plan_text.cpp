// The plan as text.
#include "trireme/base/plural.h"
#include "trireme/base/text.h"
#include "trireme/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

const char* plural(int64_t count) { return count == 1 ? "" : "s"; }

/// "backward recomputes 3 of 32 blocks and the MLPs of 2", or "backward recomputes nothing".
std::string recomputation(const MemoryPlan& plan) {
  const auto count = [&](Recompute what) { return std::count(plan.recompute.begin(), plan.recompute.end(), what); };
  std::vector<std::string> parts;
  if (const auto full = count(Recompute::kFull); full > 0) parts.push_back(fmt::format("{} whole", full));
  if (const auto mlp = count(Recompute::kMlp); mlp > 0)
    parts.push_back(fmt::format("the MLP{} of {}", plural(mlp), mlp));
  if (const auto norms = count(Recompute::kNorms); norms > 0)
    parts.push_back(fmt::format("norms and activation{} of {}", plural(norms), norms));
  if (parts.empty()) return "backward recomputes nothing";
  return fmt::format("of {}, backward recomputes {}", counted(static_cast<int64_t>(plan.recompute.size()), "block"),
                     join(parts, ", "));
}

}  // namespace

std::string describe_need(const MemoryPlan& plan) {
  const std::string why =
      plan.accumulated_passes > 1 && plan.shard_size > 1 && plan.gradients > plan.total() / 10
          ? fmt::format(", in fp32 and whole on every rank because the gradients of {} forward passes are summed",
                        plan.accumulated_passes)
          : "";
  return fmt::format(
      "the run needs {} per rank and {} of headroom, {} is available (weights {}, masters and moments {}, gradients "
      "{}{}, gather slots {}, activations {}, working memory {}, libraries {})",
      size_text(plan.total()), size_text(plan.headroom()), size_text(plan.device_memory), size_text(plan.weights),
      size_text(plan.masters + plan.moments), size_text(plan.gradients), why, size_text(plan.gather_slots),
      size_text(plan.activations), size_text(plan.working), size_text(plan.overhead));
}

std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units) {
  int sharded = 0, whole = 0;
  bool divides = false;
  for (size_t u = 0; u < units.size(); ++u) {
    const UnitDivision division = divide_unit(units[u], plan.shard_size, plan.policy, plan.resident[u]);
    divides = divides || division.state;
    (division.weights ? sharded : whole)++;
  }
  std::string text = fmt::format("units: {} whole, {} sharded over {} rank{}; {}{} row{} per forward pass; {}\n", whole,
                                 sharded, plan.shard_size, plural(plan.shard_size),
                                 divides ? fmt::format("policy {}; ", policy_name(plan.policy)) : "",
                                 plan.rows_per_pass, plural(plan.rows_per_pass), recomputation(plan));
  auto row = [&](const char* name, int64_t bytes) { text += fmt::format("  {:<22}{:>12}\n", name, size_text(bytes)); };
  text += "memory per rank:\n";
  row("weights", plan.weights);
  row("master weights", plan.masters);
  row("optimizer moments", plan.moments);
  row("gradients", plan.gradients);
  row("gather slots", plan.gather_slots);
  row("saved activations", plan.activations);
  if (plan.reused > 0) row("reused by gradients", -plan.reused);
  row("working memory", plan.working);
  row("context and libraries", plan.overhead);
  row("total", plan.total());
  if (plan.device_memory > 0) {
    row("available", plan.device_memory);
    row("left free", plan.device_memory - plan.total());
  }
  text += fmt::format(
      "gathered per forward pass: {} per rank; gradients received per step: {} from the shard group, {} from "
      "replicas\n",
      size_text(plan.gathered_per_pass), size_text(plan.reduced_per_step), size_text(plan.replica_reduced_per_step));
  if (plan.cost.known) text += describe_cost(plan.cost) + '\n';
  return text;
}

std::string describe_cost(const StepCost& cost) {
  const auto ms = [](double seconds) { return seconds * 1e3; };
  return fmt::format(
      "predicted step: {:.1f} ms (computation {:.1f}, recomputation {:.1f}, communication that is not hidden {:.1f}, "
      "slowed by communication {:.1f}, optimizer {:.1f}, other {:.1f})",
      ms(cost.total()), ms(cost.compute), ms(cost.recompute), ms(cost.exposed), ms(cost.interference),
      ms(cost.optimizer), ms(cost.fixed));
}

}  // namespace trireme
