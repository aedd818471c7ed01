#pragma once
// The causal decoder with optional LoRA, as units of weights and a forward that ends in the loss. The choices of a
// family are in DecoderConfig, its tensors' names in family.h.
//
// Shapes: B rows, S positions, T = B S, D hidden, N query heads, K key/value heads, H head_dim, F intermediate, V
// vocabulary, R LoRA rank.

#include "models/common/blocks.h"
#include "models/common/lora.h"
#include "models/common/units.h"
#include "models/decoder/config.h"
#include "trireme/nn/block.h"
#include "trireme/nn/model_shape.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/sequence_exchange.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/trained_rows.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Token rows on the compute device. With ForwardOptions::exchange this rank has a slice of the tokens of B rows, as
/// one row [1, B S / ranks] of tokens, labels, weights and positions; the members below these are of all B rows.
struct TokenBatch {
  at::Tensor tokens_BS;  // int64
  at::Tensor labels_BS;  // int64: what position t predicts; undefined: token t+1 of its row
  /// fp32: weight of the prediction made at position t; 0 = not counted. Without labels the last column is 0.
  at::Tensor loss_weight_BS;
  /// int64, ascending: all tokens of the B * S with another weight than 0, and maybe others; undefined: all tokens.
  at::Tensor loss_rows_R;
  at::Tensor positions_BS;  // int64: position inside the own sequence
  /// Boundaries of sequences in the flattened rows: 0 … B*S; rows always end a sequence.
  std::vector<int32_t> cu_seqlens;
  at::Tensor sample_ids_B;  // int64: global index of the sample in the run's stream (keys dropout)
  /// Names each sequence among all of the run: keys dropout of attention; may be empty where that is off.
  std::vector<int64_t> sequence_keys;
};

struct ForwardOptions {
  bool train = true;  // gradients, and dropout
  uint64_t seed = 0;  // of dropout
  Recomputation recompute{};
  bool dropout = true;         // false: none in training either
  double neftune_alpha = 0;    // in training: noise of this alpha on the embedding; 0: none
  LabelSmoothing smoothing{};  // of loss() in training
  /// false: without adapters, as if B were zero, and without trained biases; what is trained of the vocabulary stays
  /// the store's.
  bool adapters = true;
  /// The ranks that share the rows of the batch; null: it has whole rows. Outlives the graph.
  SequenceExchange* exchange = nullptr;
};

class DecoderModel {
 public:
  DecoderModel(const DecoderConfig& config, std::optional<LoraOptions> lora);
  /// Units: 0 embed (tokens, learned positions), 1..L blocks, L+1 head (final norm + lm_head; tied: norm only, unit 0
  /// is kept), with LoRA: adapters, adapter_vectors (DoRA's magnitudes, trained biases) where there are some, and what
  /// modules_to_save takes out of units 0 and L+1.
  const std::vector<UnitSpec>& units() const { return units_; }
  const DecoderConfig& config() const { return config_; }
  const BlockTable& block() const { return *block_; }
  const std::optional<LoraOptions>& lora() const { return lora_; }
  /// The adapters of each block, and of the embedding.
  const std::vector<std::vector<LoraTarget>>& targets() const { return block_adapters_->targets; }
  const std::optional<LoraStrength>& embedding_adapter() const { return embedding_adapter_; }
  /// Ids, ascending, of the rows of each of token_modules() that are trained beside the adapters.
  const std::map<std::string, std::vector<int64_t>>& token_rows() const { return token_rows_; }
  /// Whether the unit is part of an adapter's files.
  bool of_adapter(size_t unit) const { return lora_ && units_[unit].trained; }
  /// Whether the output matrix is the embedding.
  bool tied() const { return output_.unit == embedding_.unit; }
  /// DoRA: the lengths of the rows of the adapted weights, with which magnitudes start, by the magnitudes' names.
  /// Gathers all blocks. Collective.
  std::map<std::string, at::Tensor> initial_magnitudes(UnitStore& store) const;

  /// Sum of loss_weight * cross-entropy: fp32 scalar, differentiable when train.
  at::Tensor loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const;
  /// log p of what each position predicts, where loss_weight is 1, and 0 where it is 0: [B * S] fp32, differentiable
  /// when train.
  at::Tensor log_probs(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const;
  /// Logits [B, S, V] in fp32, for generation and checks on few tokens; `tokens` (int64): of these of the B S tokens
  /// alone, [tokens, V].
  at::Tensor logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                    const at::Tensor& tokens = {}) const;

  /// For rows of so many tokens, computed with elements of so many bytes.
  ModelShape shape(int64_t tokens, int64_t element_size) const;
  int64_t num_parameters() const { return base_parameters(units_); }
  int64_t num_trained_parameters() const { return trained_parameters(units_); }

 private:
  /// A parameter of a unit; unit -1: the model has none.
  struct Place {
    int unit = -1;
    size_t parameter = 0;
    const at::Tensor& in(UnitStore& store) const { return store.parameters(unit)[parameter]; }
    GradientSink* sink(UnitStore& store) const { return store.weight_states(unit)[parameter].sink; }
  };
  /// Hidden states of the tokens, or of those with the numbers `rows`.
  at::Tensor decode(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                    const at::Tensor& rows) const;
  /// Embeddings of the tokens [T, D], and the head's input, with all that is trained of them.
  at::Tensor embedded(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const;
  at::Tensor head_input(UnitStore& store, const at::Tensor& x_TD, bool adapters) const;
  /// The forward up to the loss head, and f(its input, output matrix, the trained rows of that). `tokens`, if defined:
  /// of all tokens the numbers of those that f gets.
  template <class F>
  at::Tensor in_head(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options, const F& f,
                     const at::Tensor& tokens = {}) const;
  /// The whole forward, whose head is f(hidden, weight, targets, token weights, trained rows), all of loss_rows_R.
  template <class F>
  at::Tensor with_head(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options, const F& f) const;
  void add_lora_units();
  void choose_token_rows(std::vector<std::string>& problems);
  UnitSpec adapters_unit() const;
  UnitSpec vectors_unit() const;
  TrainedRows trained_rows(UnitStore& store, const std::string& module) const;

  DecoderConfig config_;
  std::shared_ptr<const BlockTable> block_;
  std::optional<LoraOptions> lora_;
  std::shared_ptr<const BlockAdapters> block_adapters_ = std::make_shared<BlockAdapters>();
  std::optional<LoraStrength> embedding_adapter_;
  std::map<std::string, std::vector<int64_t>> token_rows_;
  mutable std::map<std::string, at::Tensor> row_ids_;  // token_rows_ on the device of the last forward
  std::vector<UnitSpec> units_;
  AdapterUnits adapters_;
  Place embedding_, positions_, output_, final_norm_bias_;  // final_norm_bias_: one that is trained
};

/// The modules with a row for each token, the embedding first; the name of the rows that are trained of one.
std::vector<std::string> token_modules(const DecoderConfig& config);
inline constexpr const char* kTokenRowsSuffix = ".token_adapter.trainable_tokens_delta";

}  // namespace trireme
