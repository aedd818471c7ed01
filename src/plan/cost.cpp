#include "trireme/plan/cost.h"

#include "candidate.h"
#include "trireme/ops/matmul/nf4.h"
#include "trireme/plan/memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme {

namespace {

/// Bytes of a product's result [rows, columns] whose writing is not part of the rate of large products. A tile of the
/// result is written when its sums over the inner dimension are complete; the shorter the sums, the larger the part of
/// the time in which that is not hidden. The rates are measured with inner dimensions from 4,096 on.
double unhidden_bytes(double rows, double columns, double inner, double element_size) {
  return rows * columns * element_size * std::max(0.0, 1 - inner / 4096);
}

/// Tokens that a position sees, on average over a sequence of `length` tokens and the blocks.
double visible_tokens(const ModelShape& shape, double length) {
  if (!shape.block->causal) return length;
  double sum = 0;
  for (int b = 0; b < shape.num_blocks; ++b) {
    const auto window = static_cast<double>(shape.block->attention_of(b).window);
    sum += window > 0 && window < length ? window - window * window / (2 * length) : length / 2;
  }
  return sum / shape.num_blocks;
}

/// FLOPs of forward for one row: of a block's matrices, of its adapters, of its attention; of the head.
struct ForwardFlops {
  double products = 0, adapters = 0, attention = 0, head = 0;
};
ForwardFlops forward_flops(const ModelShape& shape) {
  const auto tokens = static_cast<double>(shape.tokens);
  ForwardFlops flops;
  for (const BlockLayer& layer : shape.block->layers)
    if (layer.product()) flops.products += 2 * tokens * static_cast<double>(layer.in * layer.out());
  for (const AdapterShape& adapter : shape.adapters)
    flops.adapters += adapter.share * 2 * tokens * static_cast<double>(adapter.rank * (adapter.in + adapter.rows));
  // The ranks of a context divide the heads, and each sees whole sequences.
  flops.attention = 4 * tokens * visible_tokens(shape, tokens * shape.context / shape.sequences) *
                    static_cast<double>(shape.block->heads * shape.block->head_dim);
  for (const HeadShape::Product& product : shape.head.products)
    flops.head += 2 * product.tokens * static_cast<double>(product.in * product.out);
  return flops;
}

/// Bytes that the kernels of a block read and write for one row beside their products and attention.
struct BlockBytes {
  double forward = 0, backward = 0;
  double norms = 0;    // the part of forward's that backward repeats with Recompute::kNorms
  double weights = 0;  // of the weights, in each forward and backward, independent of the rows
};
BlockBytes block_bytes(const ModelShape& shape, const RecipeTraits& recipe, int64_t element_size) {
  const BlockTable& block = *shape.block;
  const auto tokens = static_cast<double>(shape.tokens), element = static_cast<double>(element_size);
  // Elements of the compute dtype a token.
  double forward = 0, backward = 0, norms = 0;
  BlockBytes bytes;
  for (const BlockLayer& layer : block.layers) {
    const auto in = static_cast<double>(layer.in), out = static_cast<double>(layer.out());
    switch (layer.kind) {
      case LayerKind::kProduct:
        bytes.forward += unhidden_bytes(tokens, out, in, element) + tokens * recipe.operand_traffic * in;
        bytes.backward += unhidden_bytes(tokens, in, out, element) + tokens * recipe.operand_traffic * out;
        bytes.weights += recipe.weight_traffic * in * out;
        break;
      case LayerKind::kNorm:  // x and y; dy, x, the residual's gradient and dx
        forward += 2 * in;
        backward += 4 * in;
        norms += 2 * in;
        break;
      case LayerKind::kHeadNorm:  // the same, not repeated: no product reads its result
        forward += 2 * in;
        backward += 4 * in;
        break;
      case LayerKind::kBranchNorm:  // x, y, and the addition of y to the residual; dy, x and dx
        forward += 5 * in;
        backward += 3 * in;
        break;
      case LayerKind::kPostNorm:  // the product, the residual, their sum and y; dy, the sum and both gradients
        forward += 4 * in;
        backward += 4 * in;
        break;
    }
  }
  // The activation reads `up` and writes f; backward reads dy and `up` and writes d_up. GELU's output is kept, SwiGLU's
  // is computed again.
  const auto up = static_cast<double>(block.at("up").out()), f = static_cast<double>(block.at("down").in);
  const double rotated = block.rotary ? 2 * static_cast<double>(block.at("qkv").out()) : 0;
  if (block.branch_multiplier != 1) {  // the addition of both branches; their gradients
    forward += 6 * static_cast<double>(block.at("output").out());
    backward += 4 * static_cast<double>(block.at("output").out());
  }
  forward += rotated + up + f;
  backward += rotated + 2 * up + f;
  if (block.gated) norms += up + f;
  // The exchanges of a context read and write q, k, v and the output once more; what travels is not counted here.
  if (shape.context > 1) {
    const auto copied = static_cast<double>(block.at("qkv").out() + exchanged_heads(shape) * block.head_dim +
                                            2 * block.at("output").in);
    forward += copied;
    backward += copied;
  }
  // DoRA multiplies the weight by A for the lengths of the rows, reads z and writes y, reads dy and z and writes the
  // gradient of z. With dropout the products of the adapted rows are computed a second time (row_times()).
  for (const AdapterShape& adapter : shape.adapters) {
    if (!shape.dora) break;
    const double rows = adapter.share * static_cast<double>(adapter.rows);
    // In forward; codes are converted first.
    bytes.weights += (recipe.stores_codes ? 1 + 2 * element : element) * rows * static_cast<double>(adapter.in);
    forward += (shape.adapter_dropout ? 6 : 2) * rows;
    backward += (shape.adapter_dropout ? 6 : 3) * rows;
  }
  // An adapter reads x for x A, and adds its product to y; backward reads dy, reads x for A's gradient, adds to dx.
  for (const AdapterShape& adapter : shape.adapters) {
    forward += adapter.share * static_cast<double>(adapter.in + 2 * adapter.rows);
    backward += adapter.share * static_cast<double>(adapter.rows + 3 * adapter.in);
  }
  bytes.forward += tokens * element * forward;
  bytes.backward += tokens * element * backward;
  bytes.norms = tokens * element * norms;
  return bytes;
}

/// The cost of a collective: seconds per byte that a rank receives, and seconds independent of the bytes.
struct Route {
  double byte = 0, ring = 0, tree = 0;
  /// An all-reduce goes around the ring twice, or up a tree and down again: NCCL takes the faster.
  double all_reduce() const { return tree > 0 ? std::min(2 * ring, 2 * tree) : 2 * ring; }
};

/// For groups of `size` ranks with `members` ranks on each host; `size` == `members`: inside a host.
///
/// NCCL passes data around rings that enter and leave each host once, one ring for each of the group's ranks on it, so
/// that the hosts' network adapters share the bytes: a rank receives at the rate of `members` adapters, or of the links
/// inside its host if these are slower.
Route route(const MachineRates& rates, int size, int members) {
  if (size <= members) return {1 / rates.link_bytes, 0, 0};
  const double hosts = static_cast<double>(size) / members, inside = static_cast<double>(members) - 1;
  return {std::max(1 / rates.link_bytes, 1 / rates.network_bytes / members),
          rates.collective_start + hosts * inside * rates.ring_link_step + (hosts - 1) * rates.ring_network_step,
          inside * rates.tree_link_step + std::ceil(std::log2(hosts)) * rates.tree_network_step};
}

}  // namespace

