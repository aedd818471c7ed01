#include "models/decoder/decoder.h"

#include "../base/base_testing.h"
#include "models/decoder/family.h"

#include "small_models.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>

namespace trireme {
namespace {

using namespace testing;

TEST(LlamaUnits, NamesShapesAndCounts) {
  const DecoderModel model(decoder_preset("llama2-70b"), LoraOptions{16, 32, 0.1, {{"qkv_proj", "o_proj"}}});
  ASSERT_EQ(model.units().size(), 83u);
  EXPECT_EQ(model.units()[0].name, "embed");
  EXPECT_EQ(model.units()[80].name, "layers.79");
  EXPECT_EQ(model.units()[81].name, "head");
  EXPECT_EQ(model.units()[82].name, "adapters");
  EXPECT_EQ(model.num_parameters(), 68976648192);  // published count of Llama 2 70B
  const UnitSpec& block = model.units()[3];
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : block.parameters) {
    names.push_back(parameter.name);
    int64_t rows = 0;
    for (const ParameterPart& part : parameter.parts) rows += part.rows;
    EXPECT_EQ(rows, parameter.shape[0]) << parameter.name;
    EXPECT_EQ(parameter.decay, parameter.shape.size() == 2) << parameter.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"attention_norm", "qkv", "output", "mlp_norm", "up", "down"}));
  EXPECT_EQ(block.parameters[1].parts[1].name, "model.layers.2.self_attn.k_proj.weight");
  EXPECT_EQ(block.parameters[1].parts[1].rows, 1024);
  EXPECT_FALSE(block.trained);
  // MLPerf's adapter: 44,564,480 parameters at r 16 on qkv and o.
  EXPECT_EQ(model.num_trained_parameters(), 44564480);
  EXPECT_TRUE(model.units()[82].replicated && model.units()[82].trained);
  EXPECT_EQ(model.units()[82].parameters[1].name, "layers.0.qkv_proj.lora_B");
  EXPECT_EQ(model.units()[82].parameters[1].parts[0].name, "model.layers.0.self_attn.qkv_proj.lora_B.weight");
}

TEST(LlamaUnits, PublishedParameterCounts) {
  EXPECT_EQ(DecoderModel(decoder_preset("llama2-7b"), {}).num_parameters(), 6738415616);
  EXPECT_EQ(DecoderModel(decoder_preset("llama2-13b"), {}).num_parameters(), 13015864320);
  EXPECT_EQ(DecoderModel(decoder_preset("llama3-8b"), {}).num_parameters(), 8030261248);
  EXPECT_EQ(DecoderModel(decoder_preset("llama3.2-1b"), {}).num_parameters(), 1235814400);
}

TEST(LlamaUnits, TiedModelKeepsTheEmbeddingAndHasNoHeadMatrix) {
  const DecoderModel model(small_config(true), {});
  EXPECT_TRUE(model.units()[0].keep);
  EXPECT_EQ(model.units()[4].parameters.size(), 1u);
  EXPECT_FALSE(DecoderModel(small_config(false), {}).units()[0].keep);
  for (const UnitSpec& unit : model.units()) EXPECT_TRUE(unit.trained);
}

TEST(LlamaUnits, BadTargetsAreRefusedByName) {
  const auto with = [](std::vector<std::string> targets) {
    return DecoderModel(small_config(), LoraOptions{4, 8, 0, std::move(targets)});
  };
  EXPECT_THROW(with({}), ConfigError);
  EXPECT_THROW(with({"q_proj", "q_proj"}), ConfigError);
  EXPECT_THROW(with({"qkv_proj", "v_proj"}), ConfigError);
  EXPECT_THROW(DecoderModel(small_config(), LoraOptions{0, 8, 0, {{"q_proj"}}}), ConfigError);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { return with({"q_prj"}); }), "Did you mean 'q_proj'?"));
}

TEST(DecoderModel, GradientEqualsDifferencesInTheWeights) {
  for (const bool tie : {false, true}) {
    const DecoderModel model(small_config(tie), {});
    const TokenBatch batch = batch_of(2, 6, 1);
    const auto units = units_of(model, at::kDouble);
    WholeUnitStore store(units);
    model.loss(store, batch, {}).backward();
    at::NoGradGuard no_grad;
    for (const auto& unit : units) {
      for (const at::Tensor& tensor : unit) {
        // Along a random direction: one difference for the whole tensor.
        const at::Tensor direction = random(tensor.sizes(), 7);
        const double want = (tensor.grad() * direction).sum().item<double>(), step = 1e-6;
        double value[2];
        for (int side = 0; side < 2; ++side) {
          tensor.add_(direction, side == 0 ? -step : step);
          value[side] = model.loss(store, batch, {}).item<double>();
          tensor.sub_(direction, side == 0 ? -step : step);
        }
        EXPECT_NEAR((value[1] - value[0]) / (2 * step), want, 1e-5 * std::max(1.0, std::abs(want)));
      }
    }
  }
}

