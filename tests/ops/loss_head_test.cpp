#include "trireme/ops/layers/loss_head.h"

#include "gradient_check.h"
#include "uneven_samples.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using namespace testing;

at::Tensor plain(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                 const at::Tensor& token_weight) {
  const at::Tensor losses = -at::log_softmax(at::linear(hidden, weight), -1).gather(1, targets.unsqueeze(1)).squeeze(1);
  return (losses * token_weight).sum();
}

at::Tensor targets_of(int64_t tokens, int64_t vocabulary) {
  return (at::arange(tokens, at::TensorOptions(at::kLong)) * 7 + 3).remainder(vocabulary);
}

TEST(LossHead, ChunksOfATrainedWeightFollowTheDevice) {
  constexpr int64_t kMiB = int64_t{1} << 20, kGiB = kMiB << 10;
  EXPECT_EQ(loss_head_logits(0), 1280 * kMiB);
  EXPECT_EQ(loss_head_logits(139 * kGiB), 1280 * kMiB);
  EXPECT_EQ(loss_head_logits(48 * kGiB), 768 * kMiB);
  EXPECT_EQ(loss_head_logits(8 * kGiB), 256 * kMiB);
  EXPECT_EQ(loss_head_kernel_chunk(151936, 2, false), 768);
  EXPECT_EQ(loss_head_kernel_chunk(151936, 2, true), 4352);
  EXPECT_EQ(loss_head_kernel_chunk(151936, 2, true, 256 * kMiB), 768);
  EXPECT_EQ(loss_head_kernel_chunk(50257, 2, true), 8192);
  EXPECT_EQ(loss_head_kernel_chunk(32000, 2, true, 256 * kMiB), 4096);
  EXPECT_EQ(loss_head_kernel_chunk(int64_t{1} << 20, 4, true, 256 * kMiB), 256);
}

TEST(LossHead, GivesTheWeightsGradientToASink) {
  const at::Tensor targets = targets_of(9, 13), ones = at::ones({9}, at::kFloat);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = random({9, 5}, 1, type), weight = random({13, 5}, 2, type),
                     factors = random({9}, 3, at::kFloat);
    for (const bool by_token : {false, true}) {
      const auto loss = [&](const at::Tensor& h, const at::Tensor& w, GradientSink* sink) {
        if (by_token) return (token_log_probs(h, w, targets, ones, {}, {}, sink) * factors).sum();
        return loss_head(h, w, targets, ones, {}, {}, {}, sink) * 3.0;
      };
      const auto expected = gradients([&](const auto& t) { return loss(t[0], t[1], nullptr); }, {hidden, weight});
      for (const at::ScalarType sum_type : {at::kFloat, type}) {
        for (const bool adds : {false, true}) {
          const at::Tensor before = at::ones({13, 5}, at::TensorOptions(sum_type));
          CountingSink sink(before.clone(), adds);
          const auto d_hidden = gradients([&](const auto& t) { return loss(t[0], weight, &sink); }, {hidden});
          EXPECT_TRUE(d_hidden[0].equal(expected[0]));
          EXPECT_TRUE(sink.result.sum.equal(adds ? before.add(expected[1]).to(sum_type) : expected[1].to(sum_type)));
          EXPECT_EQ(sink.targets, 1);
          EXPECT_EQ(sink.writes, 1);
          at::NoGradGuard no_grad;
          (void)loss(hidden, weight, &sink);
          EXPECT_EQ(sink.writes, 1);
        }
      }
      // No node would be recorded, and the rows' gradient has not the weight's shape.
      CountingSink sink(at::ones({13, 5}, at::kFloat), false);
      EXPECT_ANY_THROW(loss(hidden, weight, &sink));
      const at::Tensor h = hidden.clone().requires_grad_(), ids = at::tensor({2, 3}, at::kLong);
      const TrainedRows rows{weight.index_select(0, ids).requires_grad_(), ids, 2};
      EXPECT_ANY_THROW(token_log_probs(h, weight, targets, ones, {}, rows, &sink));
    }
  }
}

