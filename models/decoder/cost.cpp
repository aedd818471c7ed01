// FLOPs and activation memory.
#include "models/decoder/decoder.h"
#include "models/decoder/targets.h"

#include <algorithm>

namespace trireme {

namespace {

bool has_adapter(const DecoderConfig& config, const std::optional<LoraOptions>& lora, int parameter) {
  if (!lora) return false;
  const auto targets = lora_targets(config, *lora);
  return std::any_of(targets.begin(), targets.end(),
                     [&](const LoraTarget& target) { return target.parameter == parameter; });
}

}  // namespace

double model_flops_per_sample(const DecoderConfig& config, const std::optional<LoraOptions>& lora, int64_t seq_length) {
  const double d = static_cast<double>(config.hidden_size), f = static_cast<double>(config.intermediate_size);
  const double up = static_cast<double>(config.mlp_up_rows());
  const double q = static_cast<double>(config.num_attention_heads * config.head_dim);
  const double kv = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const double layers = static_cast<double>(config.num_hidden_layers), s = static_cast<double>(seq_length);
  const double block = d * (q + 2 * kv) + q * d + d * (up + f);
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

BlockWork block_work(const DecoderConfig& config, int64_t seq_length, int64_t element_size) {
  const double d = static_cast<double>(config.hidden_size), f = static_cast<double>(config.intermediate_size),
               up = static_cast<double>(config.mlp_up_rows()), s = static_cast<double>(seq_length);
  const double q = static_cast<double>(config.num_attention_heads * config.head_dim);
  const double kv = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const double qkv = q + 2 * kv, bytes = s * static_cast<double>(element_size);
  const double rotated = config.positions == DecoderPositions::kRope ? qkv : 0;
  // GELU's output is kept where that of SwiGLU is recomputed.
  const double activation = config.gated_mlp() ? up + f : 0;
  // Forward: two norms read and write d, rotary positions q k v, the activation reads `up` and writes f. Backward: a
  // norm reads dy, x and the residual's gradient and writes dx; the activation reads dy and `up` and writes d_up.
  const auto unhidden = [&](double columns, double inner) {
    return unhidden_bytes(s, columns, inner, static_cast<double>(element_size));
  };
  return {.matrices = 2 * s * (d * qkv + q * d + d * (up + f)),
          .gate_up = 2 * s * d * up,
          .attention = 2 * s * s * q,
          .forward_bytes = bytes * (4 * d + 2 * rotated + up + f),
          .backward_bytes = bytes * (8 * d + 2 * rotated + 2 * up + f),
          .norms_bytes = bytes * (4 * d + activation),
          .fp8_forward_bytes = 4 * s * (2 * d + q + f),
          .fp8_backward_bytes = 4 * s * (2 * d + qkv + up),
          .fp8_weight_bytes = 4 * (d * qkv + q * d + d * (up + f)),
          .unhidden_forward = unhidden(qkv, d) + unhidden(d, q) + unhidden(up, d) + unhidden(d, f),
          .unhidden_backward = unhidden(d, qkv) + unhidden(q, d) + unhidden(d, up) + unhidden(f, d)};
}

ActivationBytes activation_bytes(const DecoderConfig& config, const std::optional<LoraOptions>& lora,
                                 int64_t seq_length, const ActivationStorage& storage) {
  const int64_t d = config.hidden_size, f = config.intermediate_size, up = config.mlp_up_rows();
  const int64_t q = config.num_attention_heads * config.head_dim,
                qkv = q + 2 * config.num_key_value_heads * config.head_dim;
  const int64_t element = storage.element_size;
  const bool fp8 = storage.frozen_fp8, gated = config.gated_mlp();
  const bool down_adapter = has_adapter(config, lora, kDownProj), up_adapter = has_adapter(config, lora, kGateUpProj);
  const bool trained = !lora;

  // Per token: the block's input and the state after attention (both norms' inputs), q k v, the
  // attention's output (also the out projection's input), the adapters' products; fp32: the statistics of
  // two norms (a layer norm has a mean, too) and the log-sum-exp of each head.
  const int64_t statistics = config.norm == DecoderNorm::kLayer ? 4 : 2;
  int64_t kept = (2 * d + qkv + q) * element + (statistics + config.num_attention_heads) * 4;
  if (lora) kept += lora->r * static_cast<int64_t>(lora_targets(config, *lora).size()) * element;
  if (storage.trained_fp8) kept += 2 * d + q + f;
  // The up projection; GELU keeps what the down projection's weight gradient reads, too.
  int64_t gate_up = fp8 && gated ? up + 8 : up * element;
  if (!gated && ((trained && !storage.trained_fp8) || down_adapter)) gate_up += f * element;

  // Outputs of the norms and of the activation, which weight gradients in the compute dtype read.
  const int64_t normed = (trained && !storage.trained_fp8) ? (2 * d + (gated ? f : 0)) * element : 0;
  ActivationBytes bytes;
  bytes.block_saved = seq_length * (kept + gate_up + normed);
  bytes.block_saved_norms = normed > 0 ? seq_length * (kept + gate_up) : 0;
  bytes.block_saved_mlp = seq_length * kept;
  bytes.block_recomputed = seq_length * d * element;

  // Forward of the MLP: gate_up and the activation, in FP8 also both as bytes. Backward: the
  // gradients of the activation and of gate_up, gate_up itself where it was formed again, and for
  // adapters the activation and its masked copy; then the gradient of the normalised rows.
  const int64_t forward = (up + f) * element + (fp8 || storage.trained_fp8 ? up + f : 0) + 2 * d * element;
  const int64_t masked = lora && lora->dropout > 0 ? 1 : 0;
  // In FP8 without an adapter the gradient of gate_up is written as bytes only.
  const int64_t plain_up = fp8 && !up_adapter ? 0 : up;
  int64_t backward = (up + f + plain_up + 3 * d) * element + (fp8 ? up + d : 0);
  if (storage.trained_fp8) backward += 2 * (up + d);  // codes of both gradients, each way round
  if (down_adapter || trained) backward += f * (1 + masked) * element;
  if (up_adapter || trained) backward += d * (1 + masked) * element;
  // Backward of attention: gradients of its output, of q, k, v and their packed copy, fp32 sums of dq in up to two rows
  // a token, the normalised rows and their masked copy.
  const int64_t attention = (d + q + 2 * qkv + d * (1 + masked)) * element + 2 * q * 4;
  bytes.working_peak = seq_length * std::max({forward, backward, attention});
  bytes.working_fixed = fp8 ? 2 * d * f : 0;  // the transposed weight
  // Codes that forward makes are transposed there and kept for backward; the store's are transposed by backward, one
  // matrix at a time.
  if (storage.trained_fp8)
    bytes.working_fixed = storage.stored_codes ? d * up : config.num_hidden_layers * d * (qkv + q + up + f);
  // The head's norm keeps its input; the loss head keeps the gradient of its input.
  bytes.head = seq_length * (2 * d * element + 4);
  bytes.head_logits = seq_length * config.vocab_size * element;
  bytes.head_logits_most = int64_t{256} << 20;  // a chunk of the loss head's kernel
  bytes.head_fixed = trained ? 4 * config.vocab_size * d : 0;
  // Tied: autograd holds the head's gradient until the embedding's comes, at the end of backward.
  if (trained && config.tie_word_embeddings) bytes.working_fixed += config.vocab_size * d * element;
  return bytes;
}

}  // namespace trireme