double model_flops(const ModelShape& shape) {
  const ForwardFlops flops = forward_flops(shape);
  const double reference = shape.reference ? 1 : 0;
  return shape.num_blocks * (((shape.trained ? 3 : 2) + reference) * flops.products + 3 * flops.adapters +
                             (3.5 + reference) * flops.attention) +
         ((shape.head.trained ? 3 : 2) + reference) * flops.head;
}

RowFlops::RowFlops(const ModelShape& shape) : shape_(shape), whole_row_(model_flops(shape)) {}

double RowFlops::attention(int64_t tokens) const {
  const auto length = static_cast<double>(tokens);
  return shape_.num_blocks * (shape_.reference ? 4.5 : 3.5) * 4 * length * visible_tokens(shape_, length) *
         static_cast<double>(shape_.block->heads * shape_.block->head_dim);
}

double RowFlops::mean(int64_t rows, const std::vector<int32_t>& boundaries) const {
  double sequences = 0;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) sequences += attention(boundaries[s + 1] - boundaries[s]);
  return whole_row_ - attention(shape_.tokens) + sequences / static_cast<double>(rows);
}

RowTimes row_times(const ModelShape& shape, const RecipeTraits& recipe, const MachineRates& rates,
                   int64_t element_size) {
  const ForwardFlops flops = forward_flops(shape);
  const BlockBytes bytes = block_bytes(shape, recipe, element_size);
  const auto product = [&](const ProductTraits& traits, double count) {
    return traits.slowdown * count / (traits.fp8 ? rates.fp8_flops : rates.bf16_flops);
  };
  const double attention =
      flops.attention / (rates.attention_flops *
                         attention_part(shape.block->head_dim, shape.attention_dropout, shape.tokens * shape.context));
  double again = 0;  // products of the adapted rows that DoRA with dropout computes a second time
  for (const AdapterShape& adapter : shape.adapters)
    if (shape.dora && shape.adapter_dropout)
      again += adapter.share * 2 * static_cast<double>(shape.tokens) * static_cast<double>(adapter.in * adapter.rows);
  RowTimes times;
  times.forward = product(recipe.forward, flops.products + again) + attention + bytes.forward / rates.memory_bytes;
  times.backward = product(recipe.dgrad, flops.products + again) +
                   (shape.trained ? product(recipe.wgrad, flops.products) : 0) + 2.5 * attention +
                   bytes.backward / rates.memory_bytes;
  times.norms = bytes.norms / rates.memory_bytes;
  const BlockLayer& up = shape.block->at("up");
  times.mlp = product(recipe.forward, 2 * static_cast<double>(shape.tokens) * static_cast<double>(up.in * up.out()));
  // The result of a block is not computed again, unless a norm behind it needs it.
  const BlockLayer &down = shape.block->at("down"), &qkv = shape.block->at("qkv"), &out = shape.block->at("output");
  const double down_product =
      shape.block->find("mlp_post_norm") >= 0
          ? 0
          : product(recipe.forward, 2 * static_cast<double>(shape.tokens) * static_cast<double>(down.in * down.out()));
  times.full = times.forward - down_product;
  times.attention = times.full - attention;
  // Results of the three sub-layers in forward, those of the first two again, and the gradients of the three inputs.
  const auto copied = static_cast<double>(2 * qkv.out() + 2 * out.out() + down.out() + 2 * qkv.in + out.in);
  times.tile_row =
      2 * static_cast<double>(shape.tokens) * copied * static_cast<double>(element_size) / rates.memory_bytes;
  if (shape.trained)
    for (const BlockLayer& layer : shape.block->layers)
      if (layer.product()) times.tile_sums += 4 * static_cast<double>(layer.in * layer.out()) / rates.memory_bytes;
  // A rank sends all but its own part, and receives as much.
  times.exchange = static_cast<double>(shape.tokens * (exchanged_heads(shape) + shape.block->heads) *
                                       shape.block->head_dim * element_size) *
                   (1 - 1.0 / shape.context) / rates.link_bytes;
  times.pass = shape.num_blocks * bytes.weights / rates.memory_bytes;
  times.head = (shape.head.trained ? (shape.head.again ? 4 : 3) : 2) * flops.head / rates.bf16_flops;
  for (const HeadShape::Product& one : shape.head.products)
    times.head += unhidden_bytes(one.tokens, static_cast<double>(one.out), static_cast<double>(one.in),
                                 static_cast<double>(element_size)) /
                  rates.memory_bytes;
  if (shape.reference) times.reference = shape.num_blocks * times.forward + flops.head / rates.bf16_flops;
  return times;
}