TEST(LossHead, ValueAndGradientEqualThePlainComposition) {
  const at::Tensor targets = targets_of(9, 13);
  const at::Tensor weights = at::tensor({1.0, 0.0, 0.25, 2.0, 0.0, 1.0, 1.0, 0.5, 0.0}, at::kDouble);
  const std::vector<at::Tensor> inputs = {random({9, 5}, 1), random({13, 5}, 2)};
  const auto ours = [&](const std::vector<at::Tensor>& t) { return loss_head(t[0], t[1], targets, weights) * 3.0; };
  const auto reference = [&](const std::vector<at::Tensor>& t) { return plain(t[0], t[1], targets, weights) * 3.0; };
  EXPECT_NEAR(ours(inputs).item<double>(), reference(inputs).item<double>(), 1e-12);
  const auto a = gradients(ours, inputs), b = gradients(reference, inputs);
  for (int i = 0; i < 2; ++i) EXPECT_LT(max_difference(a[i], b[i]), 1e-13);
  EXPECT_LT(gradient_error(ours, inputs), 1e-7);
}

TEST(LossHead, SeveralChunksEqualOne) {
  const int64_t vocabulary = 1 << 20, tokens = loss_head_chunk(vocabulary, false) + 3;
  const at::Tensor hidden = random({tokens, 2}, 1, at::kFloat), weight = random({vocabulary, 2}, 2, at::kFloat);
  const at::Tensor targets = targets_of(tokens, vocabulary), ones = at::ones({tokens}, at::kFloat);
  at::NoGradGuard no_grad;
  // In fp64: a sum of a million exponentials in fp32 is off by more than the loss head, by an amount that depends on
  // the width of the CPU's vectors.
  const at::Tensor wide = weight.to(at::kDouble);
  double want = 0;
  for (int64_t t = 0; t < tokens; ++t)
    want += plain(hidden.narrow(0, t, 1).to(at::kDouble), wide, targets.narrow(0, t, 1), ones.narrow(0, t, 1))
                .item<double>();
  // fp32 rounds with 6e-8: the logits, the logarithm of the sum, their difference, and the sum over the tokens.
  EXPECT_NEAR(loss_head(hidden, weight, targets, ones).item<double>() / want, 1.0, 5e-7);
}

TEST(LossHead, ChunksGiveTheGradientOfTheWhole) {
  const int64_t vocabulary = 1 << 20, chunk = loss_head_chunk(vocabulary, false);
  ASSERT_LT(chunk, 40);
  const int64_t tokens = chunk + 5;
  const at::Tensor targets = targets_of(tokens, vocabulary), weights = at::ones({tokens}, at::kDouble);
  const std::vector<at::Tensor> inputs = {random({tokens, 2}, 1, at::kDouble), random({vocabulary, 2}, 2, at::kDouble)};
  const auto ours = gradients([&](const auto& t) { return loss_head(t[0], t[1], targets, weights); }, inputs);
  const auto reference = gradients([&](const auto& t) { return plain(t[0], t[1], targets, weights); }, inputs);
  for (int i = 0; i < 2; ++i) EXPECT_LT(relative_difference(ours[i], reference[i]), 1e-12) << i;
}

/// transformers' LabelSmoother, over the first `ids` ids. Not by log_softmax: its backward adds the same share once for
/// each id, rounding errors that all have one sign.
at::Tensor plain_smoothed(const std::vector<at::Tensor>& t, const at::Tensor& targets, const at::Tensor& token_weight,
                          double share, int64_t ids) {
  const at::Tensor logits = at::linear(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor());
  const at::Tensor smoothed =
      logits.gather(1, targets.unsqueeze(1)).squeeze(1) * (1 - share) + logits.narrow(1, 0, ids).mean(1) * share;
  return ((at::logsumexp(logits, 1) - smoothed) * token_weight).sum();
}

