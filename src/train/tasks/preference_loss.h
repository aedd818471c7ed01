#pragma once
// Private to train/: losses of pairs of answers from the log-probabilities of their tokens, and TRL's metrics of them.
// Knows no model and no ranks.

#include "data/token_pack.h"
#include "trireme/config/config.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme {

/// The answers of a pack on the device: P pairs, N sequences, T tokens.
struct PairBatch {
  at::Tensor targets_T;                             // fp32: 1 at positions that predict a token of an answer, else 0
  at::Tensor lengths_N;                             // int64: of all sequences, padding included
  at::Tensor chosen_P, rejected_P;                  // int64: their sequences
  at::Tensor chosen_targets_P, rejected_targets_P;  // fp64: number of targets
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
class PreferenceLoss {
 public:
  PreferenceLoss(TrainSection::Objective objective, const PreferenceSection& section);

  /// Whether a reference's log-probabilities are part of the loss.
  bool has_reference() const { return !orpo_; }
  double nll_weight() const { return orpo_ ? 1 : section_.rpo_alpha; }
  /// Names of the metrics. Each is a mean over pairs; the last, "nll_loss", is one over nll tokens, and is there where
  /// nll_weight() is not 0.
  std::vector<std::string> metrics() const;
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
  at::Tensor dpo_loss(const at::Tensor& margins_P, const at::Tensor& mean_margins_P) const;

  bool orpo_;
  PreferenceSection section_;
};

/// Copies a pack's pairs to `device`, without reference.
PairBatch pair_batch_on(at::Device device, const TokenPack& pack);

}  // namespace trireme
