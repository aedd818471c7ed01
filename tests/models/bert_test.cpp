#include "models/bert/bert.h"
#include "../base/base_testing.h"
#include "models/bert/files.h"
#include "trireme/nn/init.h"

#include "../ops/gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

using namespace testing;

BertConfig small_config(double dropout = 0) {
  BertConfig c;
  c.hidden_size = 32;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.intermediate_size = 48;
  c.vocab_size = 61;
  c.max_position_embeddings = 24;
  c.initializer_range = 0.2;
  c.hidden_dropout_prob = c.attention_probs_dropout_prob = dropout;
  return c;
}

using Units = std::vector<std::vector<at::Tensor>>;

Units random_units(const BertModel& model, at::ScalarType dtype = at::kDouble) {
  Units units;
  for (const UnitSpec& unit : model.units()) {
    units.emplace_back();
    for (const ParameterSpec& spec : unit.parameters) {
      at::Tensor tensor = at::empty(spec.shape, at::TensorOptions(dtype));
      int64_t row = 0;
      for (const ParameterPart& part : spec.parts) {
        draw_initial_values(spec, part, 5, 0, tensor.narrow(0, row, part.rows).view({-1}));
        row += part.rows;
      }
      // Vectors that start as zeros would hide mistakes.
      if (spec.shape.size() == 1) tensor.add_(random(spec.shape, 77, dtype).mul_(0.1));
      units.back().push_back(tensor.set_requires_grad(true));
    }
  }
  return units;
}

at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::TensorOptions(at::kLong)); }

/// Sequences of these lengths with random content; keys as if they stood in one row that begins at `row * 24`.
BertBatch batch_of(const std::vector<int32_t>& lengths, uint64_t seed, int64_t padding = 0) {
  BertBatch batch;
  std::vector<int64_t> positions, types, masked, first, labels;
  std::vector<int32_t> bounds = {0};
  for (size_t s = 0; s < lengths.size(); ++s) {
    first.push_back(bounds.back());
    labels.push_back(static_cast<int64_t>(s) % 2);
    for (int32_t t = 0; t < lengths[s]; ++t) {
      positions.push_back(t);
      types.push_back(t > lengths[s] / 2);
      if (t % 4 == 2) masked.push_back(bounds.back() + t);
    }
    bounds.push_back(bounds.back() + lengths[s]);
  }
  const int64_t tokens = bounds.back() + padding;
  if (padding > 0) bounds.push_back(static_cast<int32_t>(tokens));
  positions.resize(tokens, 0);
  types.resize(tokens, 0);
  batch.ids_T = random({tokens}, seed).mul_(1000).abs_().to(at::kLong).remainder_(61);
  batch.positions_T = longs(positions);
  batch.types_T = longs(types);
  batch.token_keys_T = at::arange(tokens, at::TensorOptions(at::kLong));
  batch.sequences = make_sequences(bounds, {bounds.begin(), bounds.end() - 1}, at::kCPU);
  batch.masked_rows_P = longs(masked);
  batch.masked_ids_P = batch.ids_T.index_select(0, batch.masked_rows_P).add(7).remainder(61);
  batch.masked_weights_P = at::ones({static_cast<int64_t>(masked.size())}, at::kFloat);
  batch.first_rows_M = longs(first);
  batch.next_labels_M = longs(labels);
  batch.next_weights_M = at::ones({static_cast<int64_t>(first.size())}, at::kFloat);
  return batch;
}