TEST(DecoderModel, RecomputationGivesTheSameBits) {
  for (const double dropout : {0.0, 0.2}) {
    for (const bool full_training : {false, true}) {
      const DecoderModel model(small_config(), full_training ? std::nullopt : std::optional(seven(dropout)));
      TokenBatch batch = batch_of(2, 9, 1);
      const auto with = [&](const std::vector<Recompute>& blocks) {
        return run(model, batch, {true, 5, {blocks}}, at::kFloat);
      };
      using enum Recompute;
      for (const bool documents : {false, true}) {
        if (documents) batch.cu_seqlens = {0, 3, 9, 10, 18};
        const Result none = with({});
        for (const auto& blocks : {std::vector(3, kFull),
                                   std::vector(3, kAttention),
                                   {kNone, kFull, kNone},
                                   {kAttention, kNone, kMlp},
                                   {kNorms, kAttention, kFull}}) {
          const Result again = with(blocks);
          EXPECT_EQ(none.loss, again.loss);
          ASSERT_EQ(none.gradients.size(), again.gradients.size());
          for (size_t i = 0; i < none.gradients.size(); ++i)
            EXPECT_EQ(max_difference(none.gradients[i], again.gradients[i]), 0) << i;
        }
      }
    }
  }
}

TEST(DecoderModel, DropoutDoesNotDependOnTheMicroBatchSplit) {
  expect_the_same_of_parts(DecoderModel(small_config(), seven(0.3)), batch_of(4, 7, 1));
}

TEST(DecoderModel, DropoutIsOnInTrainingOnlyAndFollowsTheSeed) {
  const DecoderModel model(small_config(), seven(0.3)), plain(small_config(), seven(0.0));
  const TokenBatch batch = batch_of(2, 7, 1);
  const auto units = units_of(model, at::kDouble);
  WholeUnitStore store(units);
  const auto loss = [&](const DecoderModel& m, bool train, uint64_t seed) {
    return m.loss(store, batch, {train, seed, {}}).item<double>();
  };
  EXPECT_EQ(loss(model, false, 1), loss(plain, true, 1));
  EXPECT_EQ(loss(model, true, 1), loss(model, true, 1));
  EXPECT_GT(std::abs(loss(model, true, 1) - loss(model, true, 2)), 1e-6);
  EXPECT_GT(std::abs(loss(model, true, 1) - loss(plain, true, 1)), 1e-6);
}

TEST(DecoderModel, APackOfThreeEqualsTheThreeAlone) {
  const DecoderModel model(small_config(), seven());
  const std::vector<int64_t> lengths = {5, 2, 8};
  TokenBatch packed = batch_of(1, 15, 4);
  packed.cu_seqlens = {0, 5, 7, 15};
  packed.positions_BS = at::cat({at::arange(5), at::arange(2), at::arange(8)}).to(at::kLong).view({1, 15});
  for (const int64_t last : {4, 6, 14}) packed.loss_weight_BS[0][last] = 0;
  const Result together = run(model, packed, {});
  double loss = 0;
  std::vector<at::Tensor> sum;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    TokenBatch alone = batch_of(1, length, 0);
    alone.tokens_BS = packed.tokens_BS.narrow(1, begin, length);
    begin += length;
    const Result one = run(model, alone, {});
    loss += one.loss;
    for (size_t i = 0; i < one.gradients.size(); ++i) add_gradient(sum, i, one.gradients[i]);
  }
  EXPECT_NEAR(together.loss, loss, 1e-10);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_LT(relative_difference(together.gradients[i], sum[i]), 1e-11);
}

TEST(DecoderModel, LossIsTheCrossEntropyOfItsLogits) {
  const DecoderModel model(small_config(), {});
  TokenBatch batch = batch_of(2, 8, 2);
  batch.loss_weight_BS = random({2, 8}, 5, at::kFloat).abs();
  batch.loss_weight_BS.select(1, 7).zero_();
  const auto units = units_of(model, at::kFloat);
  WholeUnitStore store(units);
  const at::Tensor log_p = at::log_softmax(model.logits(store, batch, {}).to(at::kDouble), -1);
  double want = 0;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < 7; ++t)
      want -= batch.loss_weight_BS[b][t].item<double>() *
              log_p[b][t][batch.tokens_BS[b][t + 1].item<int64_t>()].item<double>();
  EXPECT_NEAR(model.loss(store, batch, {false, 0, {}}).item<double>() / want, 1.0, 1e-6);
}