double nf4_time(const ModelShape& shape, const MachineRates& rates, int64_t element_size) {
  double elements = 0;
  for (const UnitSpec& unit : *shape.units)
    if (!unit.trained && unit.has_linear()) elements += static_cast<double>(unit.matrices().numel());
  const int uses = shape.reference ? 3 : 2;  // forward and backward
  return uses * elements * (0.5 + 1.0 / kNf4Block + static_cast<double>(element_size)) / rates.memory_bytes;
}

double recomputation_time(const PlanInput& input, const Candidate& c) {
  const RowTimes& times = input.times;
  // A model that never keeps the outputs of norms has their recomputation in `backward`.
  const double norms = input.row.saved_norms > 0 ? times.norms : 0;
  double seconds = c.rows * ((c.norms + c.mlp + c.host_mlp) * norms + c.mlp * times.mlp +
                             (c.attention + c.host_attention) * times.attention + (c.full + c.host_full) * times.full);
  if (c.tile > 0) {
    const double tiles = std::ceil(static_cast<double>(c.rows * input.row_tokens) / static_cast<double>(c.tile));
    seconds += c.whole() * (c.rows * times.tile_row + (tiles - 1) * times.tile_sums);
  }
  return seconds;
}

Transfer host_transfer(const PlanInput& input, const Candidate& c) {
  Transfer all;
  const auto add = [&](int blocks, int64_t bytes, double recomputed) {
    const double once = static_cast<double>(bytes) * c.rows / input.rates.host_bytes;
    all.seconds += blocks * 2 * once;
    all.exposed += blocks * (std::max(0.0, once - c.rows * input.times.forward) +
                             std::max(0.0, once - c.rows * (input.times.backward + recomputed)));
  };
  add(c.host_mlp, input.row.projection, 0);
  add(c.host_attention, input.row.saved_attention, input.times.attention);
  add(c.host_full, input.row.saved_input, input.times.full);
  return all;
}

