#include "models/bert/bert.h"

#include "models/common/blocks.h"
#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/norm_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string>

namespace trireme {

namespace {

constexpr int kEmbedUnit = 0;
/// Parameters of the embedding's and of the head's unit. Pooler and next-sentence head are last, because
/// BertForMaskedLM has none.
enum Embed { kWord, kPosition, kType, kEmbedGamma, kEmbedBeta };
enum Head {
  kTransformWeight,
  kTransformBias,
  kTransformGamma,
  kTransformBeta,
  kOutputBias,
  kPoolerWeight,
  kPoolerBias,
  kNextWeight,
  kNextBias
};
/// Streams of dropout: 0 for the embedding, then three per layer.
constexpr uint64_t kEmbedStream = 0, kFirstLayerStream = 1, kStreamsPerLayer = 3;

BlockTable bert_block(const BertConfig& c) {
  const int64_t d = c.hidden_size, f = c.intermediate_size;
  const double deviation = c.initializer_range;
  BlockTable block;
  block.heads = block.kv_heads = c.num_attention_heads;
  block.head_dim = c.head_dim();
  block.causal = false;
  block.layers = {{"qkv",
                   LayerKind::kProduct,
                   d,
                   {{"attention.self.query", d}, {"attention.self.key", d}, {"attention.self.value", d}},
                   true,
                   deviation},
                  {"output", LayerKind::kProduct, d, {{"attention.output.dense", d}}, true, deviation},
                  {"attention_post_norm", LayerKind::kPostNorm, d, {{"attention.output.LayerNorm", d}}, true},
                  {"up", LayerKind::kProduct, d, {{"intermediate.dense", f}}, true, deviation},
                  {"down", LayerKind::kProduct, f, {{"output.dense", d}}, true, deviation},
                  {"mlp_post_norm", LayerKind::kPostNorm, d, {{"output.LayerNorm", d}}, true}};
  return block;
}

UnitSpec embed_unit(const BertConfig& c, int64_t padded_vocab) {
  const std::string prefix = "bert.embeddings.";
  const auto table = [&](const char* name, int64_t rows) {
    return matrix_spec(name, rows, c.hidden_size, prefix + name + "_embeddings", c.initializer_range);
  };
  UnitSpec unit;
  unit.name = "embed";
  unit.keep = true;
  unit.parameters = {table("word", padded_vocab), table("position", c.max_position_embeddings),
                     table("token_type", c.type_vocab_size)};
  unit.parameters[kWord].zero_rows_from = c.vocab_size;
  unit.parameters[kWord].given_gradients = 2;  // of the embedding and of the decoder
  add_norm(unit, "norm", c.hidden_size, prefix + "LayerNorm", true);
  return unit;
}

UnitSpec head_unit(const BertConfig& c, int64_t padded_vocab) {
  const int64_t d = c.hidden_size;
  UnitSpec unit;
  unit.name = "head";
  add_linear(unit, "transform", d, d, "cls.predictions.transform.dense", c.initializer_range);
  add_norm(unit, "transform_norm", d, "cls.predictions.transform.LayerNorm", true);
  unit.parameters.push_back(vector_spec("output_bias", padded_vocab, "cls.predictions.bias"));
  unit.parameters.back().zero_rows_from = c.vocab_size;
  if (!c.next_sentence) return unit;
  add_linear(unit, "pooler", d, d, "bert.pooler.dense", c.initializer_range);
  add_linear(unit, "next", 2, d, "cls.seq_relationship", c.initializer_range);
  return unit;
}

Activation activation_of(const BertConfig& config) {
  return config.gelu_tanh ? Activation::kGeluTanh : Activation::kGeluErf;
}

GradientSink* word_sink(UnitStore& store) { return store.weight_states(kEmbedUnit)[kWord].sink; }

void check_batch(const BertBatch& batch) {
  TRIREME_CHECK(batch.ids_T.dim() == 1 && batch.ids_T.scalar_type() == at::kLong, "token ids must be int64 [T]");
  TRIREME_CHECK(batch.positions_T.sizes() == batch.ids_T.sizes() && batch.types_T.sizes() == batch.ids_T.sizes() &&
                    batch.token_keys_T.sizes() == batch.ids_T.sizes(),
                "ids ", batch.ids_T.sizes(), ", positions ", batch.positions_T.sizes(), ", types ",
                batch.types_T.sizes(), ", keys ", batch.token_keys_T.sizes());
}

/// The inputs of the two losses.
struct HeadInputs {
  at::Tensor masked_PD;    // after the transform
  at::Tensor next_logits;  // [M, 2] fp32 (fp64 for fp64); undefined without next sentence
};

/// `x_RD`: of head_rows().
HeadInputs head_inputs(const BertModel& model, const at::Tensor& x_RD, const BertBatch& batch,
                       const std::vector<at::Tensor>& w) {
  const BertConfig& c = model.config();
  const int64_t masked = batch.masked_rows_P.size(0), sequences = batch.first_rows_M.size(0);
  const auto linear = [&](int weight, int bias) -> Linear {
    return {{w[static_cast<size_t>(weight)], {}}, w[static_cast<size_t>(bias)], {}};
  };
  const at::Tensor transformed =
      norm_linear(x_RD.narrow(0, 0, masked), {}, linear(kTransformWeight, kTransformBias), activation_of(c))[0];
  HeadInputs result;
  result.masked_PD = apply_norm(transformed, layer_norm(w[kTransformGamma], w[kTransformBeta], c.layer_norm_eps));
  if (!c.next_sentence) return result;
  const at::Tensor pooled =
      norm_linear(x_RD.narrow(0, masked, sequences), {}, linear(kPoolerWeight, kPoolerBias))[0].tanh();
  const at::Tensor logits = at::addmm(w[kNextBias], pooled, w[kNextWeight].t());
  result.next_logits = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return result;
}

/// sum of weights * cross-entropy over sequences.
at::Tensor next_sentence_loss(const at::Tensor& logits, const BertBatch& batch) {
  const at::Tensor log_p = at::log_softmax(logits, -1);
  return log_p.gather(1, batch.next_labels_M.unsqueeze(1))
      .squeeze(1)
      .mul(batch.next_weights_M.to(log_p.scalar_type()))
      .sum()
      .neg();
}

}  // namespace

BertModel::BertModel(const BertConfig& config, int64_t vocab_multiple)
    : config_(config), block_(std::make_shared<BlockTable>(bert_block(config))) {
  TRIREME_CHECK(vocab_multiple >= 1, "vocabulary padded to a multiple of ", vocab_multiple);
  padded_vocab_ = round_up(config.vocab_size, vocab_multiple);
  units_.push_back(embed_unit(config_, padded_vocab_));
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const std::string number = std::to_string(layer);
    units_.push_back(block_unit(*block_, "layers." + number, "bert.encoder.layer." + number + "."));
  }
  units_.push_back(head_unit(config_, padded_vocab_));
  for (UnitSpec& unit : units_) unit.trained = true;
}