TEST(DecoderModel, LabelsStandInPlaceOfTheNextToken) {
  const DecoderModel model(small_config(), {});
  TokenBatch batch = batch_of(2, 8, 2);
  const Result next = run(model, batch, {});
  batch.labels_BS = batch.tokens_BS.roll(-1, 1);
  const Result same = run(model, batch, {});
  EXPECT_EQ(same.loss, next.loss);
  for (size_t i = 0; i < next.gradients.size(); ++i)
    EXPECT_EQ(relative_difference(same.gradients[i], next.gradients[i]), 0);
  // Labels of their own, at all positions.
  batch.labels_BS = batch.tokens_BS.flip(1).contiguous();
  batch.loss_weight_BS = random({2, 8}, 5, at::kFloat).abs();
  const auto units = units_of(model, at::kFloat);
  WholeUnitStore store(units);
  const at::Tensor log_p = at::log_softmax(model.logits(store, batch, {}).to(at::kDouble), -1);
  const at::Tensor chosen = log_p.gather(-1, batch.labels_BS.unsqueeze(-1)).squeeze(-1);
  const double want = -(chosen * batch.loss_weight_BS.to(at::kDouble)).sum().item<double>();
  EXPECT_NEAR(model.loss(store, batch, {false, 0, {}}).item<double>() / want, 1.0, 1e-6);
  batch.labels_BS = batch.labels_BS.narrow(1, 0, 7);
  EXPECT_THROW(model.loss(store, batch, {false, 0, {}}), InternalError);
}

TEST(DecoderModel, RowsWithALossGiveTheLossOfAllRows) {
  TokenBatch batch = batch_of(2, 12, 2);
  batch.loss_weight_BS = at::where(random({2, 12}, 9, at::kFloat) > 0.3, batch.loss_weight_BS, 0.0);
  const at::Tensor counted = batch.loss_weight_BS.flatten().ne(0);
  ASSERT_GT(counted.sum().item<int64_t>(), 2);
  ASSERT_FALSE(counted[3].item<bool>());
  for (const double dropout : {0.0, 0.1}) {
    const DecoderModel model(small_config(), seven(dropout));
    for (const Recompute recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kAttention, Recompute::kFull}) {
      for (const int64_t tile : {0, 3}) {
        TokenBatch some = batch;
        some.loss_rows_R = at::logical_or(counted, at::arange(24).eq(3)).nonzero().squeeze(1);
        const ForwardOptions options{true, 1, {std::vector<Recompute>(3, recompute), tile}};
        const Result all = run(model, batch, options), rows = run(model, some, options);
        EXPECT_NEAR(rows.loss, all.loss, 1e-10);
        for (size_t i = 0; i < all.gradients.size(); ++i)
          EXPECT_LT(relative_difference(rows.gradients[i], all.gradients[i]), 1e-11) << i;
        const auto units = units_of(model, at::kDouble);
        WholeUnitStore store(units);
        EXPECT_LT(max_difference(model.log_probs(store, some, options), model.log_probs(store, batch, options)), 1e-12);
      }
    }
  }
}

TEST(DecoderModel, EvaluationKeepsNoGraph) {
  const DecoderModel model(small_config(), seven());
  const auto units = units_of(model, at::kFloat);
  WholeUnitStore store(units);
  EXPECT_FALSE(model.loss(store, batch_of(1, 4, 1), {false, 0, {}}).requires_grad());
  EXPECT_TRUE(model.loss(store, batch_of(1, 4, 1), {true, 0, {}}).requires_grad());
}

TEST(DecoderModel, Bf16FollowsFp32) {
  const DecoderModel model(small_config(), seven());
  const TokenBatch batch = batch_of(2, 16, 1);
  const Result exact = run(model, batch, {}, at::kFloat), half = run(model, batch, {}, at::kBFloat16);
  EXPECT_NEAR(half.loss / exact.loss, 1.0, 2e-2);
}

TEST(DecoderModel, ReadsWeightsOnlyBetweenTheHooks) {
  for (const bool tie : {false, true}) {
    for (const bool full_training : {false, true}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kAttention, Recompute::kFull}) {
        const DecoderModel model(small_config(tie), full_training ? std::nullopt : std::optional(seven(0.1)));
        const ForwardOptions options{true, 1, {std::vector<Recompute>(3, recompute)}};
        const TokenBatch batch = batch_of(2, 5, 1);
        expect_reads_between_the_hooks(model, batch, options);
      }
    }
  }
}

}  // namespace
}  // namespace trireme
