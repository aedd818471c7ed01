// FLOPs and activation memory of a Llama.
#include "models/llama/llama.h"
#include "models/llama/targets.h"

#include <algorithm>
#include <set>

namespace trireme {

namespace {

/// Whether the input of a block weight is kept for backward: for a weight gradient or an adapter's.
std::set<int> parameters_with_input_kept(const LlamaConfig& config,
                                         const std::optional<LoraOptions>& lora) {
  if (!lora) return {kQkvProj, kOutProj, kGateUpProj, kDownProj};
  std::set<int> kept;
  for (const LoraTarget& target : lora_targets(config, *lora)) kept.insert(target.parameter);
  return kept;
}

}  // namespace

double model_flops_per_sample(const LlamaConfig& config, const std::optional<LoraOptions>& lora,
                              int64_t seq_length) {
  const double d = static_cast<double>(config.hidden_size),
               f = static_cast<double>(config.intermediate_size);
  const double q = static_cast<double>(config.num_attention_heads * config.head_dim);
  const double kv = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const double layers = static_cast<double>(config.num_hidden_layers),
               s = static_cast<double>(seq_length);
  const double block = d * (q + 2 * kv) + q * d + 3 * d * f;
  const double matrices = layers * block + d * static_cast<double>(config.vocab_size);
  // Forward and the gradient to the input, 2 each; the weight gradient when there is one.
  double per_token = matrices * (lora ? 4 : 6);
  if (lora)
    for (const LoraTarget& target : lora_targets(config, *lora))
      per_token += 6 * layers * static_cast<double>(lora->r * (target.in + target.rows));
  // Causal half of Q K^T and P V; backward forms S again, dV, dP, dQ, dK: five products for the forward's two.
  const double attention_forward = layers * 2 * s * s * q;
  return per_token * s + 3.5 * attention_forward;
}

ActivationBytes activation_bytes(const LlamaConfig& config, const std::optional<LoraOptions>& lora,
                                 int64_t seq_length, int64_t element_size) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim,
                kv = config.num_key_value_heads * config.head_dim;
  const std::set<int> kept = parameters_with_input_kept(config, lora);

  // Elements per token that stay: the block's input and the state after attention (both norms'
  // inputs), q k v, the attention's output, gate_up, and the inputs of linears that need them.
  // Attention's output and the out projection's input are one tensor.
  int64_t elements = 2 * d + (q + 2 * kv) + q + 2 * f;
  if (kept.contains(kQkvProj)) elements += d;
  if (kept.contains(kGateUpProj)) elements += d;
  if (kept.contains(kDownProj)) elements += f;
  if (lora) elements += lora->r * static_cast<int64_t>(lora_targets(config, *lora).size());
  const int64_t fp32_per_token =
      2 + config.num_attention_heads;  // two reciprocal roots, log-sum-exp of each head

  ActivationBytes bytes;
  bytes.block_saved = seq_length * (elements * element_size + fp32_per_token * 4);
  bytes.block_recomputed = seq_length * d * element_size;
  // Backward of the MLP: the gradient of y, of the activation, dy * up, silu(gate), and of gate_up.
  // Backward of attention: gradients of its output, of q, k, v, and their packed copy. Dropout adds
  // one masked copy of the widest adapter input.
  int64_t widest_dropped = 0;
  if (lora && lora->dropout > 0)
    for (const LoraTarget& target : lora_targets(config, *lora))
      widest_dropped = std::max(widest_dropped, target.in);
  const int64_t mlp = d + 5 * f, attention = d + q + 2 * (q + 2 * kv);
  bytes.working_peak = seq_length * (std::max(mlp, attention) + widest_dropped) * element_size;
  // The head's norm keeps its input; the loss head keeps the gradient of its input.
  bytes.head = seq_length * (2 * d * element_size + 4);
  return bytes;
}

}  // namespace trireme
