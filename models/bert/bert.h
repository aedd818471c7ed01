#pragma once
// BERT (BertForPreTraining: masked words and next sentence; BertForMaskedLM: masked words alone), as units
// of weights and a forward over packed tokens that ends in the loss.
//
// Shapes: T tokens of all sequences of a micro-batch, one after the other; M sequences; P masked positions;
// D hidden, N heads of H, F intermediate, V vocabulary with its padding.

#include "trireme/formats/bert_config.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/attention.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// A micro-batch on the compute device. Sequences see themselves alone, positions begin again in each; padding at the
/// end is a sequence of its own that no loss reads.
struct BertBatch {
  at::Tensor ids_T, positions_T, types_T;  // int64
  at::Tensor token_keys_T;                 // int64: global sample * row length + offset in the row (keys dropout)
  Sequences sequences;
  at::Tensor masked_rows_P, masked_ids_P;  // int64: index of the token, and the word that stood there
  at::Tensor masked_weights_P;             // fp32; 0 = not counted
  at::Tensor first_rows_M;                 // int64: index of each sequence's first token ([CLS])
  at::Tensor next_labels_M;                // int64: 1 = sentence B comes from elsewhere
  at::Tensor next_weights_M;               // fp32; 0 = not counted
};

struct BertForward {
  bool train = true;                 // dropout on
  uint64_t seed = 0;                 // of dropout
  std::vector<Recompute> recompute;  // per layer; empty = none; kMlp is not available
};

/// Sums for an evaluation, fp64 scalars: weighted cross-entropies, and masked words that the largest logit finds.
struct BertScore {
  at::Tensor masked_loss, hits, next_loss;
};

/// model.pad_vocab_to of train_bert where the configuration says nothing.
constexpr int64_t kDefaultVocabMultiple = 8;

class BertModel {
 public:
  /// Rows of the word embedding (and of the decoder tied to it, and its bias) are padded to a multiple of
  /// `vocab_multiple` with zeros. Padding takes part in the softmax and is trained like the rest, as the MLPerf
  /// submissions do; it is not written to Hugging Face directories.
  BertModel(const BertConfig& config, int64_t vocab_multiple);

  /// 0 embed (kept for the tied decoder), 1..L layers, L+1 head (pooler, next sentence, transform, output bias).
  /// Query, key and value are parts of one product but tensors of their own to checkpoints and to LAMB.
  const std::vector<UnitSpec>& units() const { return units_; }
  const BertConfig& config() const { return config_; }
  int64_t padded_vocab() const { return padded_vocab_; }

  /// sum of masked_weights * cross-entropy + sum of next_weights * cross-entropy: fp32 scalar (fp64 for fp64),
  /// differentiable when train.
  at::Tensor loss(UnitStore& store, const BertBatch& batch, const BertForward& options) const;
  BertScore score(UnitStore& store, const BertBatch& batch) const;
  int64_t num_parameters() const;  // with padding

 private:
  BertConfig config_;
  int64_t padded_vocab_ = 0;
  std::vector<UnitSpec> units_;
};

/// Model FLOPs of a row of `row_length` tokens in `sequences_per_row` equal sequences, forward and backward. A
/// multiply-add is 2; matrices 6 per parameter and token, the MLM head over `masked` positions of a row, pooler and
/// next sentence once a sequence; attention 4 S^2 D a layer forward (both products, no causal half) and 2.5 times
/// that backward. Embeddings, norms, GELU, softmax do not count.
double bert_flops_per_row(const BertConfig& config, int64_t row_length, double sequences_per_row, double masked);

/// Bytes of activations of a row of `row_length` tokens; fields as PlanInput's of the same names. fp8: the layers'
/// products in FP8.
struct BertActivationBytes {
  int64_t layer_saved, layer_recomputed, working_peak, working_fixed, head;
};
BertActivationBytes bert_activation_bytes(const BertConfig& config, int64_t row_length, int64_t element_size,
                                          int64_t padded_vocab, bool fp8 = false);

}  // namespace trireme
