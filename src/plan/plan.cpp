#include "trireme/plan/plan.h"

#include "candidate.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/keys.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/hints.h"
#include "trireme/plan/precision.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace trireme {

namespace {

constexpr size_t kShownHints = 3;

/// Part by which a shard group over several hosts must be predicted faster than one inside a host to be chosen: its
/// gathers wait for the slowest host of the group and for the network that others use, which the prediction ignores.
constexpr double kOverHostsMargin = 0.05;
/// Parts of a pass by which tiles or Recompute::kAttention, and offload, must be predicted to save time to be chosen
/// where a plan fits without them: the prediction ignores what smaller products lose, and the memory bandwidth of
/// copies.
constexpr double kTileMargin = 0.01, kOffloadMargin = 0.03;
constexpr int64_t kLeastTile = 1024, kMostTile = 65536;

/// Memory of a GPU process for the context and the libraries before the first tensor, and memory that the allocator
/// cannot use; with several ranks also NCCL's buffers and the workspaces of concurrent streams.
int64_t gpu_overhead(int ranks) { return int64_t{ranks > 1 ? 8 : 3} << 30; }

/// Whether shard groups of `size` consecutive ranks lie within hosts.
bool inside_hosts(const PlanInput& input, int size) {
  return input.ranks_per_host == 0 || input.ranks_per_host % size == 0;
}

/// Completes the plan with what a run reads.
TrainingPlan finish(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate) {
  TrainingPlan plan = memory_of(input, storage, candidate);
  plan.resident.assign(input.units->size(), false);
  for (size_t i = 0; i < storage.gathered.size(); ++i)
    plan.resident[storage.gathered[i]] = storage.is_resident(i, candidate.resident);
  // Backward frees the last blocks of forward first. The last blocks are recomputed, so the saved activations are those
  // of the first blocks.
  plan.recompute.assign(input.num_blocks, Recompute::kNone);
  auto block = plan.recompute.rbegin();
  for (const auto& [count, what] : {std::pair{candidate.full, Recompute::kFull},
                                    {candidate.attention, Recompute::kAttention},
                                    {candidate.mlp, Recompute::kMlp},
                                    {candidate.norms, Recompute::kNorms}})
    block = std::fill_n(block, count, what);
  // Backward needs the first blocks last: their values have the most time to leave and to come back.
  const auto first = std::fill_n(plan.recompute.begin(), candidate.host_full, Recompute::kFull);
  std::fill_n(first, candidate.host_attention, Recompute::kAttention);
  plan.offloaded = candidate.host();
  if (!input.recompute_blocks.empty()) plan.recompute = input.recompute_blocks;
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
  candidate.norms = candidate.mlp = candidate.attention = candidate.full = 0;
  if (what == Recompute::kAttention && input.row.saved_attention == 0) what = Recompute::kFull;
  if (what == Recompute::kMlp && input.row.saved_mlp == 0) what = Recompute::kNorms;
  if (what == Recompute::kNorms && input.row.saved_norms == 0) what = Recompute::kNone;
  if (what == Recompute::kNorms) candidate.norms = input.num_blocks;
  if (what == Recompute::kMlp) candidate.mlp = input.num_blocks;
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
  const auto seconds = [&](const Candidate& one) {
    return recomputation_time(input, one) + host_transfer(input, one).exposed;
  };
  // Among equal times the fewest blocks on the host.
  const auto rank = [&](const Candidate& one) { return std::pair(seconds(one), one.host()); };
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

/// The candidate with the least recomputation that fits.
std::optional<Candidate> fit(const PlanInput& input, const PolicyMemory& storage, Candidate candidate) {
  const Recompute asked = input.recompute.value_or(Recompute::kNone);
  if (!input.recompute_blocks.empty() || (input.recompute && asked < Recompute::kAttention)) {
    set_all(input, asked, candidate);
    return memory_of(input, storage, candidate).fits() ? std::optional(candidate) : std::nullopt;
  }
  candidate.tile = tiles(input, candidate.rows).front();
  std::optional<Candidate> best;
  if (!input.recompute && input.offload != PlanInput::Offload::kAll) {
    best = fit_recomputation(input, storage, candidate);
    // The model may have no recomputation but that of whole blocks: then there is nothing to weigh.
    if (best && best->norms + best->mlp + best->full == 0) return best;
  }
  const std::optional<Candidate> whole = best_whole(input, storage, candidate);
  if (!best || !whole) return best ? best : whole;
  const double pass = best->rows * input.num_blocks * (input.times.forward + input.times.backward);
  const double gain =
      recomputation_time(input, *best) - recomputation_time(input, *whole) - host_transfer(input, *whole).exposed;
  return gain > (whole->host() > 0 ? kOffloadMargin : kTileMargin) * pass ? whole : best;
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

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

const char* plural(int64_t count) { return count == 1 ? "" : "s"; }

/// "backward recomputes 3 of 32 blocks and the MLPs of 2", or "backward recomputes nothing".
std::string recomputation(const TrainingPlan& plan) {
  const auto count = [&](Recompute what) { return std::count(plan.recompute.begin(), plan.recompute.end(), what); };
  std::vector<std::string> parts;
  if (const auto full = count(Recompute::kFull); full > 0) parts.push_back(fmt::format("{} whole", full));
  if (const auto spared = count(Recompute::kAttention); spared > 0)
    parts.push_back(fmt::format("all but attention of {}", spared));
  if (const auto mlp = count(Recompute::kMlp); mlp > 0)
    parts.push_back(fmt::format("the MLP{} of {}", plural(mlp), mlp));
  if (const auto norms = count(Recompute::kNorms); norms > 0)
    parts.push_back(fmt::format("norms and activation{} of {}", plural(norms), norms));
  if (parts.empty()) return "backward recomputes nothing";
  return fmt::format("of {}, backward recomputes {}{}", counted(static_cast<int64_t>(plan.recompute.size()), "block"),
                     join(parts, ", "),
                     plan.tile_tokens > 0 ? fmt::format(" in tiles of {} tokens", plan.tile_tokens) : "");
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
            best = finish(input, fewest, *candidate);
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
              least = finish(input, storage, candidate);
          };
          for (const Recompute what :
               {Recompute::kNone, Recompute::kNorms, Recompute::kMlp, Recompute::kAttention, Recompute::kFull}) {
            if (input.recompute && what != *input.recompute) continue;
            Candidate candidate{.shard_size = size, .policy = policy, .rows = rows};
            set_all(input, what, candidate);
            if (input.offload != PlanInput::Offload::kAll) keep(candidate);
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
  if (config.parallel.reduce_dtype == ParallelSection::ReduceDtype::kCompute)
    input.gradient_bytes = input.compute_bytes;
  const bool bf16_gradients = config.optimizer.gradients == OptimizerSection::Gradients::kBf16,
             bf16_masters = config.optimizer.masters == OptimizerSection::Masters::kBf16;
  if ((bf16_gradients || bf16_masters) && dtype != at::kBFloat16)
    throw ConfigError(fmt::format("optimizer.{}: bf16 needs products in bf16, and precision.compute is {} here",
                                  bf16_masters ? "masters" : "gradients", dtype == at::kHalf ? "fp16" : "fp32"));
  if (bf16_gradients) input.gradient_bytes = input.sum_bytes = 2;
  input.master_bytes = OptimizerTraits::master_bytes(config.optimizer);
  input.frozen_fp8 = traits_of(frozen_recipe(config)).stores_codes;
  input.frozen_nf4 = frozen_nf4(config);
  if (input.frozen_nf4) input.times.pass += nf4_time(shape, input.rates, input.compute_bytes);
  input.trained = trained_recipe(config, question.model.facts().automatic_fp8);
  input.compute_first = config.precision.fp8_skip_first;
  input.compute_last = config.precision.fp8_skip_last;
  if (question.gpu)
    input.rows_multiple =
        static_cast<int>(recipe.token_multiple / std::gcd(recipe.token_multiple, slices.data.seq_length));
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
  input.row_tokens = shape.tokens;
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
  const OptimizerTraits& optimizer = traits_of(config.optimizer.name);
  using Offload = ParallelSection::Offload;
  const Offload offload = config.parallel.offload;
  if (offload == Offload::kActivations || offload == Offload::kAll) input.offload = PlanInput::Offload::kAll;
  if (offload == Offload::kOptimizer || offload == Offload::kAll) input.state = PlanInput::Offload::kAll;
  // CPU ranks' activations and state are in host memory already.
  if (offload == Offload::kAuto && question.gpu && question.host_memory > 0) {
    input.offload = PlanInput::Offload::kAuto;
    if (optimizer.streams) input.state = PlanInput::Offload::kAuto;
  }
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
  if (block.heads % size != 0)
    return fmt::format(
        "does not divide the model's {} query heads, of which each rank takes its part: take a divisor of {}; for more "
        "ranks than heads keys and values would have to be divided by tokens as well, which is not there",
        block.heads, std::gcd(block.heads, question.ranks));
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
    throw ConfigError(fmt::format("parallel.context_size {} {}", size, context_problem(question, size)));
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
  // At least the inputs of all blocks but the last, which stays on the device.
  const int64_t needed = (input.num_blocks - 1) * input.row.saved_input;
  if (input.offload == PlanInput::Offload::kAll && needed > input.host_memory)
    throw ConfigError(fmt::format(
        "parallel.offload: activations needs {} of pinned memory for each rank, and its host has {} for it: take "
        "parallel.offload: auto, or fewer ranks on a host",
        size_text(needed), size_text(input.host_memory)));
  if (input.state == PlanInput::Offload::kAll && least.host_units == 0)
    throw ConfigError(
        fmt::format("parallel.offload: {} needs pinned memory for master weights and moments of a unit, and a rank's "
                    "host has {} for "
                    "it: take parallel.offload: auto, or fewer ranks on a host",
                    word_of(question.config.parallel.offload), size_text(input.host_memory)));
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
                                             size_text(input.host_memory), least.host_units, trained)
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
      "libraries {}{}",
      size_text(plan.weights), size_text(plan.masters), size_text(plan.moments), size_text(plan.gradients), why,
      size_text(plan.gather_slots), size_text(plan.activations), size_text(plan.working), size_text(plan.overhead),
      plan.host_state > 0 ? fmt::format("; master weights and moments on the host {}", size_text(plan.host_state))
                          : "");
}

std::string describe_need(const TrainingPlan& plan) {
  return fmt::format("the run needs {} per rank and {} of headroom, {} is available ({})", size_text(plan.total()),
                     size_text(plan.headroom()), size_text(plan.device_memory), describe_parts(plan));
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
  text += fmt::format("units: {} whole, {} sharded over {} rank{}; {}{} row{} per forward pass; {}\n", whole, sharded,
                      plan.shard_size, plural(plan.shard_size),
                      divides ? fmt::format("policy {}; ", policy_name(plan.policy)) : "", plan.rows_per_pass,
                      plural(plan.rows_per_pass), recomputation(plan));
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
  if (plan.offloaded > 0) row("pinned on the host", plan.host);
  if (plan.host_state > 0) row("state on the host", plan.host_state);
  if (plan.device_memory > 0) {
    row("available", plan.device_memory);
    row("left free", plan.device_memory - plan.total());
  }
  text += fmt::format(
      "gathered per forward pass: {} per rank; gradients received per step: {} from the shard group, {} from "
      "replicas\n",
      size_text(plan.gathered_per_pass), size_text(plan.reduced_per_step), size_text(plan.replica_reduced_per_step));
  if (plan.offloaded > 0)
    text += fmt::format("activations of the first {} wait on the host{}\n", counted(plan.offloaded, "block"),
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
