// Losses of pairs from log-probabilities of tokens, compared with their formulas written out for one pair at a time.
#include "preference_loss.h"

#include "row_task.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

using LossType = PreferenceSection::LossType;
using Objective = TrainSection::Objective;

/// A row of two pairs and padding, beside a row without pairs: answers of 2, 1, 3 and 1 targets.
TokenPack two_pairs() {
  Sample sample;
  sample.input_ids.assign(16, 1);
  sample.loss_mask = {0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0};
  sample.sequence_starts = {0, 3, 6, 10, 14};
  sample.pairs = 2;
  return make_token_pack({filler_sample(16), sample}, {-1, 0}, /*per_token=*/true);
}

at::Tensor log_probs(const TokenPack& pack, const PreferenceLoss& loss) {
  const at::Tensor values = -at::arange(1, 33, at::kFloat) / 40;
  return (values * copy_to_device(loss.counted(pack), at::kCPU)).requires_grad_();
}

double sigmoid_loss(double x) { return std::log1p(std::exp(-x)); }

PairSums sums_of(Objective objective, const PreferenceSection& section, const at::Tensor& reference_P2,
                 at::Tensor* log_probs_T = nullptr) {
  const PreferenceLoss loss(objective, section);
  const TokenPack pack = two_pairs();
  const at::Tensor given = log_probs(pack, loss);
  if (log_probs_T != nullptr) *log_probs_T = given;
  return loss.sums(given, pair_batch_on(at::kCPU, pack), reference_P2);
}

// Position t of the second row predicts token t + 1 and has the value -(17 + t) / 40.
constexpr double kChosen[] = {-(17 + 18) / 40.0, -(23 + 24 + 25) / 40.0}, kRejected[] = {-21 / 40.0, -29 / 40.0};

TEST(PreferenceLoss, DpoFollowsItsFormulas) {
  const at::Tensor reference = at::tensor({-0.5, -0.7, -2.0, -0.1}, at::kDouble).view({2, 2});
  const double margins[] = {(kChosen[0] + 0.5) - (kRejected[0] + 0.7), (kChosen[1] + 2.0) - (kRejected[1] + 0.1)};
  const double means[] = {(kChosen[0] + 0.5) / 2 - (kRejected[0] + 0.7), (kChosen[1] + 2.0) / 3 - (kRejected[1] + 0.1)};
  const double b = 0.3, e = 0.2;
  const auto expect = [&](LossType type, double smoothing, const auto& of_pair) {
    PreferenceSection section;
    section.beta = b;
    section.loss_type = type;
    section.label_smoothing = smoothing;
    const PairSums sums = sums_of(Objective::kDpo, section, reference);
    EXPECT_NEAR(sums.loss.item<double>(), of_pair(0) + of_pair(1), 1e-6) << static_cast<int>(type);
  };
  expect(LossType::kSigmoid, 0, [&](int p) { return sigmoid_loss(b * margins[p]); });
  expect(LossType::kSigmoid, e,
         [&](int p) { return (1 - e) * sigmoid_loss(b * margins[p]) + e * sigmoid_loss(-b * margins[p]); });
  expect(LossType::kRobust, e, [&](int p) {
    return ((1 - e) * sigmoid_loss(b * margins[p]) - e * sigmoid_loss(-b * margins[p])) / (1 - 2 * e);
  });
  expect(LossType::kHinge, 0, [&](int p) { return std::max(0.0, 1 - b * margins[p]); });
  expect(LossType::kIpo, 0, [&](int p) { return std::pow(means[p] - 1 / (2 * b), 2); });
}

