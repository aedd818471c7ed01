#include "trireme/plan/plan.h"

#include "plan_routes.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/fsdp/layout.h"
#include "trireme/ops/matmul/recipe.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace trireme {

namespace {

/// Part by which a shard group over several hosts must be predicted faster than one inside a host to be chosen: its
/// gathers wait for the slowest host of the group and for the network that others use, which the prediction ignores.
constexpr double kOverHostsMargin = 0.05;

/// The decisions of a plan; everything else follows from them. norms, mlp, full: numbers of blocks with
/// Recompute::kNorms, kMlp and kFull; the others recompute nothing.
struct Choice {
  int shard_size = 1;
  ShardPolicy policy = ShardPolicy::kNone;
  int rows = 1, resident = 0, norms = 0, mlp = 0, full = 0;
};

/// The part of a shard size's and policy's memory that does not depend on the other decisions.
struct Storage {
  MemoryPlan bytes;  // with no resident unit and no activations
  int64_t largest_slot = 0;
  int64_t whole_elements = 0, shard_elements = 0;   // of trained units' gradients
  int64_t copied_bytes = 0;                         // read and written to make their compute copies or codes
  int64_t largest_elements = 0;                     // of one unit's whole gradient
  int64_t gathered_trained = 0, whole_trained = 0;  // bytes of compute copies: gathered for each use, after each step
  std::vector<size_t> gathered;                     // indices of the units that could stay whole
  std::vector<int64_t> extra;                       // bytes that each of them adds if it does
  // Trained units: all, those of which the state is divided, and those whose weights are gathered for each use.
  int trained_units = 0, divided_units = 0, gathered_units = 0;
};

/// Bytes of a unit without its master weights. Units in FP8 keep their vectors whole, in the compute dtype. The codes
/// of a frozen unit have the layout of its matrices, trained codes that of the whole unit.
struct UnitBytes {
  int64_t shard, whole;
};
UnitBytes storage_bytes(const PlanInput& input, const UnitSpec& unit, int shard_count, bool trained_codes) {
  const bool frozen_codes = input.frozen_fp8 && !unit.trained && unit.has_linear();
  if (!frozen_codes && !trained_codes) {
    const UnitLayout layout = make_layout(unit, shard_count);
    return {layout.shard_numel * input.compute_bytes, layout.numel * input.compute_bytes};
  }
  const UnitLayout layout = make_layout(trained_codes ? unit : unit.matrices(), shard_count);
  const int64_t beside = make_layout(unit.vectors(), 1).numel * input.compute_bytes;
  return {layout.shard_numel + beside, layout.numel + beside};
}

/// Per unit: whether its matrices are stored as trained codes.
std::vector<bool> trained_codes(const PlanInput& input) {
  return traits_of(input.trained).stores_codes
             ? trained_in_fp8(*input.units, input.trained, input.compute_first, input.compute_last)
             : std::vector<bool>(input.units->size(), false);
}

Storage storage_of(const PlanInput& input, int shard_size, ShardPolicy policy) {
  Storage storage;
  MemoryPlan& plan = storage.bytes;
  plan.shard_size = shard_size;
  plan.policy = policy;
  plan.device_memory = input.device_memory;
  plan.overhead = input.overhead;
  const std::vector<bool> codes = trained_codes(input);
  for (size_t u = 0; u < input.units->size(); ++u) {
    const UnitSpec& unit = (*input.units)[u];
    const UnitDivision division = divide_unit(unit, shard_size, policy, /*resident=*/false);
    const UnitBytes bytes = storage_bytes(input, unit, division.any() ? shard_size : 1, codes[u]);
    plan.weights += division.weights ? bytes.shard : bytes.whole;
    if (division.weights) {
      if (unit.keep)
        plan.gather_slots += bytes.whole;
      else
        storage.largest_slot = std::max(storage.largest_slot, bytes.whole);
      plan.gathered_per_pass += bytes.whole - bytes.shard;
      if (unit.trained) {
        storage.gathered_trained += bytes.whole - bytes.shard;
        ++storage.gathered_units;
      } else if (!unit.keep) {
        storage.gathered.push_back(u);
        storage.extra.push_back(bytes.whole - bytes.shard);
      }
    }
    if (!unit.trained) continue;
    ++storage.trained_units;
    if (division.state) ++storage.divided_units;
    const UnitLayout layout = make_layout(unit, division.state ? shard_size : 1);
    if (input.compute_bytes < 4 || codes[u]) plan.masters += layout.shard_numel * 4;
    // Codes are made in a second pass, which reads the master weights again.
    storage.copied_bytes += layout.shard_numel * (codes[u] ? 4 + 1 : input.compute_bytes);
    plan.moments += layout.shard_numel * input.moment_bytes;
    if (division.state && !division.weights) storage.whole_trained += bytes.whole - bytes.shard;
    storage.whole_elements += layout.numel;
    storage.shard_elements += layout.shard_numel;
    if (division.state) storage.largest_elements = std::max(storage.largest_elements, layout.numel);
  }
  return storage;
}

/// Spreads the resident units evenly between sharded ones, so that a gather can overlap with more than one block.
bool is_resident(size_t index, size_t count, int resident) {
  const auto r = static_cast<size_t>(resident);
  return (index + 1) * r / count > index * r / count;
}

/// Bytes of gradients at their peak; `plan.reused` is the part of them that grows while backward frees activations.
void count_gradients(const PlanInput& input, const Storage& storage, int passes, MemoryPlan& plan) {
  const bool divided = plan.state_shards() > 1;
  const int64_t few = 3 * storage.largest_elements * input.gradient_bytes;  // two being reduced, one being filled
  int64_t kept = 0;
  if (!divided) {
    kept = storage.whole_elements * (passes > 1 ? 4 : input.gradient_bytes);
  } else if (passes > 1 && plan.policy == ShardPolicy::kOptimizer) {
    kept = storage.whole_elements * 4;
  } else {
    kept = storage.shard_elements * (passes > 1 ? 4 : input.gradient_bytes);
    plan.gradients += std::min(few, storage.whole_elements * input.gradient_bytes);
  }
  plan.gradients += kept;
  if (passes == 1) plan.reused = std::min(kept, plan.activations);
  const double others = 1.0 - 1.0 / std::max(1, plan.state_shards());
  const bool each = plan.reduces_each_pass();
  plan.reduced_per_step = static_cast<int64_t>(others * static_cast<double>(storage.whole_elements) *
                                               static_cast<double>(input.gradient_bytes)) *
                          (each ? passes : 1);
  const double replicas = RankGrid(0, {.world = input.world_size, .shard = plan.state_shards()}).replica.size;
  plan.replica_reduced_per_step =
      static_cast<int64_t>(2.0 * (1.0 - 1.0 / replicas) * static_cast<double>(storage.shard_elements) *
                           static_cast<double>(input.gradient_bytes));
  plan.accumulated_passes = each ? 1 : passes;
}

MemoryPlan evaluate(const PlanInput& input, const Storage& storage, const Choice& choice) {
  MemoryPlan plan = storage.bytes;
  plan.rows_per_pass = choice.rows;
  const int passes = input.micro_batches * (input.rows / choice.rows);
  if (choice.resident < static_cast<int>(storage.gathered.size()) || storage.gathered.empty())
    plan.gather_slots += kGatherSlots * storage.largest_slot;
  for (size_t i = 0; i < storage.gathered.size(); ++i) {
    if (!is_resident(i, storage.gathered.size(), choice.resident)) continue;
    plan.weights += storage.extra[i];
    plan.gathered_per_pass -= storage.extra[i];
  }
  const int none = input.num_blocks - choice.norms - choice.mlp - choice.full;
  int64_t row = none * input.block_saved + choice.norms * input.block_saved_norms + choice.mlp * input.block_saved_mlp +
                choice.full * input.block_recomputed;
  if (choice.full > 0)  // the block that is being recomputed
    row += input.block_saved_norms > 0 ? input.block_saved_norms : input.block_saved;
  plan.activations = row * choice.rows;
  plan.working = std::max(input.working_peak * choice.rows,
                          input.head * choice.rows + input.head_fixed +
                              std::min(input.head_logits * choice.rows, input.head_logits_most)) +
                 input.working_fixed;
  count_gradients(input, storage, passes, plan);
  return plan;
}

/// Whether shard groups of `size` consecutive ranks lie within hosts.
bool inside_hosts(const PlanInput& input, int size) {
  return input.ranks_per_host == 0 || input.ranks_per_host % size == 0;
}

/// The predicted step of `plan`, which evaluate() has made.
StepCost cost_of(const PlanInput& input, const Storage& storage, const Choice& choice, const MemoryPlan& plan) {
  const StepTimes& times = input.times;
  StepCost cost;
  cost.known = times.known;
  const double passes = input.micro_batches * (input.rows / choice.rows), rows = choice.rows, blocks = input.num_blocks;
  const double forward = rows * blocks * times.block_forward, backward = rows * blocks * times.block_backward;
  cost.compute = passes * (forward + backward + rows * times.head + times.pass);
  // A pass after the first reads the fp32 sums that it adds to, or adds a reduced shard to the shard's sum.
  const double summed = plan.reduces_each_pass() ? 12.0 * static_cast<double>(storage.shard_elements)
                                                 : 4.0 * static_cast<double>(storage.whole_elements);
  cost.compute += (passes - 1) * summed * times.optimizer_byte;
  // A model that never keeps the outputs of norms has their recomputation in `block_backward`.
  const double norms = input.block_saved_norms > 0 ? times.norms_forward : 0;
  cost.recompute =
      passes * rows *
      ((choice.norms + choice.mlp) * norms + choice.mlp * times.mlp_forward + choice.full * times.block_forward);
  cost.fixed = times.fixed;
  if (input.world_size > 1) cost.fixed += times.waiting * (cost.compute + cost.recompute);

  // Consecutive ranks: a group that reaches over hosts has at least this many on each of them.
  const int per_host = input.ranks_per_host == 0 ? input.world_size : std::min(input.ranks_per_host, input.world_size);
  const Route shards = route(times, plan.shard_size, std::gcd(plan.shard_size, per_host));
  const double byte = shards.byte;
  // `latency` needs neither memory bandwidth nor multiprocessors: it slows nothing, but takes its time.
  const auto hide = [&](double communication, double latency, double computation) {
    cost.interference += times.interference * communication;
    cost.exposed += std::max(0.0, communication + latency - computation);
  };
  const int frozen = static_cast<int>(storage.gathered.size()) - choice.resident;
  double gathered = static_cast<double>(storage.gathered_trained) * byte;
  if (plan.shard_size > 1 && frozen > 0)
    gathered += static_cast<double>(plan.gathered_per_pass - storage.gathered_trained) * byte;
  const double gather_latency = shards.ring * (storage.gathered_units + (plan.shard_size > 1 ? frozen : 0));
  const double computes = gathered > 0 ? forward / blocks * std::min<double>(blocks, frozen > 0 ? frozen : blocks) : 0;
  const bool each = plan.reduces_each_pass();
  const double reduced = static_cast<double>(plan.reduced_per_step) * byte / (each ? passes : 1.0);
  if (input.world_size > plan.state_shards()) {
    // Replicas: an all-reduce of this rank's part moves it twice.
    const int replicas = RankGrid(0, {.world = input.world_size, .shard = plan.state_shards()}).replica.size;
    // The ranks of a host that have the same part: all of it with an undivided state, one each where a host is a group.
    const Route copies = route(times, replicas, std::max(1, per_host / plan.state_shards()));
    const double all_reduce = static_cast<double>(plan.replica_reduced_per_step) * copies.byte;
    hide(all_reduce, copies.all_reduce() * storage.trained_units, std::max(0.0, backward - reduced));
  }
  // The sum of statistics at the end of the step, which nothing hides.
  cost.exposed += route(times, input.world_size, per_host).all_reduce();
  for (double pass = 0; pass < passes; ++pass) {
    // After the optimizer whole copies of divided weights arrive while the first forward runs.
    const double arriving = pass == 0 ? static_cast<double>(storage.whole_trained) * byte : 0;
    const int arrivals = pass == 0 && storage.whole_trained > 0 ? storage.divided_units : 0;
    hide(gathered + arriving, gather_latency + arrivals * shards.ring, gathered > 0 ? computes : forward);
    const bool reduces = each || pass + 1 == passes;
    hide(gathered + (reduces ? reduced : 0), gather_latency + (reduces ? storage.divided_units * shards.ring : 0),
         gathered > 0 ? 2 * computes : backward);
  }

  // Master weights and moments are read and written, the gradient is read twice (its norm comes first).
  const double element =
      8.0 + 2.0 * static_cast<double>(input.moment_bytes) + 2.0 * static_cast<double>(input.gradient_bytes);
  cost.optimizer = (static_cast<double>(storage.shard_elements) * element + static_cast<double>(storage.copied_bytes)) *
                   times.optimizer_byte;
  return cost;
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
  for (int i = 0; i < choice.norms + choice.mlp + choice.full; ++i)
    plan.recompute[input.num_blocks - 1 - i] = i < choice.full                ? Recompute::kFull
                                               : i < choice.full + choice.mlp ? Recompute::kMlp
                                                                              : Recompute::kNorms;
  if (!input.recompute_blocks.empty()) plan.recompute = input.recompute_blocks;
  plan.cost = cost_of(input, storage, choice, plan);
  return plan;
}

/// Every block recomputes `what`, or the next less that its model can; named blocks recompute what the configuration
/// says.
void set_all(const PlanInput& input, Recompute what, Choice& choice) {
  if (!input.recompute_blocks.empty()) {
    const auto named = [&](Recompute one) {
      return static_cast<int>(std::count(input.recompute_blocks.begin(), input.recompute_blocks.end(), one));
    };
    choice.norms = named(Recompute::kNorms), choice.mlp = named(Recompute::kMlp), choice.full = named(Recompute::kFull);
    return;
  }
  choice.norms = choice.mlp = choice.full = 0;
  if (what == Recompute::kMlp && input.block_saved_mlp == 0) what = Recompute::kNorms;
  if (what == Recompute::kNorms && input.block_saved_norms == 0) what = Recompute::kNone;
  if (what == Recompute::kNorms) choice.norms = input.num_blocks;
  if (what == Recompute::kMlp) choice.mlp = input.num_blocks;
  if (what == Recompute::kFull) choice.full = input.num_blocks;
}

/// The policies that the input allows for a shard size. Where nothing is divided, or no unit is trained that could be,
/// they are all the same.
std::vector<ShardPolicy> policies(const PlanInput& input, int shard_size) {
  const bool divisible = std::any_of(input.units->begin(), input.units->end(),
                                     [](const UnitSpec& unit) { return unit.trained && !unit.replicated; });
  if (shard_size == 1 || !divisible) return {ShardPolicy::kNone};
  if (input.policy) return {*input.policy};
  return {ShardPolicy::kOptimizer, ShardPolicy::kGradients, ShardPolicy::kFull};
}

/// Raises recomputation to the least amount with which the choice fits, if there is one.
std::optional<Choice> fit_recomputation(const PlanInput& input, const Storage& storage, Choice choice) {
  const int blocks = input.num_blocks;
  const auto fits = [&] { return evaluate(input, storage, choice).fits(); };
  const bool has_norms = input.block_saved_norms > 0, has_mlp = input.block_saved_mlp > 0;
  if (input.recompute || !input.recompute_blocks.empty()) {
    set_all(input, input.recompute.value_or(Recompute::kNone), choice);
    return fits() ? std::optional(choice) : std::nullopt;
  }
  if (fits()) return choice;
  // Norms give the most memory for their time, so all blocks recompute them before one recomputes more.
  for (choice.norms = 1; has_norms && choice.norms <= blocks; ++choice.norms)
    if (fits()) return choice;
  std::optional<Choice> best;
  const auto loss = [&](const Choice& c) {
    return c.mlp * input.times.mlp_forward + c.full * input.times.block_forward;
  };
  for (int mlp = 0; mlp <= (has_mlp ? blocks : 0); ++mlp) {
    for (int full = 0; mlp + full <= blocks; ++full) {
      choice.mlp = mlp;
      choice.full = full;
      choice.norms = has_norms ? blocks - mlp - full : 0;
      if (best && loss(choice) >= loss(*best)) break;
      if (!fits()) continue;
      best = choice;
      break;
    }
  }
  return best;
}

/// Whether passes may have this many rows.
bool may_split(const PlanInput& input, int rows) {
  return input.rows % rows == 0 && (rows == input.rows || rows % input.rows_multiple == 0);
}

/// The shard sizes that the input allows.
std::vector<int> shard_sizes(const PlanInput& input) {
  TRIREME_CHECK(input.units != nullptr && !input.units->empty(), "a memory plan needs at least one unit");
  std::vector<int> sizes;
  for (int size = 1; size <= input.world_size; ++size)
    if (input.world_size % size == 0 && (!input.shard_size || *input.shard_size == size)) sizes.push_back(size);
  // A policy that divides something needs several ranks where there are some.
  if (input.policy && *input.policy != ShardPolicy::kNone && !input.shard_size && sizes.size() > 1)
    sizes.erase(sizes.begin());
  TRIREME_CHECK(!sizes.empty(), "shard size ", input.shard_size.value_or(0), " does not divide the number of ranks ",
                input.world_size);
  return sizes;
}

}  // namespace

