#pragma once
// BERT: BertForPreTraining (masked-word and next-sentence loss) and BertForMaskedLM (masked-word loss only), as units
// of weights and a forward pass over packed tokens that returns the loss.
//
// Shapes: T tokens of all sequences of a micro-batch, concatenated; M sequences; P masked positions; D hidden, N heads
// of H, F intermediate, V vocabulary with its padding.

#include "models/common/units.h"
#include "trireme/formats/huggingface/bert_config.h"
#include "trireme/nn/model_shape.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/layers/loss_head.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

/// A micro-batch on the compute device. Tokens attend only within their sequence, and each sequence has its own
/// positions. Padding at the end is a separate sequence that no loss uses.
struct BertBatch {
  at::Tensor ids_T, positions_T, types_T;  // int64
  at::Tensor token_keys_T;                 // int64: global sample * row length + offset in the row (keys dropout)
  Sequences sequences;  // whose needed rows, if they are counted, hold masked_rows_P and first_rows_M
  at::Tensor masked_rows_P, masked_ids_P;  // int64: index of the token, and its true id
  at::Tensor masked_weights_P;             // fp32; 0 = not counted
  at::Tensor first_rows_M;                 // int64: index of each sequence's first token ([CLS])
  at::Tensor next_labels_M;                // int64: 1 = sentence B is random
  at::Tensor next_weights_M;               // fp32; 0 = not counted
};

struct BertForward {
  bool train = true;           // dropout on
  uint64_t seed = 0;           // of dropout
  Recomputation recompute{};   // kMlp is not available
  LabelSmoothing smoothing{};  // in training: of the masked words
};

/// Sums for an evaluation, fp64 scalars: weighted cross-entropies, and the number of masked words whose largest logit
/// is the true id.
struct BertScore {
  at::Tensor masked_loss, hits, next_loss;
};

/// Default of train_bert's model.pad_vocab_to.
constexpr int64_t kDefaultVocabMultiple = 8;

class BertModel {
 public:
  /// Rows of the word embedding (and of the decoder tied to it, and its bias) are padded to a multiple of
  /// `vocab_multiple` with zeros. Padding rows take part in the softmax and are trained, as in the MLPerf submissions;
  /// they are not written to Hugging Face directories.
  BertModel(const BertConfig& config, int64_t vocab_multiple);

  /// 0 embed (kept for the tied decoder), 1..L layers, L+1 head (pooler, next sentence, transform, output bias).
  /// Query, key and value are computed by one product, but are separate tensors in checkpoints and for LAMB.
  const std::vector<UnitSpec>& units() const { return units_; }
  const BertConfig& config() const { return config_; }
  const BlockTable& block() const { return *block_; }
  int64_t padded_vocab() const { return padded_vocab_; }

  /// sum of masked_weights * cross-entropy + sum of next_weights * cross-entropy: fp32 scalar (fp64 for fp64),
  /// differentiable when train.
  at::Tensor loss(UnitStore& store, const BertBatch& batch, const BertForward& options) const;
  BertScore score(UnitStore& store, const BertBatch& batch) const;
  /// For rows of so many tokens in so many equal sequences, computed with elements of so many bytes.
  ModelShape shape(int64_t tokens, double sequences, int64_t element_size) const;
  int64_t num_parameters() const { return base_parameters(units_); }  // with padding

 private:
  at::Tensor head_rows(const BertBatch& batch) const;
  at::Tensor encode(UnitStore& store, const BertBatch& batch, const BertForward& options) const;

  BertConfig config_;
  std::shared_ptr<const BlockTable> block_;
  int64_t padded_vocab_ = 0;
  std::vector<UnitSpec> units_;
};

}  // namespace trireme