TEST(PreferenceLoss, MetricsAreSumsOverPairs) {
  const at::Tensor reference = at::tensor({-0.5, -0.7, -2.0, -0.1}, at::kDouble).view({2, 2});
  PreferenceSection section;
  section.beta = 0.5;
  section.rpo_alpha = 0.1;
  const PairSums sums = sums_of(Objective::kDpo, section, reference);
  EXPECT_EQ(PreferenceLoss(Objective::kDpo, section).metrics().back(), "nll_loss");
  const double chosen = 0.5 * (kChosen[0] + 0.5 + kChosen[1] + 2.0),
               rejected = 0.5 * (kRejected[0] + 0.7 + kRejected[1] + 0.1);
  const std::vector<double> want = {chosen,
                                    rejected,
                                    1,
                                    chosen - rejected,
                                    kChosen[0] + kChosen[1],
                                    kRejected[0] + kRejected[1],
                                    -(kChosen[0] + kChosen[1])};
  ASSERT_EQ(sums.metrics.size(0), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(sums.metrics[static_cast<int64_t>(i)].item<double>(), want[i], 1e-6) << i;
  EXPECT_FALSE(sums.metrics.requires_grad());
}

TEST(PreferenceLoss, OrpoComparesMeansAndLearnsChosenSequences) {
  PreferenceSection section;
  section.beta = 0.4;
  const PreferenceLoss loss(Objective::kOrpo, section);
  const TokenPack pack = two_pairs();
  EXPECT_EQ(loss.nll_tokens(pack), 2 + 3);  // of sequences of 3 and 4 tokens
  EXPECT_EQ(PreferenceLoss(Objective::kDpo, section).nll_tokens(pack), 2 + 3);
  const auto log_odds = [](double mean) { return mean - std::log(1 - std::exp(mean)); };
  double want = 0;
  for (int p = 0; p < 2; ++p)
    want += 0.4 * sigmoid_loss(log_odds(kChosen[p] / (p == 0 ? 2 : 3)) - log_odds(kRejected[p]));
  at::Tensor given;
  const PairSums sums = sums_of(Objective::kOrpo, section, {}, &given);
  EXPECT_NEAR(sums.loss.item<double>(), want, 1e-6);
  EXPECT_NEAR(sums.nll.item<double>(), (17 + 18 + 23 + 24 + 25) / 40.0, 1e-5);
  (sums.loss + sums.nll).backward();
  EXPECT_TRUE(given.grad().isfinite().all().item<bool>());
  EXPECT_EQ(given.grad().narrow(0, 0, 16).abs().max().item<double>(), 0);  // the row without pairs
  EXPECT_EQ(given.grad()[30].item<double>(), 0);                           // padding
}

TEST(PreferenceLoss, KtoFollowsItsFormulas) {
  // Two rows: an answer that is desirable; one that is not and one that is. The others' ratios of the second row have a
  // mean below 0.
  Sample one, two;
  one.input_ids.assign(8, 1), two.input_ids.assign(8, 1);
  one.loss_mask = {0, 1, 0, 1, 1, 0, 0, 0}, two.loss_mask = {0, 1, 0, 1, 0, 1, 0, 1};
  one.sequence_starts = {0, 2, 5}, two.sequence_starts = {0, 2, 4, 6};
  one.pairs = 1, two.pairs = 2;
  one.desirable = {1}, two.desirable = {0, 1};
  const TokenPack pack = make_token_pack({filler_sample(8), one, two}, {-1, 0, 1}, /*per_token=*/true);
  const std::vector<double> reference = {-0.1, -2.5, -0.2, -0.3, -0.9, -0.1};
  const at::Tensor reference_P2 = at::tensor(reference, at::kDouble).view({3, 2});
  PreferenceSection section;
  section.beta = 0.4;
  section.desirable_weight = 1.5, section.undesirable_weight = 0.5;
  for (const bool apo : {false, true}) {
    section.loss_type = apo ? std::optional(LossType::kApoZeroUnpaired) : std::nullopt;
    const PreferenceLoss loss(Objective::kKto, section);
    EXPECT_EQ(loss.metrics().back(), "kl");
    EXPECT_EQ(loss.counts(pack), (std::vector<double>{3, 3, 2, 1}));
    // Position t of the pack has -(t + 1) / 40, and predicts token t + 1.
    const at::Tensor given =
        (-at::arange(1, 25, at::kFloat) / 40 * copy_to_device(loss.counted(pack), at::kCPU)).requires_grad_();
    const auto log_p = [](std::initializer_list<int> tokens) {
      double sum = 0;
      for (const int token : tokens) sum -= token / 40.0;
      return sum;
    };
    const double answers[] = {log_p({9}), log_p({17}), log_p({21})},
                 others[] = {log_p({11, 12}), log_p({19}), log_p({23})};
    const double kl[] = {apo ? 0 : std::max(0.0, others[0] - reference[1]), 0, 0};
    ASSERT_LT((others[1] - reference[3] + others[2] - reference[5]) / 2, 0);
    ASSERT_GT(others[0] - reference[1], 0);
    const double ratios[] = {answers[0] - reference[0], answers[1] - reference[2], answers[2] - reference[4]};
    const auto wrong = [](double x) { return 1 - 1 / (1 + std::exp(-x)); };
    const double want =
        1.5 * (wrong(0.4 * (ratios[0] - kl[0])) + wrong(0.4 * ratios[2])) + 0.5 * wrong(-0.4 * ratios[1]);
    const PairSums sums = loss.sums(given, pair_batch_on(at::kCPU, pack), reference_P2);
    EXPECT_NEAR(sums.loss.item<double>(), want, 1e-6) << apo;
    sums.loss.backward();
    EXPECT_EQ(given.grad()[10].item<double>(), 0) << "the KL term has a gradient";
    EXPECT_NE(given.grad()[8].item<double>(), 0);
    const at::Tensor means = loss.means(sums.metrics, copy_to_device(loss.counts(pack), at::kCPU));
    const double chosen = 0.4 * (ratios[0] + ratios[2]) / 2, rejected = 0.4 * ratios[1];
    const double expected[] = {chosen,     rejected, chosen - rejected, (answers[0] + answers[2]) / 2,
                               answers[1], kl[0] / 3};
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(means[i].item<double>(), expected[i], 1e-6) << i;
  }
}

TEST(PreferenceLoss, ABatchWithoutPairsIsZero) {
  const TokenPack pack = make_token_pack({filler_sample(8)}, {-1}, true);
  for (const Objective objective : {Objective::kDpo, Objective::kOrpo, Objective::kKto}) {
    const PreferenceLoss loss(objective, {});
    const at::Tensor none = at::zeros({0, 2}, at::kDouble);
    const PairSums sums = loss.sums(at::zeros({8}), pair_batch_on(at::kCPU, pack), none);
    EXPECT_EQ(sums.loss.item<double>(), 0);
    EXPECT_EQ(sums.nll.item<double>(), 0);
    EXPECT_EQ(sums.metrics.abs().max().item<double>(), 0);
  }
}

TEST(PreferenceLoss, CertainAnswersHaveNoGradientThatIsNan) {
  PreferenceSection section;
  const PreferenceLoss loss(Objective::kOrpo, section);
  const TokenPack pack = two_pairs();
  const at::Tensor given = (at::full({32}, -1e-7, at::kFloat)).requires_grad_();
  loss.sums(given, pair_batch_on(at::kCPU, pack), {}).loss.backward();
  EXPECT_TRUE(given.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace trireme
