#include "trireme/plan/search.h"

#include "candidate.h"
#include "trireme/base/error.h"

#include <algorithm>
#include <tuple>

namespace trireme {

namespace {

/// Part by which a shard group over several hosts must be predicted faster than one inside a host to be chosen: its
/// gathers wait for the slowest host of the group and for the network that others use, which the prediction ignores.
constexpr double kOverHostsMargin = 0.05;
/// Parts of a pass by which tiles or Recompute::kAttention, and offload, must be predicted to save time to be chosen
/// where a plan fits without them: the prediction ignores what smaller products lose, and the memory bandwidth of
/// copies.
constexpr double kTileMargin = 0.01, kOffloadMargin = 0.03;
constexpr int64_t kLeastTile = 1024, kMostTile = 65536;

/// Whether shard groups of `size` consecutive ranks lie within hosts.
bool inside_hosts(const PlanInput& input, int size) {
  return input.ranks_per_host == 0 || input.ranks_per_host % size == 0;
}

/// Completes the plan with what a run reads. `fills`: with what the memory that is left is good for.
TrainingPlan finish(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate, bool fills) {
  TrainingPlan plan = memory_of(input, storage, candidate);
  plan.resident.assign(input.units->size(), false);
  for (size_t i = 0; i < storage.gathered.size(); ++i)
    plan.resident[storage.gathered[i]] = storage.is_resident(i, candidate.resident);
  // The first blocks are recomputed. Backward needs them last: while it frees what the others keep, gradients take its
  // place, and what a recomputed block needs for its own backward comes when the others are gone. What waits on the
  // host has the most time to leave and to come back.
  plan.recompute.assign(input.num_blocks, Recompute::kNone);
  auto block = plan.recompute.begin();
  for (const auto& [count, what] : {std::pair{candidate.host_full, Recompute::kFull},
                                    {candidate.host_attention, Recompute::kAttention},
                                    {candidate.host_mlp, Recompute::kMlp},
                                    {candidate.full, Recompute::kFull},
                                    {candidate.attention, Recompute::kAttention},
                                    {candidate.mlp, Recompute::kMlp},
                                    {candidate.norms, Recompute::kNorms}})
    block = std::fill_n(block, count, what);
  plan.offloaded = candidate.host();
  if (!input.recompute_blocks.empty()) plan.recompute = input.recompute_blocks;
  if (fills) keep_transposed(input, plan);
  plan.cost = cost_of(input, storage, candidate, plan);
  return plan;
}

/// Every block recomputes `what`, or the next less that its model can; named blocks recompute what the configuration
/// says.
void set_all(const PlanInput& input, Recompute what, Candidate& candidate) {
  if (!input.recompute_blocks.empty()) {
    const auto named = [&](Recompute one) {
      return static_cast<int>(std::count(input.recompute_blocks.begin(), input.recompute_blocks.end(), one));
    };
    candidate.norms = named(Recompute::kNorms), candidate.mlp = named(Recompute::kMlp),
    candidate.full = named(Recompute::kFull);
    return;
  }
  candidate.norms = candidate.mlp = candidate.host_mlp = candidate.attention = candidate.full = 0;
  if (what == Recompute::kAttention && input.row.saved_attention == 0) what = Recompute::kFull;
  if (what == Recompute::kMlp && input.row.saved_mlp == 0) what = Recompute::kNorms;
  if (what == Recompute::kNorms && input.row.saved_norms == 0) what = Recompute::kNone;
  if (what == Recompute::kNorms) candidate.norms = input.num_blocks;
  if (what == Recompute::kMlp)
    (input.recompute && input.offload == PlanInput::Offload::kAll ? candidate.host_mlp : candidate.mlp) =
        input.num_blocks;
  if (what == Recompute::kAttention) candidate.attention = input.num_blocks;
  if (what == Recompute::kFull) candidate.full = input.num_blocks;
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

/// Whether the candidate's bytes fit the device and the host.
bool fits_both(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate) {
  const TrainingPlan plan = memory_of(input, storage, candidate);
  return plan.fits() && plan.host <= input.host_memory;
}

/// Moves as many of the blocks that are recomputed whole to the host as it holds, those with attention's output first.
void fill_host(const PlanInput& input, Candidate& c) {
  const int64_t attention = input.row.saved_attention * c.rows, full = input.row.saved_input * c.rows;
  // The last of them stays on the device.
  const auto take = [&](int& from, int& to, int64_t space, int64_t one) {
    to = static_cast<int>(std::clamp<int64_t>(from == 0 ? 0 : space / one, 0, from));
    from -= to;
  };
  take(c.attention, c.host_attention, input.host_memory + attention, attention);
  const int64_t left = input.host_memory - std::max<int64_t>(0, (c.host_attention - 1) * attention);
  take(c.full, c.host_full, left + (c.host_attention == 0 ? full : 0), full);
}

/// Gives the device as many of the offloaded blocks back as fit.
void empty_host(const PlanInput& input, const PolicyMemory& storage, Candidate& c) {
  const auto move = [&](int Candidate::* from, int Candidate::* to) {
    while (c.*from > 0) {
      Candidate fewer = c;
      --(fewer.*from);
      ++(fewer.*to);
      if (!fits_both(input, storage, fewer)) return;
      c = fewer;
    }
  };
  move(&Candidate::host_full, &Candidate::full);
  move(&Candidate::host_attention, &Candidate::attention);
}

/// The smallest number from `low` to `high` for which `holds` returns true, which all larger ones do, too; it is called
/// with that number last.
template <class F>
std::optional<int> smallest(int low, int high, const F& holds) {
  if (!holds(high)) return std::nullopt;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (holds(middle))
      high = middle;
    else
      low = middle + 1;
  }
  (void)holds(high);
  return high;
}

/// Seconds of one pass that a candidate takes longer than one that recomputes and copies nothing.
double extra_seconds(const PlanInput& input, const Candidate& candidate) {
  return recomputation_time(input, candidate) + host_transfer(input, candidate).exposed;
}

/// `whole` blocks are recomputed whole, from `full` to `most_full` of them with attention: the fewest with which the
/// candidate fits.
std::optional<Candidate> fit_whole(const PlanInput& input, const PolicyMemory& storage, Candidate c, int whole,
                                   int full, int most_full, PlanInput::Offload offload) {
  using Offload = PlanInput::Offload;
  const auto fits = [&](int count) {
    c.attention = whole - count;
    c.full = count;
    c.host_attention = c.host_full = 0;
    if (offload != Offload::kNone) fill_host(input, c);
    return (offload != Offload::kAll || c.attention + c.full == 0) && fits_both(input, storage, c);
  };
  // The first block that recomputes attention needs the memory of its output.
  if (!fits(full) && !(full < most_full && smallest(full + 1, most_full, fits))) return std::nullopt;
  if (offload == Offload::kAuto) empty_host(input, storage, c);
  return c;
}

/// The tiles that the input allows for blocks that are all recomputed whole, the largest first.
std::vector<int64_t> tiles(const PlanInput& input, int rows) {
  const int64_t tokens = rows * input.row_tokens;
  if (input.tile || input.row.tile_token == 0) return {input.tile && *input.tile < tokens ? *input.tile : 0};
  std::vector<int64_t> all = {0};
  for (int64_t tile = kMostTile; tile >= kLeastTile; tile /= 2)
    if (tile < tokens) all.push_back(tile);
  return all;
}

/// The candidate with the shortest recomputation and copies among those in which blocks are recomputed whole: all of
/// them, in tiles or not, or some beside others that recompute less.
std::optional<Candidate> best_whole(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate) {
  const int blocks = input.num_blocks;
  const bool spares = input.row.saved_attention > 0;
  using Offload = PlanInput::Offload;
  std::optional<Candidate> best;
  // Among equal times the fewest blocks on the host.
  const auto rank = [&](const Candidate& one) { return std::pair(extra_seconds(input, one), one.host()); };
  const auto consider = [&](const Candidate& c, int whole, int full, int most_full) {
    for (const Offload offload : {Offload::kNone, Offload::kAuto, Offload::kAll}) {
      if (input.offload == Offload::kAuto ? offload == Offload::kAll : offload != input.offload) continue;
      const auto found = fit_whole(input, storage, c, whole, full, most_full, offload);
      if (found && (!best || rank(*found) < rank(*best))) best = found;
    }
  };
  for (const int64_t tile : tiles(input, candidate.rows)) {
    Candidate c = candidate;
    c.tile = tile;
    const int least = input.recompute == Recompute::kFull || !spares ? blocks : 0;
    consider(c, blocks, least, input.recompute == Recompute::kAttention ? least : blocks);
  }
  if (input.recompute || input.offload == Offload::kAll || blocks == 1) return best;
  for (const Recompute rest : {Recompute::kNone, Recompute::kNorms, Recompute::kMlp}) {
    if ((rest == Recompute::kNorms && input.row.saved_norms == 0) ||
        (rest == Recompute::kMlp && input.row.saved_mlp == 0))
      continue;
    Candidate c = candidate;
    c.tile = input.tile.value_or(0);
    const auto others = [&](int whole) {
      c.norms = rest == Recompute::kNorms ? blocks - whole : 0;
      c.mlp = rest == Recompute::kMlp ? blocks - whole : 0;
    };
    const Offload most = input.offload;
    // The fewest blocks that must be recomputed whole, with attention and without it.
    const auto few = smallest(1, blocks - 1, [&](int whole) {
      others(whole);
      return fit_whole(input, storage, c, whole, whole, whole, most).has_value();
    });
    if (few) consider(c, *few, spares ? 0 : *few, *few);
    if (!few || !spares) continue;
    const auto spared = smallest(1, blocks - 1, [&](int whole) {
      others(whole);
      return fit_whole(input, storage, c, whole, 0, 0, most).has_value();
    });
    if (spared) consider(c, *spared, 0, 0);
  }
  return best;
}

/// Raises the recomputation of norms, MLPs and whole blocks to the least amount with which the candidate fits, if there
/// is one, without tiles and offload.
std::optional<Candidate> fit_recomputation(const PlanInput& input, const PolicyMemory& storage, Candidate candidate) {
  const int blocks = input.num_blocks;
  const auto fits = [&] { return memory_of(input, storage, candidate).fits(); };
  const bool has_norms = input.row.saved_norms > 0, has_mlp = input.row.saved_mlp > 0;
  if (fits()) return candidate;
  // Norms give the most memory for their time, so all blocks recompute them before one recomputes more.
  for (candidate.norms = 1; has_norms && candidate.norms <= blocks; ++candidate.norms)
    if (fits()) return candidate;
  std::optional<Candidate> best;
  const auto loss = [&](const Candidate& c) { return c.mlp * input.times.mlp + c.full * input.times.full; };
  for (int mlp = 0; mlp <= (has_mlp ? blocks : 0); ++mlp) {
    for (int full = 0; mlp + full <= blocks; ++full) {
      candidate.mlp = mlp;
      candidate.full = full;
      candidate.norms = has_norms ? blocks - mlp - full : 0;
      if (best && loss(candidate) >= loss(*best)) break;
      if (!fits()) continue;
      best = candidate;
      break;
    }
  }
  return best;
}

/// The candidate with the shortest recomputation and copies among those in which the MLP's first projection of the
/// first blocks waits on the host, of as few as possible beside others that recompute the same.
std::optional<Candidate> best_hosted(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate) {
  std::optional<Candidate> best;
  const int64_t bytes = input.row.projection * candidate.rows;
  if (input.row.saved_mlp == 0 || input.num_blocks == 1 || input.host_memory < bytes) return best;
  const int most = static_cast<int>(std::min<int64_t>(input.num_blocks, input.host_memory / bytes + 1));
  for (const bool norms : {false, true}) {
    if (norms && input.row.saved_norms == 0) continue;
    Candidate c = candidate;
    const auto few = smallest(1, most, [&](int hosted) {
      c.host_mlp = hosted;
      c.norms = norms ? input.num_blocks - hosted : 0;
      return fits_both(input, storage, c);
    });
    if (few && (!best || extra_seconds(input, c) < extra_seconds(input, *best))) best = c;
  }
  return best;
}

/// The candidate with the least recomputation that fits.
std::optional<Candidate> fit(const PlanInput& input, const PolicyMemory& storage, Candidate candidate) {
  const Recompute asked = input.recompute.value_or(Recompute::kNone);
  if (!input.recompute_blocks.empty() || (input.recompute && asked < Recompute::kAttention)) {
    set_all(input, asked, candidate);
    return fits_both(input, storage, candidate) ? std::optional(candidate) : std::nullopt;
  }
  candidate.tile = tiles(input, candidate.rows).front();
  std::optional<Candidate> best;
  if (!input.recompute && input.offload != PlanInput::Offload::kAll) {
    best = fit_recomputation(input, storage, candidate);
    // The model may have no recomputation but that of whole blocks: then there is nothing to weigh.
    if (best && best->norms + best->mlp + best->full == 0) return best;
  }
  const double pass = candidate.rows * input.num_blocks * (input.times.forward + input.times.backward);
  const auto weigh = [&](const std::optional<Candidate>& other) {
    if (!other) return;
    const double margin = (other->host() > 0 ? kOffloadMargin : kTileMargin) * pass;
    if (!best || extra_seconds(input, *best) - extra_seconds(input, *other) > (best->host() > 0 ? 0 : margin))
      best = other;
  };
  weigh(best_whole(input, storage, candidate));
  if (!input.recompute && input.offload == PlanInput::Offload::kAuto) weigh(best_hosted(input, storage, candidate));
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
    if (input.world_size % size == 0 && (size % input.context_size == 0 || input.context_size % size == 0) &&
        (!input.shard_size || *input.shard_size == size))
      sizes.push_back(size);
  // A policy that divides something needs several ranks where there are some.
  if (input.policy && *input.policy != ShardPolicy::kNone && !input.shard_size && sizes.size() > 1)
    sizes.erase(sizes.begin());
  TRIREME_CHECK(!sizes.empty(), "shard size ", input.shard_size.value_or(0), " does not divide the number of ranks ",
                input.world_size);
  return sizes;
}

/// The input for what is chosen beside the state that waits on the host.
PlanInput with_state(const PlanInput& input, const PolicyMemory& storage) {
  PlanInput beside = input;
  beside.host_memory -= storage.bytes.host_state;
  return beside;
}

/// Numbers of trained units whose state may wait on the host: as many as it holds. Where activations wait there too the
/// predicted step decides. A larger host has all numbers of a smaller one, so its plan is not slower.
std::vector<int> host_units(const PlanInput& input, int size, ShardPolicy policy) {
  if (input.state == PlanInput::Offload::kNone) return {0};
  int most = policy_memory(input, size, policy).trained_units;
  while (most > 0 && policy_memory(input, size, policy, most).bytes.host_state > input.host_memory) --most;
  const bool shares = input.state == PlanInput::Offload::kAuto || input.offload == PlanInput::Offload::kAll;
  std::vector<int> numbers;
  for (int units = shares ? 1 : std::max(most, 1); units <= most; ++units) numbers.push_back(units);
  return numbers;
}

/// With the fewest units on the host, at most `most`, with which the candidate fits.
PolicyMemory fewest_units(const PlanInput& input, const Candidate& candidate, int most) {
  PolicyMemory storage;
  (void)smallest(1, most, [&](int units) {
    storage = policy_memory(input, candidate.shard_size, candidate.policy, units);
    return fits_both(with_state(input, storage), storage, candidate);
  });
  return storage;
}

}  // namespace

std::optional<TrainingPlan> find_plan(const PlanInput& input) {
  using Offload = PlanInput::Offload;
  if (input.state == Offload::kAuto) {
    PlanInput on_device = input;
    on_device.state = Offload::kNone;
    if (auto plan = find_plan(on_device)) return plan;
  }
  std::optional<TrainingPlan> best;
  std::tuple<double, int, ShardPolicy, int, int> best_rank;
  for (const int size : shard_sizes(input)) {
    const double margin = inside_hosts(input, size) ? 1 : 1 + kOverHostsMargin;
    for (const ShardPolicy policy : policies(input, size)) {
      for (const int units : host_units(input, size, policy)) {
        PolicyMemory storage = policy_memory(input, size, policy, units);
        const PlanInput beside = with_state(input, storage);
        // A given shard size is used as it is; only the automatic plan fills free memory with resident units.
        const int most = input.shard_size || input.device_memory == 0 ? 0 : static_cast<int>(storage.gathered.size());
        for (int rows = input.rows; rows >= 1; --rows) {
          if (!may_split(input, rows)) continue;
          for (int resident = 0; resident <= most; ++resident) {
            const auto candidate =
                fit(beside, storage, {.shard_size = size, .policy = policy, .rows = rows, .resident = resident});
            if (!candidate) break;  // more resident units leave even less memory
            const PolicyMemory fewest =
                input.state == Offload::kAuto ? fewest_units(input, *candidate, units) : storage;
            const StepCost cost = cost_of(input, fewest, *candidate, memory_of(input, fewest, *candidate));
            const std::tuple rank{cost.total() * margin, size, policy, -rows, -resident};
            if (best && rank >= best_rank) continue;
            best = finish(input, fewest, *candidate, /*fills=*/true);
            best_rank = rank;
          }
        }
      }
    }
  }
  return best;
}

TrainingPlan least_plan(const PlanInput& input) {
  std::optional<TrainingPlan> least;
  for (const int size : shard_sizes(input)) {
    for (const ShardPolicy policy : policies(input, size)) {
      std::vector<int> units = host_units(input, size, policy);
      if (input.state == PlanInput::Offload::kAuto || units.empty()) units.push_back(0);
      for (const int count : units) {
        const PolicyMemory storage = policy_memory(input, size, policy, count);
        const PlanInput beside = with_state(input, storage);
        for (int rows = 1; rows <= input.rows; ++rows) {
          if (!may_split(input, rows)) continue;
          const auto keep = [&](const Candidate& candidate) {
            if (!least || memory_of(input, storage, candidate).total() < least->total())
              least = finish(input, storage, candidate, /*fills=*/false);
          };
          for (const Recompute what :
               {Recompute::kNone, Recompute::kNorms, Recompute::kMlp, Recompute::kAttention, Recompute::kFull}) {
            if (input.recompute && what != *input.recompute) continue;
            Candidate candidate{.shard_size = size, .policy = policy, .rows = rows};
            set_all(input, what, candidate);
            if (input.offload != PlanInput::Offload::kAll || candidate.host_mlp > 0) keep(candidate);
            if (candidate.whole() < input.num_blocks) continue;
            candidate.tile = tiles(input, rows).back();
            if (input.offload != PlanInput::Offload::kAll) keep(candidate);
            if (input.offload == PlanInput::Offload::kNone) continue;
            fill_host(beside, candidate);
            keep(candidate);
          }
        }
      }
    }
  }
  return *least;
}

}  // namespace trireme