/// Sequence `s` of the batch alone.
BertBatch sequence_of(const BertBatch& batch, size_t s) {
  const int64_t begin = batch.sequences.boundaries[s], length = batch.sequences.boundaries[s + 1] - begin;
  BertBatch part;
  for (auto member : {&BertBatch::ids_T, &BertBatch::positions_T, &BertBatch::types_T, &BertBatch::token_keys_T})
    part.*member = (batch.*member).narrow(0, begin, length).contiguous();
  part.sequences = make_sequences({0, static_cast<int32_t>(length)}, {begin}, at::kCPU);
  const at::Tensor mine =
      batch.masked_rows_P.ge(begin).logical_and(batch.masked_rows_P.lt(begin + length)).nonzero().squeeze(1);
  part.masked_rows_P = batch.masked_rows_P.index_select(0, mine) - begin;
  part.masked_ids_P = batch.masked_ids_P.index_select(0, mine);
  part.masked_weights_P = batch.masked_weights_P.index_select(0, mine);
  part.first_rows_M = longs({0});
  part.next_labels_M = batch.next_labels_M.narrow(0, static_cast<int64_t>(s), 1);
  part.next_weights_M = batch.next_weights_M.narrow(0, static_cast<int64_t>(s), 1);
  return part;
}

std::vector<at::Tensor> all_gradients(const Units& units) {
  std::vector<at::Tensor> gradients;
  for (const auto& unit : units)
    for (const at::Tensor& tensor : unit) {
      gradients.push_back(tensor.grad().clone());
      tensor.mutable_grad() = at::Tensor();
    }
  return gradients;
}

std::vector<at::Tensor> gradients_of(const BertModel& model, const Units& units, const BertBatch& batch,
                                     const BertForward& options) {
  WholeUnitStore store(units);
  model.loss(store, batch, options).backward();
  return all_gradients(units);
}

void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LE(relative_difference(found[i], expected[i]), bound) << i;
}

TEST(Bert, ThreeSequencesInAPackEqualThreeAlone) {
  for (const double dropout : {0.0, 0.25}) {
    const BertModel model(small_config(dropout), 8);
    auto units = random_units(model);
    WholeUnitStore store(units);
    const BertBatch pack = batch_of({9, 5, 7}, 3);
    BertForward options;
    options.seed = 12;
    const at::Tensor together = model.loss(store, pack, options);
    together.backward();
    const auto packed = all_gradients(units);
    double sum = 0;
    for (size_t s = 0; s < 3; ++s) {
      const at::Tensor alone = model.loss(store, sequence_of(pack, s), options);
      alone.backward();
      sum += alone.item<double>();
    }
    EXPECT_NEAR(together.item<double>(), sum, 1e-10 * sum);
    expect_near(packed, all_gradients(units), 1e-9);
  }
}

TEST(Bert, PaddingTokensChangeNothing) {
  const BertModel model(small_config(0.25), 8);
  auto units = random_units(model);
  WholeUnitStore store(units);
  const at::Tensor plain = model.loss(store, batch_of({9, 5}, 3), {});
  plain.backward();
  const auto expected = all_gradients(units);
  // Padding draws other ids at the end: the first tokens' stay.
  BertBatch padded = batch_of({9, 5}, 3, 6);
  const BertBatch bare = batch_of({9, 5}, 3);
  padded.ids_T.narrow(0, 0, 14).copy_(bare.ids_T);
  padded.masked_ids_P = bare.masked_ids_P;
  const at::Tensor loss = model.loss(store, padded, {});
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), plain.item<double>(), 1e-10);
  expect_near(all_gradients(units), expected, 1e-9);
}

TEST(Bert, PaddedVocabularyStartsAsZerosAndIsInTheSoftmax) {
  const BertModel model(small_config(), 8);
  EXPECT_EQ(model.padded_vocab(), 64);
  auto units = random_units(model);
  EXPECT_EQ(units[0][0].narrow(0, 61, 3).abs().max().item<double>(), 0);
  EXPECT_GT(units[0][0].narrow(0, 0, 61).abs().min().item<double>(), 0);
  WholeUnitStore store(units);
  const BertBatch batch = batch_of({9, 5}, 3);
  model.loss(store, batch, {}).backward();
  EXPECT_GT(units[0][0].grad().narrow(0, 61, 3).abs().max().item<double>(), 0);
  const BertModel bare(small_config(), 1);
  auto same = units;
  same[0][0] = units[0][0].detach().narrow(0, 0, 61).clone();
  same.back()[4] = units.back()[4].detach().narrow(0, 0, 61).clone();
  WholeUnitStore smaller(same);
  EXPECT_GT(model.loss(store, batch, {}).item<double>(), bare.loss(smaller, batch, {}).item<double>());
}

