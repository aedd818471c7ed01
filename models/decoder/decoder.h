#pragma once
// The causal decoder with optional LoRA, as units of weights and a forward that ends in the loss. What a family
// chooses is in DecoderConfig, its tensors' names in family.h.
//
// Shapes: B rows, S positions, D hidden, N query heads, K key/value heads, H head_dim, F
// intermediate, V vocabulary, R LoRA rank.

#include "models/decoder/config.h"
#include "trireme/nn/block_work.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct LoraOptions {
  int64_t r = 0;
  double alpha = 0, dropout = 0;
  /// Linear layers of a block by the last part of their names (q_proj k_proj v_proj o_proj gate_proj up_proj
  /// down_proj; GPT-2: c_attn c_proj c_fc), or qkv_proj (one fused adapter over q, k, v).
  std::vector<std::string> targets;
  /// Rows [rows_begin, rows_end) of the embedding and the output matrix are trained too (none where they are equal):
  /// peft's trainable_token_indices. They follow the adapters in their unit, and replace the base's before each use.
  int64_t rows_begin = 0, rows_end = 0;
};

/// Token rows on the compute device.
struct TokenBatch {
  at::Tensor tokens_BS;  // int64
  at::Tensor labels_BS;  // int64: what position t predicts; undefined: token t+1 of its row
  /// fp32: weight of the prediction made at position t; 0 = not counted. Without labels the last column is 0.
  at::Tensor loss_weight_BS;
  /// Boundaries of sequences in the flattened rows: 0 … B*S; rows always end a sequence.
  std::vector<int32_t> cu_seqlens;
  at::Tensor positions_BS;  // int64: position inside the own sequence
  at::Tensor sample_ids_B;  // int64: global index of the sample in the run's stream (keys dropout)
  /// Names each sequence among all of the run: keys dropout of attention; may be empty where that is off.
  std::vector<int64_t> sequence_keys;
};

struct ForwardOptions {
  bool train = true;                 // dropout on
  uint64_t seed = 0;                 // of dropout
  std::vector<Recompute> recompute;  // per block; empty = none
};

/// What a forward pass gives. loss_sum = sum of loss_weight * cross-entropy (fp32 scalar,
/// differentiable when train).
struct LossOutput {
  at::Tensor loss_sum;
};

class DecoderModel {
 public:
  DecoderModel(const DecoderConfig& config, std::optional<LoraOptions> lora);
  /// Units: 0 embed (tokens, learned positions), 1..L blocks, L+1 head (final norm + lm_head; tied: norm only, unit 0
  /// is kept),
  /// with LoRA one more: adapters.
  const std::vector<UnitSpec>& units() const { return units_; }
  const DecoderConfig& config() const { return config_; }
  const std::optional<LoraOptions>& lora() const { return lora_; }

  LossOutput loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const;
  /// Logits [B, S, V] in fp32, for generation and checks on few tokens.
  at::Tensor logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const;

  int64_t num_parameters() const;  // base model
  int64_t num_trained_parameters() const;

 private:
  DecoderConfig config_;
  std::optional<LoraOptions> lora_;
  std::vector<UnitSpec> units_;
};

/// Model FLOPs of one sample of `seq_length` tokens, forward and backward. A multiply-add is 2.
/// Matrices (lm_head included, embedding not): 2 forward, 2 input gradient, 2 weight gradient per
/// parameter and token; frozen matrices have no weight gradient, adapters count in full. Attention:
/// causal half only, 2 S^2 N H a layer forward (both products), 2.5 times that backward: the five
/// products of a backward that keeps no S x S matrix, which is how the published figures of
/// Llama2-70B LoRA count (284 GFLOP a token at 2,048 tokens, 313 at 8,192). Recomputed blocks,
/// norms and softmax do not count.
double model_flops_per_sample(const DecoderConfig& config, const std::optional<LoraOptions>& lora, int64_t seq_length);

/// Bytes of activations per row of a micro-batch: what a block keeps for backward with Recompute::kNone, kNorms, kMlp
/// and kFull; `block_saved_norms` is 0 where kNorms keeps as much as kNone. `working_peak` is the peak of what
/// backward needs beside that, `working_fixed` the part of it that does not grow with the rows. `head`: of the loss
/// head, per row; `head_logits` its logits per row, of which it holds
/// `head_logits_most` bytes at a time; `head_fixed`: the output matrix' gradient in fp32.
struct ActivationBytes {
  int64_t block_saved, block_saved_norms, block_saved_mlp, block_recomputed, working_peak, working_fixed, head,
      head_logits, head_logits_most, head_fixed;
};
struct ActivationStorage {
  int64_t element_size = 2;   // of the compute dtype
  bool frozen_fp8 = false;    // products in FP8; gate and up projections are kept in FP8
  bool trained_fp8 = false;   // products in FP8; codes of their inputs are kept for backward
  bool stored_codes = false;  // with trained_fp8: the store has the codes of the weights; otherwise forward makes them
};
ActivationBytes activation_bytes(const DecoderConfig& config, const std::optional<LoraOptions>& lora,
                                 int64_t seq_length, const ActivationStorage& storage);

/// Of one block, for a row.
BlockWork block_work(const DecoderConfig& config, int64_t seq_length, int64_t element_size);

}  // namespace trireme
