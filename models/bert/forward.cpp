#include "models/bert/bert.h"
#include "models/bert/layout.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/ops/bert_embedding.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/layers/loss_head.h"
#include "trireme/ops/layers/norm_linear.h"
#include "trireme/ops/layers/norm_mlp.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace trireme {

namespace {

using namespace bert;

constexpr int kEmbedUnit = 0;
/// Index of a dropout operation: 0 for the embedding, then three per layer.
constexpr uint64_t kEmbedStream = 0, kFirstLayerStream = 1, kStreamsPerLayer = 3;

/// The values that all layers of one forward pass share.
struct Pass {
  BertConfig config;
  Sequences sequences;
  Dropout hidden, attention;
};

Dropout dropout_of(double p, const BertBatch& batch, const BertForward& options) {
  if (!options.train || p == 0) return {};
  return {p, options.seed, batch.token_keys_T};
}

Activation activation_of(const BertConfig& config) {
  return config.gelu_tanh ? Activation::kGeluTanh : Activation::kGeluErf;
}

at::Tensor layer_forward(const Pass& pass, int64_t layer, const at::Tensor& x_TD, const UnitTensors& w) {
  const ProfileRange range("layers", layer);
  const BertConfig& c = pass.config;
  const uint64_t stream = kFirstLayerStream + kStreamsPerLayer * static_cast<uint64_t>(layer);
  const auto linear = [&](int weight, int bias) -> Linear { return {w.weight(weight), w[bias], {}}; };
  const auto [qkv, input_TD] = norm_linear(x_TD, {}, linear(kQkvWeight, kQkvBias));
  const at::Tensor attended =
      attention_of_packed(qkv.unflatten(1, {-1, c.head_dim()}), c.num_attention_heads, pass.sequences,
                          {.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim())),
                           .causal = false,
                           .dropout = pass.attention.at(stream)});
  const at::Tensor h_TD =
      linear_residual(attended.flatten(1), input_TD, linear(kOutWeight, kOutBias), pass.hidden.at(stream + 1),
                      layer_norm(w[kAttentionGamma], w[kAttentionBeta], c.layer_norm_eps));
  return norm_mlp(h_TD, {.norm = {},
                         .up = linear(kUpWeight, kUpBias),
                         .activation = activation_of(c),
                         .down = linear(kDownWeight, kDownBias),
                         .dropout = pass.hidden.at(stream + 2),
                         .post_norm = layer_norm(w[kOutputGamma], w[kOutputBeta], c.layer_norm_eps)});
}

void check_batch(const BertBatch& batch) {
  TRIREME_CHECK(batch.ids_T.dim() == 1 && batch.ids_T.scalar_type() == at::kLong, "token ids must be int64 [T]");
  TRIREME_CHECK(batch.positions_T.sizes() == batch.ids_T.sizes() && batch.types_T.sizes() == batch.ids_T.sizes() &&
                    batch.token_keys_T.sizes() == batch.ids_T.sizes(),
                "ids ", batch.ids_T.sizes(), ", positions ", batch.positions_T.sizes(), ", types ",
                batch.types_T.sizes(), ", keys ", batch.token_keys_T.sizes());
}

