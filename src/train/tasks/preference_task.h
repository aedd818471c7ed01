#pragma once
// Preference tuning: the task of a decoder whose rows are pairs of a chosen and a rejected answer.
//
// The reference of DPO is the policy as it was before the first step. With adapters it is computed in every step: the
// frozen base without adapters, or, where the run starts from lora.adapter, with that one. Otherwise, with
// lora.modules_to_save, whose base is not kept, and with preference.precompute_ref_log_probs, its log-probabilities of
// all rows are computed once, before the first step, and kept in a file of output.dir.

#include "causal_lm_task.h"
#include "preference_loss.h"
#include "reference_file.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme {

class PreferenceTask final : public CausalLmTask {
 public:
  PreferenceTask(const Config& config, const RankInfo& rank, const ProgramKeys& program);

  ModelShape model_shape(const Config& config, int64_t element_size) const override;
  void prepare(ShardedUnits& units, const BeforeSteps& before) override;
  at::Tensor loss(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train) override;
  EvalResult eval_result(const EvalSums& sums, Split split) const override;

 private:
  void weights_loaded(ShardedUnits& units, const WeightSource* source) override;
  StepBatch to_device(const std::vector<TokenPack>& passes) const override;
  at::Tensor score(UnitStore& units, const MicroBatch& batch) override;
  EvalSums counts(const TokenPack& pack) const override;

  PairSums pair_sums(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train);
  /// log p of the reference of this step, without gradient [T].
  at::Tensor reference_log_probs(UnitStore& units, const TokenBatch& tokens);
  /// The reference's sums of this rank's share of all rows of all splits, by the weights as they are.
  ReferenceRows compute_reference(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress);
  /// Identifies the weights of the reference, and the files of rows.
  std::string origin() const;

  const PreferenceLoss loss_;
  bool precomputes_ = false, drops_ = false;
  /// Replicated units as they were before the first step, where the reference needs them: adapters, rows of the
  /// vocabulary, magnitudes, biases.
  std::map<int, std::vector<at::Tensor>> start_;
  ReferenceRows reference_;  // of precomputes_, from prepare() on
  std::filesystem::path reference_path_;
};

}  // namespace trireme
