#include "preference_loss.h"

#include "row_task.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

/// Sums of the parts of values_T that `lengths_N` divide it into: fp64 [N]. In a fixed order, and without a host
/// synchronisation.
at::Tensor sums_of_parts(const at::Tensor& values_T, const at::Tensor& lengths_N) {
  return at::segment_reduce(values_T.to(at::kDouble), "sum", lengths_N, /*indices=*/{}, /*offsets=*/{}, /*axis=*/0,
                            /*unsafe=*/true);
}

/// log(1 - exp(x)) for x < 0. Each form where it does not cancel; clamped, so that the other's gradient is no NaN.
at::Tensor log1mexp(const at::Tensor& x) {
  const double middle = -std::log(2.0);
  return at::where(x.lt(middle), at::log1p(-at::exp(x.clamp_max(middle))), at::log(-at::expm1(x.clamp_min(middle))));
}

}  // namespace

PreferenceLoss::PreferenceLoss(TrainSection::Objective objective, const PreferenceSection& section)
    : orpo_(objective == TrainSection::Objective::kOrpo), section_(section) {}

std::vector<std::string> PreferenceLoss::metrics() const {
  std::vector<std::string> names = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                    "rewards/margins", "logps/chosen",     "logps/rejected"};
  if (orpo_) names.insert(names.end(), {"log_odds_ratio", "log_odds_chosen"});
  if (nll_weight() > 0) names.emplace_back("nll_loss");
  return names;
}

double PreferenceLoss::nll_tokens(const TokenPack& pack) const {
  double tokens = 0;
  for (size_t p = 0; p < pack.chosen.size(); ++p) {
    const auto sequence = static_cast<size_t>(pack.chosen[p]);
    tokens += orpo_ ? pack.boundaries[sequence + 1] - pack.boundaries[sequence] - 1 : pack.chosen_targets[p];
  }
  return tokens;
}

std::vector<float> PreferenceLoss::counted(const TokenPack& pack) const {
  std::vector<float> counted = pack.loss_weights;
  if (!orpo_) return counted;
  for (const int64_t sequence : pack.chosen)  // the last position of a sequence predicts nothing
    std::fill(counted.begin() + pack.boundaries[static_cast<size_t>(sequence)],
              counted.begin() + pack.boundaries[static_cast<size_t>(sequence) + 1] - 1, 1.0f);
  return counted;
}

at::Tensor PreferenceLoss::answer_sums(const at::Tensor& log_probs_T, const PairBatch& batch) {
  const at::Tensor sums_N = sums_of_parts(log_probs_T * batch.targets_T, batch.lengths_N);
  return at::stack({sums_N.index_select(0, batch.chosen_P), sums_N.index_select(0, batch.rejected_P)}, 1);
}

at::Tensor PreferenceLoss::dpo_loss(const at::Tensor& margins_P, const at::Tensor& mean_margins_P) const {
  using LossType = PreferenceSection::LossType;
  const double smoothing = section_.label_smoothing;
  const at::Tensor scaled = margins_P * section_.beta;
  switch (section_.loss_type) {
    case LossType::kSigmoid: return -at::log_sigmoid(scaled) * (1 - smoothing) - at::log_sigmoid(-scaled) * smoothing;
    case LossType::kHinge: return at::relu(1 - scaled);
    case LossType::kIpo: return (mean_margins_P - 1 / (2 * section_.beta)).square();
    case LossType::kRobust:
      return (-at::log_sigmoid(scaled) * (1 - smoothing) + at::log_sigmoid(-scaled) * smoothing) / (1 - 2 * smoothing);
  }
  return {};
}

PairSums PreferenceLoss::sums(const at::Tensor& log_probs_T, const PairBatch& batch,
                              const at::Tensor& reference_P2) const {
  const at::Tensor targets_P2 = at::stack({batch.chosen_targets_P, batch.rejected_targets_P}, 1);
  const auto difference = [](const at::Tensor& of_P2) { return of_P2.select(1, 0) - of_P2.select(1, 1); };
  at::Tensor answers_P2 = answer_sums(log_probs_T, batch), rewards_P2;
  PairSums sums;
  std::vector<at::Tensor> more;  // metrics
  if (orpo_) {
    // ORPO compares the means over tokens.
    answers_P2 = answers_P2 / targets_P2;
    const at::Tensor log_odds_P = difference(answers_P2) - difference(log1mexp(answers_P2));
    const at::Tensor ratio_P = at::log_sigmoid(log_odds_P);
    sums.loss = -section_.beta * ratio_P.sum();
    sums.nll = -sums_of_parts(log_probs_T, batch.lengths_N).index_select(0, batch.chosen_P).sum();
    rewards_P2 = section_.beta * answers_P2.detach();
    more = {ratio_P.sum(), log_odds_P.sum()};
  } else {
    const at::Tensor ratios_P2 = answers_P2 - reference_P2;
    sums.loss = dpo_loss(difference(ratios_P2), difference(ratios_P2 / targets_P2)).sum();
    sums.nll = -answers_P2.select(1, 0).sum();
    rewards_P2 = section_.beta * ratios_P2.detach();
  }
  const at::Tensor margins_P = difference(rewards_P2);
  std::vector<at::Tensor> metrics = {rewards_P2.select(1, 0).sum(), rewards_P2.select(1, 1).sum(),
                                     margins_P.gt(0).sum(),         margins_P.sum(),
                                     answers_P2.select(1, 0).sum(), answers_P2.select(1, 1).sum()};
  metrics.insert(metrics.end(), more.begin(), more.end());
  if (nll_weight() > 0) metrics.push_back(sums.nll);
  for (at::Tensor& metric : metrics) metric = metric.detach().to(at::kDouble);
  sums.metrics = at::stack(metrics);
  return sums;
}

PairBatch pair_batch_on(at::Device device, const TokenPack& pack) {
  std::vector<int64_t> lengths;
  for (size_t s = 0; s + 1 < pack.boundaries.size(); ++s)
    lengths.push_back(pack.boundaries[s + 1] - pack.boundaries[s]);
  return {to_tensor(pack.loss_weights, device),
          to_tensor(lengths, device),
          to_tensor(pack.chosen, device),
          to_tensor(pack.rejected, device),
          to_tensor(pack.chosen_targets, device),
          to_tensor(pack.rejected_targets, device),
          {}};
}

}  // namespace trireme