/// The tokens that the heads read: the masked words, and for next sentences the first tokens; then the same ones
/// again, up to row_multiple().
at::Tensor BertModel::head_rows(const BertBatch& batch) const {
  std::vector<at::Tensor> parts = {batch.masked_rows_P};
  if (config_.next_sentence) parts.push_back(batch.first_rows_M);
  const at::Tensor rows = parts.size() == 1 ? parts[0] : at::cat(parts);
  const int64_t count = rows.size(0), up = round_up(count, row_multiple(batch.ids_T.device()));
  return up == count ? rows : rows.repeat(ceil_div(up, count)).narrow(0, 0, up);
}

/// Hidden states of head_rows().
at::Tensor BertModel::encode(UnitStore& store, const BertBatch& batch, const BertForward& options) const {
  check_batch(batch);
  const auto dropout = [&](double p) -> Dropout {
    if (!options.train || p == 0) return {};
    return {p, options.seed, batch.token_keys_T};
  };
  const BlockPass pass{.block = block_,
                       .activation = activation_of(config_),
                       .norm_eps = config_.layer_norm_eps,
                       .sequences = batch.sequences,
                       .attention = dropout(config_.attention_probs_dropout_prob),
                       .residual = dropout(config_.hidden_dropout_prob),
                       .first_stream = kFirstLayerStream,
                       .streams = kStreamsPerLayer,
                       .result_rows = head_rows(batch)};
  const at::Tensor ids = enter_unit(batch.ids_T, store, kEmbedUnit);
  const std::vector<at::Tensor>& e = store.parameters(kEmbedUnit);
  at::Tensor x_TD = bert_embedding(
      {e[kWord], e[kPosition], e[kType], e[kEmbedGamma], e[kEmbedBeta], word_sink(store), config_.pad_token_id},
      {ids, batch.positions_T, batch.types_T}, config_.layer_norm_eps, pass.residual.at(kEmbedStream));
  x_TD = leave_unit(x_TD, store, kEmbedUnit);
  return run_blocks(x_TD, store, pass, config_.num_hidden_layers, options.recompute);
}

