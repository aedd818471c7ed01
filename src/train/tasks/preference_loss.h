#pragma once
// Private to train/: losses of pairs of answers from the log-probabilities of their tokens, and TRL's metrics of them.
// Knows no model and no ranks.

#include "data/token_pack.h"
#include "trireme/config/config.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme {

/// Whether the run compares with a reference model: DPO and KTO.
bool has_reference(const Config& config);
/// Whether such a run computes the log-probabilities of its reference once, before its first step.
bool precomputes_reference(const Config& config);

/// The answers of a pack on the device: P pairs, N sequences, T tokens.
struct PairBatch {
  at::Tensor targets_T;                             // fp32: 1 at positions that predict a token of an answer, else 0
  at::Tensor lengths_N;                             // int64: of all sequences, padding included
  at::Tensor chosen_P, rejected_P;                  // int64: their sequences
  at::Tensor chosen_targets_P, rejected_targets_P;  // fp64: number of targets
  at::Tensor desirable_P;                           // fp64: 1 or 0, of judged answers
  at::Tensor row_pairs_R;                           // int64: pairs of each row that has some
  at::Tensor reference_P2;  // fp64: the reference's sums of log p of both answers; undefined: not computed before
};

/// Sums over the pairs of a batch, fp64.
struct PairSums {
  at::Tensor loss;     // of the pairs' losses, differentiable
  at::Tensor nll;      // of -log p of the chosen answers' tokens, differentiable
  at::Tensor metrics;  // [K], in the order of PreferenceLoss::metrics()
};

/// DPO (Rafailov et al. 2023; IPO: Azar et al. 2023, by token means as in TRL; robust: Chowdhury et al. 2024) and ORPO
/// (Hong et al. 2024). The loss of a step is sums.loss / pairs + nll_weight() * sums.nll / nll tokens.
///
/// KTO (Ethayarajh et al. 2024), whose pairs are an answer and its prompt with the answer to another: with the ratios
/// r and r' of both to the reference 1 - sigmoid(+-beta (r - kl)), + for desirable answers, times their weight; kl is
/// the mean of r' over the answers of a row, at least 0 and without gradient, or 0 (apo_zero_unpaired: D'Oosterlinck et
/// al. 2024). TRL takes the mean over a micro-batch.
class PreferenceLoss {
 public:
  PreferenceLoss(TrainSection::Objective objective, const PreferenceSection& section);

  /// Whether a reference's log-probabilities are part of the loss.
  bool has_reference() const { return objective_ != Objective::kOrpo; }
  double nll_weight() const { return objective_ == Objective::kOrpo ? 1 : section_.rpo_alpha; }
  std::vector<std::string> metrics() const;
  /// What losses and metrics are means over: pairs, nll tokens, desirable and undesirable answers of a pack.
  static constexpr int64_t kCounts = 4;
  std::vector<double> counts(const TokenPack& pack) const;
  /// The metrics of sums over all pairs that `counts` (fp64 [kCounts]) counts: each is a mean over one
  /// of the counts, and with KTO rewards/margins the difference of two of them. NaN: of nothing. [K]
  at::Tensor means(const at::Tensor& sums_K, const at::Tensor& counts) const;
  /// Tokens of a pack whose -log p is in `nll`: of chosen answers; ORPO: of their prompts too.
  double nll_tokens(const TokenPack& pack) const;
  /// [T] 1 at the positions whose log p the sums need, else 0: targets; ORPO: also in the prompts of chosen answers.
  std::vector<float> counted(const TokenPack& pack) const;

  /// `log_probs_T`: of the policy, 0 where counted() is 0. `reference_P2`: answer_sums() of the reference, undefined
  /// without one.
  PairSums sums(const at::Tensor& log_probs_T, const PairBatch& batch, const at::Tensor& reference_P2) const;
  /// Sums of log p over the targets of each pair's chosen and rejected answer: fp64 [P, 2], differentiable.
  static at::Tensor answer_sums(const at::Tensor& log_probs_T, const PairBatch& batch);

 private:
  using Objective = TrainSection::Objective;
  at::Tensor dpo_loss(const at::Tensor& margins_P, const at::Tensor& mean_margins_P) const;
  PairSums kto_sums(const at::Tensor& answers_P2, const at::Tensor& ratios_P2, const PairBatch& batch) const;

  Objective objective_;
  PreferenceSection section_;
};

/// Copies a pack's pairs to `device`, without reference.
PairBatch pair_batch_on(at::Device device, const TokenPack& pack);

}  // namespace trireme
