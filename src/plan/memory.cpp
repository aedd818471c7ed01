#include "trireme/plan/memory.h"

#include "candidate.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/host_state.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/matmul/nf4.h"

#include <algorithm>
#include <cmath>

namespace trireme {

int64_t exchanged_heads(const ModelShape& shape) {
  const BlockTable& block = *shape.block;
  return block.heads + 2 * shape.context * kv_heads_of_rank(block.heads, block.kv_heads, shape.context);
}

namespace {

/// Working memory of the compositions of LibTorch's operations beyond that of kernels, elements or bytes a token.
struct ComposedMemory {
  int64_t forward = 0;     // bytes: the wider of the norm and the activation function
  int64_t activation = 0;  // elements: backward of the activation function
  int64_t norm = 0;        // bytes: backward of a norm
  int64_t rotated = 0;     // elements: backward of RoPE
};
ComposedMemory composed_memory(const ModelShape& shape, int64_t element_size, KernelClass kernels) {
  ComposedMemory more;
  if (kernels != KernelClass::kNone) return more;
  const BlockTable& block = *shape.block;
  const int64_t d = block.at("qkv").in, f = block.at("down").in;
  const bool layer_norms =
      std::ranges::any_of(block.layers, [](const BlockLayer& layer) { return !layer.product() && layer.bias; });
  // A layer norm in fp32: x, x - mean, and the products with weight and bias; in backward six such tensors. The RMS
  // norm is the library's kernel; backward adds the residual's gradient in a tensor of its own.
  const int64_t copies = element_size < 4 ? 16 : 12;
  more.norm = layer_norms ? 24 * d : d * element_size;
  // GELU's input with its bias. SwiGLU's gradients are made apart from the tensor that holds both.
  more.forward = std::max(layer_norms ? copies * d : 0, block.gated ? 0 : f * element_size);
  more.activation = block.gated ? 2 * f : f;
  // The draws of dropout are 64-bit integers, one for two elements, in up to four tensors at a time. A model with
  // dropout in attention has it behind its products, too.
  int64_t dropped = shape.attention_dropout ? d : 0;
  if (shape.adapter_dropout)
    for (const AdapterShape& adapter : shape.adapters) dropped = std::max(dropped, adapter.in);
  more.norm += 16 * dropped;
  more.forward += 16 * dropped;
  more.rotated = block.rotary ? block.at("qkv").out() : 0;
  return more;
}

/// Sums over the layers of a block.
struct BlockWidths {
  int64_t norms = 0;          // elements a token: inputs of the norms
  int64_t normed_inputs = 0;  // of them, those whose results a product reads
  int64_t head_norms = 0;     // of them, those of the heads
  int64_t inputs = 0;         // elements a token: inputs of the products
  int64_t matrices = 0;       // elements of the weights
  int64_t largest = 0;        // of one of them
  int64_t statistics = 0;     // fp32 numbers a token: log-sum-exp of each head, norms'
  bool post_norms = false, branch_norms = false;
};
BlockWidths widths_of(const BlockTable& block) {
  BlockWidths widths;
  widths.statistics = block.heads;
  for (const BlockLayer& layer : block.layers) {
    if (layer.product()) {
      widths.inputs += layer.in;
      widths.matrices += layer.in * layer.out();
      widths.largest = std::max(widths.largest, layer.in * layer.out());
    } else {
      widths.norms += layer.in;
      if (layer.kind == LayerKind::kNorm || layer.kind == LayerKind::kPostNorm)
        widths.normed_inputs += layer.in;
      else if (layer.kind != LayerKind::kBranchNorm)
        widths.head_norms += layer.in;
      widths.statistics += (layer.bias ? 2 : 1) * (layer.in / layer.out());  // a layer norm has a mean, too
      widths.post_norms = widths.post_norms || layer.kind == LayerKind::kPostNorm;
      widths.branch_norms = widths.branch_norms || layer.kind == LayerKind::kBranchNorm;
    }
  }
  return widths;
}

/// What backward of attention makes in one row.
struct AttentionBackward {
  int64_t elements;  // a token: gradients of its result and of q, k, v, their packed copy, and the exchange's
  int64_t sums;      // bytes: fp32 sums of dq
};
AttentionBackward attention_backward(const ModelShape& shape, const ComposedMemory& more, KernelClass kernels) {
  const BlockTable& block = *shape.block;
  const int64_t q = block.at("output").in, heads = exchanged_heads(shape) * block.head_dim;
  // Without a causal mask the sums of up to 512 tokens in heads of 64 stay on chip, beside 8 bytes for each head and
  // each of the 128 rows that a sequence takes at least.
  // The library keeps no sums on chip. With dropout it takes 128 rows more for each sequence, and it makes the
  // gradients of keys and values for each query head first.
  const bool library = kernels != KernelClass::kHopper;
  const bool on_chip = !library && !block.causal && block.head_dim == 64 && shape.tokens <= 512;
  const auto padded = shape.tokens + 128 * static_cast<int64_t>(std::ceil(shape.sequences));
  const int64_t rows = on_chip                              ? shape.tokens
                       : library && shape.attention_dropout ? padded
                                                            : attention_sum_rows(shape.tokens);
  const int64_t repeated = library && block.kv_heads < block.heads ? 2 * q : 0;
  // The exchange of the gradients takes two more of q, and of the heads what they are more than q, k, v.
  const int64_t exchanged = shape.context > 1 ? 2 * q + block.at("qkv").out() : 0;
  return {q + 2 * heads + repeated + more.rotated + exchanged, 4 * q * rows};
}

HeadMemory head_memory(const HeadShape& head, int64_t element_size, KernelClass kernels) {
  HeadMemory memory = head.memory;
  if (kernels != KernelClass::kNone) return memory;
  // Logits in fp32 and their exponentials, of 128 Mi logits at most (loss_head_chunk()), and a chunk's weight gradient.
  memory.logits = 0;
  memory.logits_most = int64_t{1} << 30;
  for (const HeadShape::Product& one : head.products) {
    memory.logits += static_cast<int64_t>(8 * one.tokens) * one.out;
    memory.fixed += head.trained ? one.in * one.out * element_size : 0;
  }
  return memory;
}

}  // namespace

RowMemory row_memory(const ModelShape& shape, const RecipeTraits& recipe, int64_t element_size, KernelClass kernels) {
  const BlockTable& block = *shape.block;
  const ComposedMemory more = composed_memory(shape, element_size, kernels);
  const int64_t d = block.at("qkv").in, qkv = block.at("qkv").out(), q = block.at("output").in,
                up = block.at("up").out(), f = block.at("down").in;
  const BlockWidths widths = widths_of(block);
  const auto adapted = [&](const char* layer) {
    return std::ranges::any_of(shape.adapters, [&](const auto& adapter) { return adapter.layer == block.find(layer); });
  };
  const bool up_adapter = adapted("up"), down_adapter = adapted("down");
  const bool plain_inputs = shape.trained && recipe.wgrad_reads_plain_input;
  // Without a norm in front of it a product reads the residual, which is kept if its weight gradient or an adapter
  // reads it.
  const auto reads_residual = [&](const char* norm, const char* product, bool kept) {
    return !widths.post_norms && block.find(norm) < 0 && kept == (plain_inputs || adapted(product)) ? d : 0;
  };
  const int64_t norms =
      widths.norms + reads_residual("attention_norm", "qkv", true) + reads_residual("mlp_norm", "up", true);

  double ranks = 0, multiplied = 0, multiplied_up = 0;  // what DoRA's factors multiply; of the up projection
  for (const AdapterShape& adapter : shape.adapters) {
    const double rows = shape.dora ? adapter.share * static_cast<double>(adapter.rows) : 0;
    ranks += adapter.share * static_cast<double>(adapter.rank);
    multiplied += rows;
    if (adapter.layer == block.find("up")) multiplied_up += rows;
  }
  // Per token: the inputs of the norms, q k v, the attention's output (also the output projection's input), the
  // adapters' products, codes of what wgrad reads.
  // With a context attention keeps the exchanged heads, and its own output beside the one that was exchanged.
  const bool shared = shape.context > 1;
  const int64_t heads = exchanged_heads(shape) * block.head_dim;
  const auto of_adapters = static_cast<int64_t>(std::ceil(ranks + multiplied));
  const int64_t kept = (norms + heads + (shared ? 2 : 1) * q + of_adapters) * element_size + widths.statistics * 4 +
                       (shape.trained ? widths.inputs * recipe.kept_input_bytes : 0);
  // The up projection, in FP8 with a scale a row for gate and up; GELU keeps what the down projection's weight gradient
  // reads, too.
  int64_t gate_up = block.gated && recipe.keeps_activations_in_fp8 ? up + 8 : up * element_size;
  if (!block.gated && (plain_inputs || down_adapter)) gate_up += f * element_size;
  // Outputs of the norms and of the activation, which weight gradients in the compute dtype read.
  const int64_t normed = plain_inputs ? (widths.normed_inputs + (block.gated ? f : 0)) * element_size : 0;
  RowMemory memory;
  memory.saved = shape.tokens * (kept + gate_up + normed);
  // Values after the residual are not computed again.
  memory.projection = shape.tokens * gate_up;
  if (!widths.post_norms) {
    memory.saved_norms = normed > 0 ? shape.tokens * (kept + gate_up) : 0;
    memory.saved_mlp =
        shape.tokens *
        (kept + (reads_residual("mlp_norm", "up", false) - static_cast<int64_t>(multiplied_up)) * element_size);
  }
  memory.saved_input = shape.tokens * d * element_size;
  memory.saved_attention = memory.saved_input + shape.tokens * (q * element_size + 4 * block.heads);

  // Forward of the MLP: gate_up and the activation, with FP8 products also both as bytes.
  const int64_t masked = shape.adapter_dropout ? 1 : 0;
  // A branch that is normed or multiplied by itself is a tensor beside the sum.
  const int64_t branch = widths.branch_norms || block.branch_multiplier != 1 ? d : 0;
  // With attention in FP8 the heads as they were live beside their values.
  const int64_t unrounded = block.fp8_attention ? qkv : 0;
  const int64_t forward =
      (up + f + 2 * d + branch + unrounded) * element_size + (recipe.forward.fp8 ? up + f : 0) + more.forward;
  // Backward of the MLP, beside the gradients of the result and of the input. The down projection: gate_up, computed
  // again, the gradient of the activation, and for weight gradients and adapters the activation and its masked copy.
  // Then the activation function: gate_up and the gradients of both of its sides. Then the up projection: the gradient
  // of gate_up, and the normalised rows, their masked copy and gradient. Frozen products in FP8 without an adapter have
  // the gradient of gate_up as codes only.
  const bool only_codes = recipe.dgrad.fp8 && !shape.trained && !up_adapter;
  const int64_t gradient = only_codes || widths.post_norms ? 0 : up;
  const int64_t activations = f + (down_adapter || (shape.trained && !widths.post_norms) ? f * (1 + masked) : 0);
  const int64_t scaled = shape.dora && up_adapter ? up : 0;  // the gradient of gate_up times DoRA's factors
  const int64_t up_backward = gradient + scaled + (up_adapter || shape.trained ? d * (1 + masked) : 0) + d;
  const auto backward_beside = [&](int64_t again) {
    return (2 * d + branch + std::max(again + std::max(activations, f + gradient + more.activation), up_backward)) *
               element_size +
           more.norm + recipe.gradient_bytes * (up + d);
  };
  const int64_t backward = backward_beside(up);
  const AttentionBackward attention = attention_backward(shape, more, kernels);
  // Beside them the gradient of the residual, the normalised rows and their masked copy.
  const int64_t attended = (attention.elements + d + d * (1 + masked)) * element_size;
  const int64_t exchange = shared ? (d + qkv + 2 * heads) * element_size : 0;
  const auto working = [&](int64_t mlp) {
    return std::max(shape.tokens * std::max({forward, mlp, attended, exchange}),
                    shape.tokens * attended + attention.sums);
  };
  memory.working = working(backward);
  memory.working_kept = working(gate_up == up * element_size ? backward_beside(0) : backward);
  if (recipe.rows_apart) {
    // Backward of attention: the gradients of the block's result, of the residual and of attention's output; q, k, v
    // and their gradients; what the products around it keep. Before it, in the MLP, and after it less is alive.
    const int64_t beside =
        of_adapters * element_size + widths.statistics * 4 + (shape.trained ? (d + q) * recipe.kept_input_bytes : 0);
    memory.working_whole =
        shape.tokens * ((2 * d + attention.elements + 2 * widths.head_norms) * element_size + beside) + attention.sums;
    // The up projection is always computed again.
    memory.tile_token =
        std::max(forward, backward + (only_codes || widths.post_norms ? gate_up : 0)) + 2 * d * element_size;
    memory.tile_sums = shape.trained ? 4 * (block.at("up").in * up + f * d) : 0;
  }
  // Backward transposes codes of the store, one matrix at a time; codes that forward makes are transposed there and
  // wait for backward.
  if (recipe.stores_codes)
    memory.working_fixed = widths.largest;
  else if (recipe.forward.fp8)
    memory.kept_codes = widths.matrices;
  memory.head = head_memory(shape.head, element_size, kernels);
  return memory;
}

namespace {

/// Bytes of a unit without its master weights. Units in FP8 keep their vectors whole, in the compute dtype. The codes
/// of a frozen unit have the layout of its matrices, trained codes the layout of the whole unit.
struct UnitBytes {
  int64_t shard, whole;
};
UnitBytes storage_bytes(const PlanInput& input, const UnitSpec& unit, int shard_count, bool trained_codes) {
  const bool matrices = !unit.trained && unit.has_linear();
  if (input.frozen_nf4 && matrices) {
    const UnitLayout layout = make_layout(unit.matrices(), shard_count);
    const int64_t scales = nf4_blocks(layout.numel) + 4 * nf4_nested_blocks(layout.numel);
    const int64_t beside = make_layout(unit.vectors(), 1).numel * input.compute_bytes + scales;
    return {layout.shard_numel / 2 + beside, layout.numel / 2 + beside};
  }
  const bool frozen_codes = input.frozen_fp8 && matrices;
  if (!frozen_codes && !trained_codes) {
    const UnitLayout layout = make_layout(unit, shard_count);
    const int64_t bytes = unit.fp32 ? 4 : input.compute_bytes;
    return {layout.shard_numel * bytes, layout.numel * bytes};
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

/// Bytes of gradients at their peak; `plan.reused` is the part of them that grows while backward frees activations.
/// `first_block`: activations of the first block in its backward, when the gradients of all others are there.
void count_gradients(const PlanInput& input, const PolicyMemory& storage, int passes, int64_t first_block,
                     TrainingPlan& plan) {
  const bool divided = plan.state_shards() > 1;
  const int64_t few = 3 * storage.largest_elements * input.gradient_bytes;  // two being reduced, one being filled
  int64_t kept = 0;
  if (!divided) {
    kept = storage.whole_elements * (passes > 1 ? input.sum_bytes : input.gradient_bytes);
  } else if (passes > 1 && plan.policy == ShardPolicy::kOptimizer) {
    kept = storage.whole_elements * input.sum_bytes;
  } else {
    kept = storage.shard_elements * (passes > 1 ? input.sum_bytes : input.gradient_bytes);
    plan.gradients += std::min(few, storage.whole_elements * input.gradient_bytes);
  }
  plan.gradients += kept;
  if (passes == 1) plan.reused = std::clamp<int64_t>(plan.activations - first_block, 0, kept);
  const double others = 1.0 - 1.0 / std::max(1, plan.state_shards());
  const bool each = plan.reduces_each_pass();
  plan.reduced_per_step = static_cast<int64_t>(others * static_cast<double>(storage.whole_elements) *
                                               static_cast<double>(input.gradient_bytes)) *
                          (each ? passes : 1);
  const double replicas = storage.grid.replica.size;
  plan.replica_reduced_per_step =
      static_cast<int64_t>(2.0 * (1.0 - 1.0 / replicas) * static_cast<double>(storage.shard_elements) *
                           static_cast<double>(input.gradient_bytes));
  plan.accumulated_passes = each ? 1 : passes;
}

}  // namespace

PolicyMemory policy_memory(const PlanInput& input, int shard_size, ShardPolicy policy, int host_units) {
  PolicyMemory storage;
  TrainingPlan& plan = storage.bytes;
  plan.shard_size = shard_size;
  plan.policy = policy;
  storage.grid = RankGrid(0, {.world = input.world_size, .shard = plan.state_shards()});
  plan.context_size = input.context_size;
  plan.device_memory = input.device_memory;
  plan.overhead = input.overhead;
  plan.host_units = host_units;
  const std::vector<bool> codes = trained_codes(input);
  int64_t expanded = 0;  // elements of one unit in NF4
  for (size_t u = 0; u < input.units->size(); ++u) {
    const UnitSpec& unit = (*input.units)[u];
    const UnitDivision division = divide_unit(unit, shard_size, policy, /*resident=*/false);
    const int shards = division.any() ? shard_size : 1;
    const UnitBytes bytes = storage_bytes(input, unit, shards, codes[u]);
    if (input.frozen_nf4 && !unit.trained && unit.has_linear())
      expanded = std::max(expanded, make_layout(unit.matrices(), shards).numel);
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
    const bool masters_apart = codes[u] || (input.compute_bytes < input.master_bytes && !unit.fp32);
    const int64_t masters = masters_apart ? layout.shard_numel * input.master_bytes : 0;
    const int64_t moments = layout.shard_numel * input.moment_bytes -
                            unit.matrix_numel() / layout.shard_count * (input.moment_bytes - input.matrix_moment_bytes);
    // Codes are made in a second pass, which reads the master weights again.
    if (codes[u])
      storage.copied_bytes += layout.shard_numel * (input.master_bytes + 1);
    else if (masters_apart || input.master_bytes == 4)
      storage.copied_bytes += layout.shard_numel * input.compute_bytes;
    const bool waits = storage.trained_units <= host_units;
    if (waits) {
      storage.host_elements += layout.shard_numel;
      // The codes of a shard are made when the scales of the group are known, from masters that come once more; those
      // of a whole unit in the pass, from masters that stay until the unit's end.
      storage.from_host += masters + moments + (codes[u] && division.state ? masters : 0);
      if (codes[u] && !division.state) storage.passing = std::max(storage.passing, masters);
    }
    if (waits && input.host_apart)
      plan.host_state += masters + moments;
    else
      plan.masters += masters, plan.moments += moments;
    if (division.state && !division.weights) storage.whole_trained += bytes.whole - bytes.shard;
    storage.whole_elements += layout.numel;
    storage.shard_elements += layout.shard_numel;
    if (division.state) storage.largest_elements = std::max(storage.largest_elements, layout.numel);
  }
  plan.gather_slots += expanded * input.compute_bytes;
  storage.nf4_part = std::min(expanded, kNf4Chunk);
  return storage;
}

TrainingPlan memory_of(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate) {
  TrainingPlan plan = storage.bytes;
  plan.rows_per_pass = candidate.rows;
  const int passes = input.micro_batches * (input.rows / candidate.rows);
  if (storage.frozen_gathered(candidate) > 0 || storage.gathered.empty())
    plan.gather_slots += kGatherSlots * storage.largest_slot;
  for (size_t i = 0; i < storage.gathered.size(); ++i) {
    if (!storage.is_resident(i, candidate.resident)) continue;
    plan.weights += storage.extra[i];
    plan.gathered_per_pass -= storage.extra[i];
  }
  const RowMemory& row = input.row;
  const int64_t again = row.saved_norms > 0 ? row.saved_norms : row.saved;  // of a block that is computed again
  const int none = input.num_blocks - candidate.norms - candidate.mlp - candidate.host_mlp - candidate.whole();
  int64_t saved = none * row.saved + candidate.norms * row.saved_norms + candidate.mlp * row.saved_mlp +
                  candidate.host_mlp * (again - row.projection) + candidate.attention * row.saved_attention +
                  candidate.full * row.saved_input;
  int64_t working = row.working * candidate.rows;
  if (candidate.tile > 0 && candidate.whole() == input.num_blocks) {
    // A block that recomputes attention counts if there is one.
    const bool attends = candidate.full > 0 || (candidate.attention == 0 && candidate.host_full > 0);
    working = (row.working_whole + (attends ? row.saved_attention - row.saved_input : 0)) * candidate.rows +
              candidate.tile * row.tile_token + (input.gradient_bytes < 4 ? row.tile_sums : 0);
  } else if (candidate.whole() > 0) {
    // The block that is computed again has what backward reads. Counted beside the values of the other blocks, which
    // are gone by then: gradients may have taken their place. The blocks on the host are the first: theirs are the only
    // values then.
    const int64_t beside = candidate.full + candidate.attention > 0
                               ? saved - (candidate.full > 0 ? row.saved_input : row.saved_attention)
                               : 0;
    const int64_t working_again = row.working_kept * candidate.rows;
    if (candidate.whole() == input.num_blocks ||
        (again + beside) * candidate.rows + working_again > saved * candidate.rows + working)
      saved = again + beside, working = working_again;
  }
  plan.tile_tokens = candidate.whole() > 0 ? candidate.tile : 0;
  plan.activations = saved * candidate.rows;
  const int64_t head =
      row.head.row * candidate.rows + row.head.fixed + std::min(row.head.logits * candidate.rows, row.head.logits_most);
  // Of the blocks that are computed again, one at a time has its codes.
  const int64_t with_codes = input.num_blocks - candidate.whole() + (candidate.whole() > 0 ? 1 : 0);
  plan.working = std::max(working, head) + row.working_fixed + with_codes * row.kept_codes + row.head.held;
  // In tiles a block's values are working memory, but for its input or attention's output.
  const bool named = !input.recompute_blocks.empty();
  const int64_t first_block = named && input.recompute_blocks.front() == Recompute::kNone ? row.saved
                              : plan.tile_tokens > 0 && candidate.whole() == input.num_blocks
                                  ? std::max(row.saved_attention, row.saved_input)
                              : candidate.whole() + candidate.host_mlp > 0 ? again
                              : candidate.mlp > 0                          ? row.saved_mlp
                              : candidate.norms > 0                        ? row.saved_norms
                                                                           : row.saved;
  count_gradients(input, storage, passes, first_block * candidate.rows, plan);
  // The optimizer's step comes when activations are gone and gradients are whole.
  // AdamW as a composition converts all gradients, moments and masters that are not fp32.
  const int64_t converted =
      input.kernels != KernelClass::kNone
          ? 0
          : storage.shard_elements * ((input.gradient_bytes < 4 ? 4 : 0) + (input.moment_bytes < 8 ? 8 : 0) +
                                      (input.master_bytes < 4 ? 4 : 0));
  plan.working =
      std::max(plan.working, std::max(input.matrix_work.memory, converted) - (plan.activations - plan.reused));
  // Composed, a matrix in NF4 is expanded a part at a time: its codes as bytes and as numbers, in 32 bits, and values.
  if (input.kernels == KernelClass::kNone) plan.working = std::max(plan.working, storage.nf4_part * 10);
  if (plan.host_state > 0)
    plan.working = std::max(plan.working,
                            HostState::kPieces * HostState::kPieceElements * (input.master_bytes + input.moment_bytes) +
                                storage.passing - (plan.activations - plan.reused));
  if (candidate.host_mlp > 0) {
    // On the device: the last of these blocks while the others are in backward, and where all are there also the one
    // that leaves.
    const int64_t one = row.projection * candidate.rows;
    plan.activations += candidate.host_mlp == input.num_blocks ? 2 * one : one;
    plan.host = (candidate.host_mlp - 1) * one;
  } else if (candidate.host() > 0) {
    // On the device: the last of these blocks while the others are in backward, then the ones in use and on their way.
    const int64_t one = (candidate.host_attention > 0 ? row.saved_attention : row.saved_input) * candidate.rows;
    plan.activations = std::max(plan.activations + one, 2 * one);
    plan.host =
        (candidate.host_attention * row.saved_attention + candidate.host_full * row.saved_input) * candidate.rows - one;
  }
  return plan;
}

void keep_transposed(const PlanInput& input, TrainingPlan& plan) {
  const std::vector<bool> trained = trained_codes(input);
  const int64_t passes = input.micro_batches * (input.rows / plan.rows_per_pass);
  plan.keeps_transposed.assign(input.units->size(), false);
  for (size_t u = 0; u < input.units->size(); ++u) {
    const UnitSpec& unit = (*input.units)[u];
    const bool frozen = input.frozen_fp8 && !input.frozen_nf4 && !unit.trained && unit.has_linear();
    // Trained codes are new in each step, so that its first pass transposes them.
    const int64_t saved = frozen ? passes : trained[u] ? passes - 1 : 0;
    if (saved == 0) continue;
    const UnitDivision division = divide_unit(unit, plan.shard_size, plan.policy, plan.resident[u]);
    const int64_t bytes = make_layout(frozen ? unit.matrices() : unit, division.any() ? plan.shard_size : 1).numel;
    // More than the headroom stays: a percent of a step is not worth a run that ends for want of memory.
    const bool keeps = input.transpose_cache && !division.weights && plan.device_memory > 0 &&
                       plan.lacking() + plan.headroom() / 2 + bytes <= 0;
    // The traffic of trained recipes has the transposition, that of frozen weights has not: it decides nothing.
    if (frozen && !keeps) plan.transposes += saved * bytes;
    if (!frozen && keeps) plan.transposes -= saved * bytes;
    plan.keeps_transposed[u] = keeps;
    if (keeps) plan.transposed += bytes;
  }
}

}  // namespace trireme