TEST(LossHead, SmoothedLabelsEqualThePlainComposition) {
  struct Head {
    int64_t tokens, width, vocabulary, ids;
    bool bias;
  };
  // The last one takes two chunks.
  for (const Head& s : {Head{9, 5, 13, 13, false}, Head{9, 5, 13, 10, true}, Head{4, 3, 2, 1, false},
                        Head{33, 2, int64_t{1} << 20, (int64_t{1} << 20) - 7, false}}) {
    const at::Tensor targets = targets_of(s.tokens, s.ids);
    at::Tensor weights = at::rand({s.tokens}, at::kDouble) + 0.25;
    weights[1].zero_();
    std::vector<at::Tensor> inputs = {random({s.tokens, s.width}, 1, at::kDouble),
                                      random({s.vocabulary, s.width}, 2, at::kDouble)};
    if (s.bias) inputs.push_back(random({s.vocabulary}, 3, at::kDouble));
    for (const double share : s.tokens < 33 ? std::vector{0.1, 0.6} : std::vector{0.1}) {
      const auto ours = [&](const std::vector<at::Tensor>& t) {
        return loss_head(t[0], t[1], targets, weights, s.bias ? t[2] : at::Tensor(), {}, {share, s.ids});
      };
      const auto reference = [&](const std::vector<at::Tensor>& t) {
        return plain_smoothed(t, targets, weights, share, s.ids);
      };
      EXPECT_NEAR(ours(inputs).item<double>() / reference(inputs).item<double>(), 1, 1e-12) << s.vocabulary;
      const auto a = gradients(ours, inputs), b = gradients(reference, inputs);
      for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(relative_difference(a[i], b[i]), 1e-11) << s.vocabulary;
    }
  }
  const at::Tensor hidden = random({4, 3}, 1), weight = random({6, 3}, 2), ones = at::ones({4}, at::kDouble);
  EXPECT_TRUE(loss_head(hidden, weight, targets_of(4, 6), ones, {}, {}, {0, 6})
                  .equal(loss_head(hidden, weight, targets_of(4, 6), ones)));
  for (const LabelSmoothing& wrong : {LabelSmoothing{0.1, 7}, LabelSmoothing{0.1, 0}, LabelSmoothing{1, 6}})
    EXPECT_ANY_THROW(loss_head(hidden, weight, targets_of(4, 6), ones, {}, {}, wrong)) << wrong.share;
}

TEST(LossHead, NoTargetsGiveZeroLossAndZeroGradient) {
  const at::Tensor hidden = random({4, 3}, 1).requires_grad_(), weight = random({6, 3}, 2).requires_grad_();
  const at::Tensor loss = loss_head(hidden, weight, targets_of(4, 6), at::zeros({4}, at::kDouble));
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 0);
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(weight.grad().abs().max().item<double>(), 0);
}