StepCost cost_of(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate,
                 const TrainingPlan& plan) {
  const RowTimes& times = input.times;
  const MachineRates& rates = input.rates;
  StepCost cost;
  cost.known = input.predicted;
  const double passes = input.micro_batches * (input.rows / candidate.rows), rows = candidate.rows,
               blocks = input.num_blocks;
  const double forward = rows * blocks * times.forward, backward = rows * blocks * times.backward;
  cost.compute = passes * (forward + backward + rows * (times.head + times.reference) + times.pass);
  // A pass after the first reads the sums that it adds to, or adds a reduced shard to the shard's sum.
  const double summed =
      static_cast<double>(input.sum_bytes) *
      static_cast<double>(plan.reduces_each_pass() ? 3 * storage.shard_elements : storage.whole_elements);
  cost.compute += (passes - 1) * summed / rates.memory_bytes;
  cost.compute += 2 * static_cast<double>(plan.transposes) / rates.memory_bytes;
  cost.recompute = passes * recomputation_time(input, candidate);
  const Transfer transfer = host_transfer(input, candidate);
  cost.copies = passes * transfer.seconds;
  cost.offload = passes * transfer.exposed;
  cost.fixed = rates.step_overhead + input.num_blocks * rates.block_overhead;
  if (input.world_size > 1) cost.fixed += rates.waiting * (cost.compute + cost.recompute);

  // Nothing hides the exchanges of a context: attention waits for them.
  cost.exposed += passes * rows * (2 * blocks + candidate.full) * times.exchange;

  // Consecutive ranks: a group that reaches over hosts has at least this many on each of them.
  const int per_host = input.ranks_per_host == 0 ? input.world_size : std::min(input.ranks_per_host, input.world_size);
  const Route shards = route(rates, plan.shard_size, std::gcd(plan.shard_size, per_host));
  const double byte = shards.byte;
  // `latency` needs neither memory bandwidth nor multiprocessors: it slows nothing, but takes its time.
  const auto hide = [&](double communication, double latency, double computation) {
    cost.interference += rates.interference * communication;
    cost.exposed += std::max(0.0, communication + latency - computation);
  };
  const int frozen = storage.frozen_gathered(candidate);
  double gathered = static_cast<double>(storage.gathered_trained) * byte;
  if (plan.shard_size > 1 && frozen > 0)
    gathered += static_cast<double>(plan.gathered_per_pass - storage.gathered_trained) * byte;
  const double gather_latency = shards.ring * (storage.gathered_units + (plan.shard_size > 1 ? frozen : 0));
  const double computes = gathered > 0 ? forward / blocks * std::min<double>(blocks, frozen > 0 ? frozen : blocks) : 0;
  const bool each = plan.reduces_each_pass();
  const double reduced = static_cast<double>(plan.reduced_per_step) * byte / (each ? passes : 1.0);
  if (const int replicas = storage.grid.replica.size; replicas > 1) {
    // Replicas: an all-reduce of this rank's part moves it twice.
    // The ranks of a host that have the same part: all of it with an undivided state, one each where a host is a group.
    const Route copies = route(rates, replicas, std::max(1, per_host / plan.state_shards()));
    const double all_reduce = static_cast<double>(plan.replica_reduced_per_step) * copies.byte;
    hide(all_reduce, copies.all_reduce() * storage.trained_units, std::max(0.0, backward - reduced));
  }
  // The sum of statistics at the end of the step, which nothing hides.
  cost.exposed += route(rates, input.world_size, per_host).all_reduce();
  for (double pass = 0; pass < passes; ++pass) {
    // After the optimizer whole copies of divided weights arrive while the first forward runs.
    const double arriving = pass == 0 ? static_cast<double>(storage.whole_trained) * byte : 0;
    const int arrivals = pass == 0 && storage.whole_trained > 0 ? storage.divided_units : 0;
    hide(gathered + arriving, gather_latency + arrivals * shards.ring, gathered > 0 ? computes : forward);
    if (times.reference > 0) hide(gathered, gather_latency, computes);
    const bool reduces = each || pass + 1 == passes;
    hide(gathered + (reduces ? reduced : 0), gather_latency + (reduces ? storage.divided_units * shards.ring : 0),
         gathered > 0 ? 2 * computes : backward);
  }

  // Master weights and moments are read and written, the gradient is read twice (its norm comes first).
  const auto element = 2.0 * static_cast<double>(input.master_bytes + input.moment_bytes + input.gradient_bytes);
  const auto host = static_cast<double>(storage.host_elements);
  cost.optimizer = ((static_cast<double>(storage.shard_elements) - host) * element +
                    host * static_cast<double>(input.gradient_bytes) + static_cast<double>(storage.copied_bytes)) /
                   rates.memory_bytes;
  // What comes from the host hides what goes back and the arithmetic: each direction has the bus to itself.
  if (input.host_apart) cost.state = static_cast<double>(storage.from_host) / rates.host_bytes;
  if (const MatrixWork& work = input.matrix_work; work.units > 0) {
    // Each rank of a shard group, or without one of the world, multiplies the matrices of its units. Updates go to the
    // rank that multiplies and back, or from it to all ranks.
    const bool divided = plan.state_shards() > 1;
    const int ranks = divided ? plan.shard_size : input.world_size;
    const double part = std::ceil(static_cast<double>(work.units) / ranks) / work.units;
    cost.optimizer += part * work.flops / rates.bf16_flops;
    const double update = 2.0 * static_cast<double>(work.elements);
    if (divided) cost.exposed += 2 * update / ranks * (1 - 1.0 / ranks) * byte;
    if (!divided && ranks > 1) cost.exposed += update * route(rates, ranks, per_host).byte;
  }
  return cost;
}

}  // namespace trireme