at::Tensor BertModel::loss(UnitStore& store, const BertBatch& batch, const BertForward& options) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_RD = enter_unit(encode(store, batch, options), store, head);
  const std::vector<at::Tensor>& w = store.parameters(head);
  const HeadInputs inputs = head_inputs(*this, x_RD, batch, w);
  at::Tensor loss =
      loss_head(inputs.masked_PD, store.parameters(kEmbedUnit)[kWord], batch.masked_ids_P, batch.masked_weights_P,
                w[kOutputBias], /*rows=*/{}, options.train ? options.smoothing : LabelSmoothing{}, word_sink(store));
  if (config_.next_sentence) loss = loss + next_sentence_loss(inputs.next_logits, batch);
  return leave_unit(loss, store, head);
}

BertScore BertModel::score(UnitStore& store, const BertBatch& batch) const {
  at::NoGradGuard no_grad;
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  BertForward options;
  options.train = false;
  const at::Tensor x_RD = enter_unit(encode(store, batch, options), store, head);
  const std::vector<at::Tensor>& w = store.parameters(head);
  const HeadInputs inputs = head_inputs(*this, x_RD, batch, w);
  const HeadScore masked = score_head(inputs.masked_PD, store.parameters(kEmbedUnit)[kWord], batch.masked_ids_P,
                                      batch.masked_weights_P, w[kOutputBias]);
  BertScore score{masked.loss, masked.hits, at::zeros({}, masked.loss.options())};
  if (config_.next_sentence) score.next_loss = next_sentence_loss(inputs.next_logits, batch).to(at::kDouble);
  leave_unit(masked.loss, store, head);
  return score;
}

ModelShape BertModel::shape(int64_t tokens, double sequences, int64_t element_size) const {
  const int64_t d = config_.hidden_size, e = element_size;
  ModelShape shape{.units = &units_, .block = block_, .num_blocks = static_cast<int>(config_.num_hidden_layers)};
  shape.tokens = tokens;
  shape.sequences = sequences;
  shape.attention_dropout = config_.attention_probs_dropout_prob > 0;
  // 15 % of the words are masked.
  const double words = 0.15 * static_cast<double>(tokens);
  HeadShape& head = shape.head;
  head.products = {{words, d, d}, {words, d, config_.vocab_size}};
  if (config_.next_sentence) head.products.insert(head.products.end(), {{sequences, d, d}, {sequences, d, 2}});
  // Gradients overwrite their logits. The decoder's gradient: in fp32, and its sum with the embedding's, which is there
  // from the beginning of backward on and does not take the place of activations.
  head.memory.row = (tokens * 3 + 19) / 20 * (padded_vocab_ * e + 6 * d * e) + 2 * tokens * d * e;
  head.memory.fixed = head.memory.held = 4 * padded_vocab_ * d;
  return shape;
}

}  // namespace trireme