TEST(LossHead, FrozenWeightGetsNoGradientAndNoGradKeepsNothing) {
  const at::Tensor hidden = random({4, 3}, 1).requires_grad_(), weight = random({6, 3}, 2);
  const at::Tensor ones = at::ones({4}, at::kDouble);
  loss_head(hidden, weight, targets_of(4, 6), ones).backward();
  EXPECT_TRUE(hidden.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
  at::NoGradGuard no_grad;
  EXPECT_FALSE(loss_head(hidden, weight, targets_of(4, 6), ones).requires_grad());
}

TEST(LossHead, HalfPrecisionGradientsOfTinyWeightsDoNotUnderflow) {
  // The weight of one of 8,192 tokens in a batch of thousands is about 1e-6; fp16 has no positive value below 6e-8.
  const at::Tensor hidden = random({3, 4}, 1, at::kHalf).requires_grad_(), weight = random({50, 4}, 2, at::kHalf);
  const double token_weight = 1e-6, loss_scale = 65536;
  (loss_head(hidden, weight, targets_of(3, 50), at::full({3}, token_weight, at::kFloat)) * loss_scale).backward();
  const at::Tensor exact = hidden.detach().to(at::kDouble).requires_grad_();
  (plain(exact, weight.to(at::kDouble), targets_of(3, 50), at::full({3}, token_weight, at::kDouble)) * loss_scale)
      .backward();
  EXPECT_LT(relative_difference(hidden.grad(), exact.grad()), 1e-2);
}

TEST(LossHead, HalfPrecisionKeepsALongSampleBesideAShortOne) {
  // A gradient of a logit is about 1 / 12000 * 0.5 / 2000 = 2e-8, below the least fp16 value.
  const UnevenSamplesErrors errors = uneven_samples_errors(at::kCPU, 12000);
  EXPECT_LT(errors.weight, 1e-3);
  EXPECT_LT(errors.bias, 1e-3);
  EXPECT_LT(errors.hidden, 1e-3);
}

TEST(LossHead, LargeLogitsStayFinite) {
  const at::Tensor hidden = at::full({2, 1}, 1e4, at::kFloat).requires_grad_();
  const at::Tensor weight = at::tensor({1.0, -1.0, 0.5}, at::kFloat).view({3, 1});
  const at::Tensor loss = loss_head(hidden, weight, at::tensor({0, 1}, at::kLong), at::ones({2}, at::kFloat));
  loss.backward();
  EXPECT_FLOAT_EQ(loss.item<float>(), 2e4f);
  EXPECT_TRUE(hidden.grad().isfinite().all().item<bool>());
}

TEST(LossHead, WithBias) {
  const at::Tensor targets = at::tensor({1, 0, 4, 2}, at::kLong),
                   weights = at::tensor({0.5, 0.0, 1.0, 0.25}, at::kFloat);
  const std::vector<at::Tensor> in = {random({4, 3}, 1), random({5, 3}, 2), random({5}, 3)};
  const at::Tensor log_p = at::log_softmax(at::matmul(in[0], in[1].t()) + in[2], -1);
  const at::Tensor expected = -(log_p.gather(1, targets.unsqueeze(1)).squeeze(1) * weights).sum();
  EXPECT_LT(max_difference(loss_head(in[0], in[1], targets, weights, in[2]), expected), 1e-12);
  EXPECT_LT(gradient_error(
                [&](const std::vector<at::Tensor>& t) { return loss_head(t[0], t[1], targets, weights, t[2]); }, in),
            1e-6);
  const HeadScore score = score_head(in[0], in[1], targets, weights, in[2]);
  EXPECT_LT(max_difference(score.loss, expected), 1e-12);
  const at::Tensor right = (at::matmul(in[0], in[1].t()) + in[2]).argmax(-1).eq(targets).logical_and(weights.ne(0));
  EXPECT_EQ(score.hits.item<double>(), right.sum().item<double>());
}

/// log p of each token by itself.
at::Tensor plain_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  return at::log_softmax(at::linear(hidden, weight), -1).gather(1, targets.unsqueeze(1)).squeeze(1);
}

TEST(TokenLogProbs, FactorsOfTokensMayDependOnAllLogProbs) {
  // As in a loss of pairs: the factor of each token follows from sums over tokens, and may have any sign.
  const at::Tensor targets = targets_of(9, 13), counted = at::tensor({1, 0, 1, 1, 0, 1, 1, 1, 0}, at::kDouble);
  const std::vector<at::Tensor> inputs = {random({9, 5}, 1), random({13, 5}, 2)};
  const auto loss = [](const at::Tensor& log_probs) {
    return -at::log_sigmoid(log_probs.narrow(0, 0, 5).sum() - 2 * log_probs.narrow(0, 5, 4).sum()) * 3.0;
  };
  const auto ours = [&](const std::vector<at::Tensor>& t) {
    return loss(token_log_probs(t[0], t[1], targets, counted));
  };
  const auto reference = [&](const std::vector<at::Tensor>& t) {
    return loss(plain_log_probs(t[0], t[1], targets) * counted);
  };
  EXPECT_LT(max_difference(token_log_probs(inputs[0], inputs[1], targets, counted),
                           plain_log_probs(inputs[0], inputs[1], targets) * counted),
            1e-13);
  const auto a = gradients(ours, inputs), b = gradients(reference, inputs);
  for (int i = 0; i < 2; ++i) EXPECT_LT(max_difference(a[i], b[i]), 1e-13) << i;
  EXPECT_LT(gradient_error(ours, inputs), 1e-7);
  // A frozen weight: the gradient comes from forward.
  const at::Tensor hidden = inputs[0].clone().requires_grad_();
  loss(token_log_probs(hidden, inputs[1], targets, counted)).backward();
  EXPECT_LT(max_difference(hidden.grad(), b[0]), 1e-13);
  // No token counts.
  const at::Tensor none = token_log_probs(hidden, inputs[1], targets, at::zeros_like(counted));
  EXPECT_EQ(none.abs().max().item<double>(), 0);
  hidden.mutable_grad() = at::Tensor();
  none.sum().backward();
  EXPECT_EQ(hidden.grad().abs().max().item<double>(), 0);
}

