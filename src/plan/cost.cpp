#include "trireme/plan/cost.h"

namespace trireme {

void set_rates(PlanInput& input) {
  input.times.gathered_byte = 1 / input.rates.link_bytes;
  input.times.network_byte = 1 / input.rates.network_bytes;
  input.times.interference = input.rates.interference;
  input.times.collective_start = input.rates.collective_start;
  input.times.ring_link_step = input.rates.ring_link_step;
  input.times.ring_network_step = input.rates.ring_network_step;
  input.times.tree_link_step = input.rates.tree_link_step;
  input.times.tree_network_step = input.rates.tree_network_step;
  input.times.optimizer_byte = 1 / input.rates.memory_bytes;
  input.times.waiting = input.rates.waiting;
  input.times.fixed = input.rates.step_overhead + input.num_blocks * input.rates.block_overhead;
}

void set_block_times(const BlockWork& work, const BlockProducts& products, PlanInput& input) {
  const MachineRates& rates = input.rates;
  const RecipeTraits& recipe = products.recipe;
  const auto seconds = [&](const ProductTraits& product, double flops) {
    return product.slowdown * flops / (product.fp8 ? rates.fp8_flops : rates.bf16_flops);
  };
  const double attention =
      work.attention / (rates.attention_flops * attention_part(products.head_size, products.attention_dropout));
  double forward_bytes = work.forward_bytes + work.unhidden_forward,
         backward_bytes = work.backward_bytes + work.unhidden_backward;
  // The models count 4 bytes an element.
  forward_bytes += recipe.operand_traffic / 4 * work.fp8_forward_bytes;
  backward_bytes += recipe.operand_traffic / 4 * work.fp8_backward_bytes;
  StepTimes& times = input.times;
  times.block_forward = seconds(recipe.forward, work.matrices) + attention + forward_bytes / rates.memory_bytes;
  const double weights = products.trained ? seconds(recipe.wgrad, work.matrices) : 0;
  times.block_backward =
      seconds(recipe.dgrad, work.matrices) + weights + 2.5 * attention + backward_bytes / rates.memory_bytes;
  times.norms_forward = work.norms_bytes / rates.memory_bytes;
  times.mlp_forward = seconds(recipe.forward, work.gate_up);
  times.pass =
      static_cast<double>(input.num_blocks) * recipe.weight_traffic / 4 * work.fp8_weight_bytes / rates.memory_bytes;
}

}  // namespace trireme
