#include "preference_loss.h"

#include "row_task.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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
    : objective_(objective), section_(section) {}

std::vector<std::string> PreferenceLoss::metrics() const {
  if (objective_ == Objective::kKto)
    return {"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl"};
  std::vector<std::string> names = {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
                                    "rewards/margins", "logps/chosen",     "logps/rejected"};
  if (objective_ == Objective::kOrpo) names.insert(names.end(), {"log_odds_ratio", "log_odds_chosen"});
  if (nll_weight() > 0) names.emplace_back("nll_loss");
  return names;
}

double PreferenceLoss::nll_tokens(const TokenPack& pack) const {
  double tokens = 0;
  for (size_t p = 0; p < pack.chosen.size(); ++p) {
    const auto sequence = static_cast<size_t>(pack.chosen[p]);
    tokens += objective_ == Objective::kOrpo ? pack.boundaries[sequence + 1] - pack.boundaries[sequence] - 1
                                             : pack.chosen_targets[p];
  }
  return tokens;
}

std::vector<double> PreferenceLoss::counts(const TokenPack& pack) const {
  const auto pairs = static_cast<double>(pack.chosen.size());
  const double desirable = std::accumulate(pack.desirable.begin(), pack.desirable.end(), 0.0);
  return {pairs, nll_tokens(pack), desirable, pairs - desirable};
}

at::Tensor PreferenceLoss::means(const at::Tensor& sums_K, const at::Tensor& counts) const {
  enum Over : int64_t { kPairs, kTokens, kDesirable, kUndesirable };
  std::vector<int64_t> over(static_cast<size_t>(sums_K.size(0)), kPairs);
  const bool kto = objective_ == Objective::kKto;
  if (kto) over = {kDesirable, kUndesirable, kPairs, kDesirable, kUndesirable, kPairs};
  if (nll_weight() > 0) over.back() = kTokens;
  at::Tensor means = sums_K / counts.index_select(0, copy_to_device(over, counts.device()));
  if (kto) means.select(0, 2).copy_(means[0] - means[1]);
  return means;
}

std::vector<float> PreferenceLoss::counted(const TokenPack& pack) const {
  std::vector<float> counted = pack.loss_weights;
  if (objective_ != Objective::kOrpo) return counted;
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
  switch (section_.loss_type.value_or(LossType::kSigmoid)) {
    case LossType::kSigmoid: return -at::log_sigmoid(scaled) * (1 - smoothing) - at::log_sigmoid(-scaled) * smoothing;
    case LossType::kHinge: return at::relu(1 - scaled);
    case LossType::kIpo: return (mean_margins_P - 1 / (2 * section_.beta)).square();
    case LossType::kRobust:
      return (-at::log_sigmoid(scaled) * (1 - smoothing) + at::log_sigmoid(-scaled) * smoothing) / (1 - 2 * smoothing);
    case LossType::kKto:
    case LossType::kApoZeroUnpaired: break;
  }
  TRIREME_CHECK(false, "a loss of single answers for pairs");
  return {};
}

PairSums PreferenceLoss::kto_sums(const at::Tensor& answers_P2, const at::Tensor& ratios_P2,
                                  const PairBatch& batch) const {
  const at::Tensor &desirable_P = batch.desirable_P, undesirable_P = 1 - desirable_P;
  at::Tensor kl_P = at::zeros_like(desirable_P);
  if (section_.loss_type != PreferenceSection::LossType::kApoZeroUnpaired && kl_P.size(0) > 0)
    kl_P = (sums_of_parts(ratios_P2.select(1, 1).detach(), batch.row_pairs_R) / batch.row_pairs_R)
               .clamp_min(0)
               .repeat_interleave(batch.row_pairs_R, /*dim=*/0, /*output_size=*/desirable_P.size(0));
  const at::Tensor rewards_P = section_.beta * (ratios_P2.select(1, 0) - kl_P),
                   losses_P = at::sigmoid(rewards_P * (undesirable_P - desirable_P)),
                   weights_P = section_.desirable_weight * desirable_P + section_.undesirable_weight * undesirable_P;
  const at::Tensor log_p_P = answers_P2.select(1, 0), told_P = section_.beta * ratios_P2.select(1, 0);
  PairSums sums{(weights_P * losses_P).sum(), {}, {}};
  sums.nll = at::zeros_like(sums.loss);
  sums.metrics = at::stack({(told_P * desirable_P).sum(), (told_P * undesirable_P).sum(), sums.nll,
                            (log_p_P * desirable_P).sum(), (log_p_P * undesirable_P).sum(), kl_P.sum()})
                     .detach();
  return sums;
}

PairSums PreferenceLoss::sums(const at::Tensor& log_probs_T, const PairBatch& batch,
                              const at::Tensor& reference_P2) const {
  const at::Tensor targets_P2 = at::stack({batch.chosen_targets_P, batch.rejected_targets_P}, 1);
  const auto difference = [](const at::Tensor& of_P2) { return of_P2.select(1, 0) - of_P2.select(1, 1); };
  at::Tensor answers_P2 = answer_sums(log_probs_T, batch), rewards_P2;
  if (objective_ == Objective::kKto) return kto_sums(answers_P2, answers_P2 - reference_P2, batch);
  PairSums sums;
  std::vector<at::Tensor> more;  // metrics
  if (objective_ == Objective::kOrpo) {
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
  return {copy_to_device(pack.loss_weights, device),
          copy_to_device(lengths, device),
          copy_to_device(pack.chosen, device),
          copy_to_device(pack.rejected, device),
          copy_to_device(pack.chosen_targets, device),
          copy_to_device(pack.rejected_targets, device),
          copy_to_device(pack.desirable, device),
          copy_to_device(pack.row_pairs, device),
          {}};
}

bool has_reference(const Config& config) {
  using Objective = TrainSection::Objective;
  return config.train.objective == Objective::kDpo || config.train.objective == Objective::kKto;
}

bool precomputes_reference(const Config& config) {
  return has_reference(config) &&
         config.preference.value_or(PreferenceSection())
             .precompute_ref_log_probs.value_or(!config.lora || !config.lora->modules_to_save.empty());
}

}  // namespace trireme
