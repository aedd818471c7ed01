#pragma once
// Llama on packed token rows: data to batches, losses, evaluation, artefacts.

#include "data/dataset.h"
#include "models/decoder/decoder.h"
#include "task_common.h"
#include "trireme/config/config.h"
#include "trireme/formats/peft_adapter.h"
#include "trireme/train/task.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

class CausalLmTask final : public TrainingTask {
 public:
  /// Opens the data and reads the model's configuration; no weights, no GPU. DataError / ModelError / ConfigError.
  CausalLmTask(const Config& config, const RankInfo& info);

  const std::vector<UnitSpec>& units() const override { return model_->units(); }
  int64_t num_parameters() const override { return model_->num_parameters(); }
  int64_t num_trained_parameters() const override { return model_->num_trained_parameters(); }
  double flops_per_sample() const override;
  int64_t train_samples() const override { return train_->size(); }
  int64_t eval_samples() const override { return valid_ ? valid_->size() : 0; }
  void fill_plan(const Config& config, PlanInput& input) const override;
  bool takes_adapters() const override { return true; }
  std::vector<std::string> describe() const override;

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
  double nominal_denominator() const override;
  std::unique_ptr<MlperfEvents> mlperf_events(MlperfLog& log) const override { return make_llama_events(log); }
  void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) override;

 private:
  /// Rows of one global batch that this rank reads, still on the host.
  struct HostBatch {
    std::vector<Sample> samples;
    std::vector<int64_t> positions;  // in the run's stream of samples
  };
  void require_targets() const;
  HostBatch read_step(int64_t step);
  std::unique_ptr<MicroBatch> to_device(const std::vector<Sample>& samples,
                                        const std::vector<int64_t>& stream_positions, double& denominator) const;
  void save_adapter(ShardedUnits& units, const std::filesystem::path& directory);
  void save_model(ShardedUnits& units, const std::filesystem::path& directory);

  Config config_;
  RankInfo info_;
  std::unique_ptr<DecoderModel> model_;
  int64_t stored_vocab_ = 0;                     // rows of the vocabulary in model.path; the model may have more
  std::map<std::string, TokenRows> token_rows_;  // LoRA, rank 0: rows of the vocabulary that the adapter holds
  std::unique_ptr<TokenDataset> train_, valid_;
  std::unique_ptr<Sampler> sampler_;
  RowsPerPass rows_per_pass_;
  std::unique_ptr<WeightSource> source_;  // from check_weights() to load_weights()
  std::map<std::string, at::Tensor> adapter_;
  ReadAhead<HostBatch> ahead_;  // last: ends before what it reads
};

}  // namespace trireme
