#pragma once
// BERT on packed rows: data to batches, losses, evaluation, artefacts.
//
// A row of the data is a pack of sequences. batch.global_batch_size and micro_batch_size count rows; samples in
// metrics, logs and artefacts are sequences, counted exactly.

#include "bert_pack.h"
#include "data/bert/bert_rows.h"
#include "models/bert/bert.h"
#include "task_common.h"
#include "trireme/config/config.h"
#include "trireme/train/task.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace trireme {

class MaskedLmTask final : public TrainingTask {
 public:
  /// Opens the data and reads the model's configuration; no weights, no GPU. DataError / ModelError / ConfigError.
  MaskedLmTask(const Config& config, const RankInfo& rank);

  const std::vector<UnitSpec>& units() const override { return model_->units(); }
  int64_t num_parameters() const override { return model_->num_parameters(); }
  int64_t num_trained_parameters() const override { return model_->num_parameters(); }
  double flops_per_sample() const override { return flops_per_row(config_.data.seq_length); }  // of a row
  int64_t train_samples() const override { return train_->sequences(); }
  int64_t eval_samples() const override { return eval_rows_; }
  void fill_plan(const Config& config, PlanInput& input) const override;
  std::vector<std::string> describe() const override;

  int64_t train_rows() const override { return train_->size(); }
  void check_weights() override;
  std::vector<RowSet> row_sets() const override;
  void load_weights(ShardedUnits& units) override;
  void set_rows_per_pass(int rows) override { rows_per_pass_.set(rows); }
  void prefetch(int64_t step) override;
  StepBatch batch(int64_t step) override;
  StepBatch synthetic_batch() override;
  at::Tensor loss(UnitStore& units, const MicroBatch& batch, const std::vector<Recompute>& recompute,
                  bool train) override;
  EvalSums evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) override;
  EvalResult eval_result(const EvalSums& sums) const override;
  double nominal_denominator() const override { return 1.0; }
  std::optional<double> nominal_samples_per_step() const override;
  std::unique_ptr<MlperfEvents> mlperf_events(MlperfLog& log) const override { return make_bert_events(log); }
  void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) override;

 private:
  void require_targets() const;
  std::vector<BertPack> read_step(int64_t step, int64_t rows_per_pass);
  /// Batches on the device, with the counts that normalise their losses.
  StepBatch to_device(const std::vector<BertPack>& packs) const;
  void read_evaluation();
  int64_t padding() const;
  double flops_per_row(int64_t length) const;

  Config config_;
  RankInfo rank_;
  std::unique_ptr<BertModel> model_;
  std::unique_ptr<BertDataset> train_, valid_;
  std::unique_ptr<BertSampler> sampler_;
  RowsPerPass rows_per_pass_;
  int64_t eval_rows_ = 0;
  std::unique_ptr<WeightSource> source_;  // from check_weights() to load_weights()
  StepBatch evaluation_;                  // this rank's part, on the device after the first evaluation
  double evaluated_words_ = 0, evaluated_sequences_ = 0;
  ReadAhead<std::vector<BertPack>> ahead_;  // last: ends before what it reads
};

}  // namespace trireme