/// Hidden states of all tokens.
at::Tensor encode(const BertModel& model, UnitStore& store, const BertBatch& batch, const BertForward& options) {
  check_batch(batch);
  const BertConfig& c = model.config();
  TRIREME_CHECK(options.recompute.empty() || static_cast<int64_t>(options.recompute.size()) == c.num_hidden_layers,
                "recompute names ", options.recompute.size(), " layers, the model has ", c.num_hidden_layers);
  const Pass pass{c, batch.sequences, dropout_of(c.hidden_dropout_prob, batch, options),
                  dropout_of(c.attention_probs_dropout_prob, batch, options)};

  const at::Tensor ids = enter_unit(batch.ids_T, store, kEmbedUnit);
  const std::vector<at::Tensor>& e = store.parameters(kEmbedUnit);
  at::Tensor x_TD =
      bert_embedding({e[kWord], e[kPosition], e[kType], e[kEmbedGamma], e[kEmbedBeta]},
                     {ids, batch.positions_T, batch.types_T}, c.layer_norm_eps, pass.hidden.at(kEmbedStream));
  x_TD = leave_unit(x_TD, store, kEmbedUnit);
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const int unit = static_cast<int>(layer) + 1;
    x_TD = enter_unit(x_TD, store, unit);
    const std::vector<at::Tensor>& weights = store.parameters(unit);
    const std::vector<WeightState>* states = &store.weight_states(unit);
    const Recompute recompute =
        options.recompute.empty() ? Recompute::kNone : options.recompute[static_cast<size_t>(layer)];
    TRIREME_CHECK(recompute != Recompute::kMlp, "BERT cannot recompute the MLP alone");
    if (recompute == Recompute::kFull)
      x_TD = recomputed(
          [pass, layer, states](const at::Tensor& x, const std::vector<at::Tensor>& t) {
            return layer_forward(pass, layer, x, {t, states});
          },
          x_TD, weights);
    else
      x_TD = layer_forward(pass, layer, x_TD, {weights, states});
    x_TD = leave_unit(x_TD, store, unit);
  }
  return x_TD;
}

/// The inputs of the two losses.
struct HeadInputs {
  at::Tensor masked_PD;    // after the transform
  at::Tensor next_logits;  // [M, 2] fp32 (fp64 for fp64); undefined without next sentence
};

HeadInputs head_inputs(const BertModel& model, const at::Tensor& x_TD, const BertBatch& batch,
                       const std::vector<at::Tensor>& w) {
  const BertConfig& c = model.config();
  const int64_t masked = batch.masked_rows_P.size(0), sequences = batch.first_rows_M.size(0);
  // One gather for both heads, so that its backward makes one pass over all tokens.
  const at::Tensor rows = c.next_sentence ? at::cat({batch.masked_rows_P, batch.first_rows_M}) : batch.masked_rows_P;
  const at::Tensor gathered = gather_rows(x_TD, rows);
  const auto linear = [&](int weight, int bias) -> Linear {
    return {{w[static_cast<size_t>(weight)], {}}, w[static_cast<size_t>(bias)], {}};
  };
  const at::Tensor transformed =
      norm_linear(gathered.narrow(0, 0, masked), {}, linear(kTransformWeight, kTransformBias), activation_of(c))[0];
  HeadInputs result;
  result.masked_PD = apply_norm(transformed, layer_norm(w[kTransformGamma], w[kTransformBeta], c.layer_norm_eps));
  if (!c.next_sentence) return result;
  const at::Tensor pooled =
      norm_linear(gathered.narrow(0, masked, sequences), {}, linear(kPoolerWeight, kPoolerBias))[0].tanh();
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

at::Tensor BertModel::loss(UnitStore& store, const BertBatch& batch, const BertForward& options) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(encode(*this, store, batch, options), store, head);
  const std::vector<at::Tensor>& w = store.parameters(head);
  const HeadInputs inputs = head_inputs(*this, x_TD, batch, w);
  at::Tensor loss = loss_head(inputs.masked_PD, store.parameters(kEmbedUnit)[kWord], batch.masked_ids_P,
                              batch.masked_weights_P, w[kOutputBias]);
  if (config_.next_sentence) loss = loss + next_sentence_loss(inputs.next_logits, batch);
  return leave_unit(loss, store, head);
}

BertScore BertModel::score(UnitStore& store, const BertBatch& batch) const {
  at::NoGradGuard no_grad;
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  BertForward options;
  options.train = false;
  const at::Tensor x_TD = enter_unit(encode(*this, store, batch, options), store, head);
  const std::vector<at::Tensor>& w = store.parameters(head);
  const HeadInputs inputs = head_inputs(*this, x_TD, batch, w);
  const HeadScore masked = score_head(inputs.masked_PD, store.parameters(kEmbedUnit)[kWord], batch.masked_ids_P,
                                      batch.masked_weights_P, w[kOutputBias]);
  BertScore score{masked.loss, masked.hits, at::zeros({}, masked.loss.options())};
  if (config_.next_sentence) score.next_loss = next_sentence_loss(inputs.next_logits, batch).to(at::kDouble);
  leave_unit(masked.loss, store, head);
  return score;
}

}  // namespace trireme