TEST(TokenLogProbs, ChunksAndTrainedRows) {
  const int64_t vocabulary = 1 << 20, tokens = loss_head_chunk(vocabulary, false) + 5, begin = vocabulary - 3;
  const at::Tensor targets = targets_of(tokens, vocabulary), ones = at::ones({tokens}, at::kDouble);
  targets[2] = begin + 1;
  const at::Tensor factors = random({tokens}, 5);
  const std::vector<at::Tensor> inputs = {random({tokens, 2}, 1), random({vocabulary, 2}, 2)};
  const auto reference =
      gradients([&](const auto& t) { return (plain_log_probs(t[0], t[1], targets) * factors).sum(); }, inputs);
  const auto trained =
      gradients([&](const auto& t) { return (token_log_probs(t[0], t[1], targets, ones) * factors).sum(); }, inputs);
  for (int i = 0; i < 2; ++i) EXPECT_LT(relative_difference(trained[i], reference[i]), 1e-12) << i;
  // Rows of a frozen weight, which is gathered without them between forward and backward.
  const at::Tensor hidden = inputs[0].clone().requires_grad_(), weight = inputs[1].clone();
  for (const at::Tensor& ids : {at::arange(begin, vocabulary), at::tensor({int64_t{7}, begin, begin + 1})}) {
    hidden.mutable_grad() = at::Tensor();
    const TrainedRows rows{weight.index_select(0, ids).requires_grad_(), ids,
                           ids[0].item<int64_t>() < begin ? -1 : begin};
    const at::Tensor log_probs = token_log_probs(hidden, weight, targets, ones, {}, rows);
    weight.index_fill_(0, ids, 0);
    (log_probs * factors).sum().backward();
    EXPECT_LT(relative_difference(hidden.grad(), reference[0]), 1e-12);
    EXPECT_LT(relative_difference(rows.values.grad(), reference[1].index_select(0, ids)), 1e-12);
    rows.put_into(weight);
  }
}

TEST(TokenLogProbs, HalfPrecisionKeepsSmallFactors) {
  const double scale = 1024;
  const at::Tensor factors = at::tensor({1.0, 1e-5, -3e-4}, at::kFloat), targets = targets_of(3, 50);
  for (const bool trained : {false, true}) {
    const at::Tensor hidden = random({3, 4}, 1, at::kHalf).requires_grad_();
    const at::Tensor weight = random({50, 4}, 2, at::kHalf).requires_grad_(trained);
    (token_log_probs(hidden, weight, targets, at::ones({3}, at::kFloat)) * factors * scale).sum().backward();
    const at::Tensor exact = hidden.detach().to(at::kDouble).requires_grad_();
    (plain_log_probs(exact, weight.detach().to(at::kDouble), targets) * factors * scale).sum().backward();
    for (int t = 0; t < 3; ++t)
      EXPECT_LT(relative_difference(hidden.grad()[t] / factors[t], exact.grad()[t] / factors[t]), 1e-2) << trained << t;
  }
}

}  // namespace
}  // namespace trireme