std::optional<MemoryPlan> find_plan(const PlanInput& input) {
  std::optional<MemoryPlan> best;
  std::tuple<double, int, ShardPolicy, int, int> best_rank;
  for (const int size : shard_sizes(input)) {
    const double margin = inside_hosts(input, size) ? 1 : 1 + kOverHostsMargin;
    for (const ShardPolicy policy : policies(input, size)) {
      const Storage storage = storage_of(input, size, policy);
      // A given shard size is used as it is; only the automatic plan fills free memory with resident units.
      const int most = input.shard_size || input.device_memory == 0 ? 0 : static_cast<int>(storage.gathered.size());
      for (int rows = input.rows; rows >= 1; --rows) {
        if (!may_split(input, rows)) continue;
        for (int resident = 0; resident <= most; ++resident) {
          const auto choice = fit_recomputation(input, storage, {size, policy, rows, resident, 0, 0, 0});
          if (!choice) break;  // more resident units leave even less memory
          const StepCost cost = cost_of(input, storage, *choice, evaluate(input, storage, *choice));
          const std::tuple rank{cost.total() * margin, size, policy, -rows, -resident};
          if (best && rank >= best_rank) continue;
          best = finish(input, storage, *choice);
          best_rank = rank;
        }
      }
    }
  }
  return best;
}

MemoryPlan least_plan(const PlanInput& input) {
  std::optional<MemoryPlan> least;
  for (const int size : shard_sizes(input)) {
    for (const ShardPolicy policy : policies(input, size)) {
      const Storage storage = storage_of(input, size, policy);
      for (int rows = 1; rows <= input.rows; ++rows) {
        if (!may_split(input, rows)) continue;
        for (const Recompute what : {Recompute::kNone, Recompute::kNorms, Recompute::kMlp, Recompute::kFull}) {
          if (input.recompute && what != *input.recompute) continue;
          Choice choice{size, policy, rows, 0, 0, 0, 0};
          set_all(input, what, choice);
          if (!least || evaluate(input, storage, choice).total() < least->total())
            least = finish(input, storage, choice);
        }
      }
    }
  }
  return *least;
}

MemoryPlan make_plan(const PlanInput& input) {
  if (auto plan = find_plan(input)) return *std::move(plan);
  throw ConfigError(describe_need(least_plan(input)));
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

}  // namespace trireme