TEST(Bert, RecomputationGivesTheSameGradients) {
  const BertModel model(small_config(0.25), 8);
  const Units units = random_units(model);
  const BertBatch batch = batch_of({9, 5, 7}, 3);
  BertForward options;
  options.seed = 4;
  const auto expected = gradients_of(model, units, batch, options);
  for (const auto& blocks :
       {std::vector{Recompute::kFull, Recompute::kNone}, {Recompute::kNone, Recompute::kAttention}}) {
    options.recompute.blocks = blocks;
    expect_near(gradients_of(model, units, batch, options), expected, 0);
  }
}

TEST(Bert, TilesGiveTheSameGradients) {
  const BertModel model(small_config(0.25), 8);
  const Units units = random_units(model);
  const BertBatch batch = batch_of({9, 5, 7}, 3);
  BertForward options;
  options.seed = 4;
  const auto expected = gradients_of(model, units, batch, options);
  options.recompute = {{Recompute::kFull, Recompute::kAttention}, 4};
  expect_near(gradients_of(model, units, batch, options), expected, 1e-9);
}

TEST(Bert, ScoreIsTheLossWithoutDropout) {
  const BertModel model(small_config(0.25), 8);
  auto units = random_units(model);
  WholeUnitStore store(units);
  const BertBatch batch = batch_of({9, 5, 7}, 3);
  BertForward options;
  options.train = false;
  const BertScore score = model.score(store, batch);
  EXPECT_NEAR((score.masked_loss + score.next_loss).item<double>(), model.loss(store, batch, options).item<double>(),
              1e-9);
  EXPECT_GE(score.hits.item<double>(), 0);
  EXPECT_LE(score.hits.item<double>(), static_cast<double>(batch.masked_rows_P.size(0)));
}

TEST(Bert, MaskedLmAloneHasNoPooler) {
  BertConfig config = small_config();
  config.next_sentence = false;
  const BertModel model(config, 1);
  for (const ParameterSpec& parameter : model.units().back().parameters)
    EXPECT_FALSE(contains(parameter.parts[0].name, "pooler"));
  auto units = random_units(model);
  WholeUnitStore store(units);
  model.loss(store, batch_of({9, 5}, 3), {}).backward();
  for (const at::Tensor& gradient : all_gradients(units)) EXPECT_TRUE(gradient.defined());
}

TEST(Bert, LargeHasThePublishedParametersAndNames) {
  BertConfig c;
  c.hidden_size = 1024;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 16;
  c.intermediate_size = 4096;
  c.vocab_size = 30522;
  EXPECT_EQ(BertModel(c, 8).num_parameters(), 336232258);
  EXPECT_EQ(BertModel(c, 1).num_parameters(), 336226108);
  size_t tensors = 0;
  const BertModel model(c, 8);
  for (const UnitSpec& unit : model.units())
    for (const ParameterSpec& parameter : unit.parameters) tensors += parameter.parts.size();
  EXPECT_EQ(tensors, 398u);
  EXPECT_EQ(tensorflow_name("bert.encoder.layer.3.attention.self.query.weight"),
            "bert/encoder/layer_3/attention/self/query/kernel");
  EXPECT_EQ(tensorflow_name("bert.encoder.layer.23.output.LayerNorm.bias"),
            "bert/encoder/layer_23/output/LayerNorm/beta");
  EXPECT_EQ(tensorflow_name("bert.embeddings.word_embeddings.weight"), "bert/embeddings/word_embeddings");
  EXPECT_EQ(tensorflow_name("cls.predictions.bias"), "cls/predictions/output_bias");
  EXPECT_EQ(tensorflow_name("cls.seq_relationship.weight"), "cls/seq_relationship/output_weights");
  EXPECT_EQ(tensorflow_name("cls.predictions.transform.dense.weight"), "cls/predictions/transform/dense/kernel");
}

}  // namespace
}  // namespace trireme
