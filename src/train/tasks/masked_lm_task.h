#pragma once
// Masked words and next sentence on packed rows: what is BERT's own.
//
// A row of the data is a pack of sequences. batch.global_batch_size and micro_batch_size count rows; samples in
// metrics, logs and artefacts are sequences, counted exactly.

#include "data/bert/bert_pack.h"
#include "models/bert/bert.h"
#include "row_task.h"

#include <filesystem>
#include <memory>
#include <vector>

namespace trireme {

class MaskedLmTask final : public RowTask<BertRow, BertPack> {
 public:
  /// Opens the data and reads the model's configuration; no weights, no GPU. DataError / ModelError / ConfigError.
  MaskedLmTask(const Config& config, const RankInfo& rank, const ProgramKeys& program);

  ModelShape model_shape(const Config& config, int64_t element_size) const override;
  RunFiles files() const override;
  at::Tensor loss(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train) override;
  /// {masked loss, next-sentence loss, words found, masked words, sequences}
  EvalResult eval_result(const EvalSums& sums, Split split) const override;
  void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) override;

 private:
  std::unique_ptr<WeightSource> open_weights() const override;
  StepBatch to_device(const std::vector<BertPack>& passes) const override;
  at::Tensor score(UnitStore& units, const MicroBatch& batch) override;
  EvalSums counts(const BertPack& pack) const override { return {pack.words, pack.sequences}; }
  void open_rows(int64_t vocab_size);

  std::unique_ptr<BertModel> model_;
  double sequences_per_row_ = 1;
};

}  // namespace trireme
