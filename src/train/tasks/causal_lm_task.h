#pragma once
// Next-token prediction on token rows: what is a decoder's own.

#include "data/token_pack.h"
#include "models/decoder/decoder.h"
#include "prompts.h"
#include "row_task.h"
#include "trireme/formats/huggingface/peft_adapter.h"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

class CausalLmTask : public RowTask<Sample, TokenPack> {
 public:
  /// Opens the data and reads the model's configuration; no weights, no GPU. DataError / ModelError / ConfigError.
  CausalLmTask(const Config& config, const RankInfo& rank, const ProgramKeys& program);

  ModelShape model_shape(const Config& config, int64_t element_size) const override;
  RunFiles files() const override;
  at::Tensor loss(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train) override;
  std::vector<SampledText> sample(ShardedUnits& units, Communicator& comm,
                                  const std::function<void(int64_t, int64_t)>& progress) override;
  EvalResult eval_result(const EvalSums& sums, Split split) const override;  // {loss, denominator}
  void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) override;
  void complete_weights(ShardedUnits& units) override;

 protected:
  void weights_loaded(ShardedUnits& units, const WeightSource* source) override;
  StepBatch to_device(const std::vector<TokenPack>& passes) const override;
  at::Tensor score(UnitStore& units, const MicroBatch& batch) override;
  EvalSums counts(const TokenPack& pack) const override {
    return {rank_.grid.context.rank == 0 ? pack.denominator : 0.0};
  }
  SplitRows<Sample> open_split(Split split) const;
  double row_flops(const std::vector<TokenPack>& passes) const;  // StepBatch::row_flops

  std::unique_ptr<DecoderModel> model_;

 private:
  void check_start() override;
  std::unique_ptr<WeightSource> open_weights() const override;
  void open_rows();
  /// Of a pass over eval.prompts: a rank's share of a row.
  int64_t tokens_at_once() const { return config_.data.seq_length / rank_.grid.context.size; }
  /// Warns about rows that are packed with another tokenizer than the model's.
  void warn_of_tokenizers() const;
  /// Whether the first rows of data.train hold several sequences with targets, which sample_mean weighs as one.
  bool packs_samples() const;
  void save_adapter(ShardedUnits& units, const std::filesystem::path& directory);

  std::optional<Prompts> prompts_;               // rank 0, where there are eval.prompts
  const RowFormat* format_ = nullptr;            // of data.train; null: a plan, which opens no data
  int64_t stored_vocab_ = 0;                     // rows of the vocabulary in model.path; the model may have more
  int64_t data_vocab_ = 0;                       // ids that rows may have: without padding ids
  std::map<std::string, TokenRows> token_rows_;  // LoRA, rank 0: rows of the vocabulary that the adapter holds
  std::map<std::string, at::Tensor> adapter_;    // lora.adapter, from check_start() to weights_loaded()
};

/// The rows of a pack on `device`, whose tokens count in the loss by these weights.
TokenBatch token_batch_on(at::Device device, const TokenPack& pack, const std::vector<float>& loss_weights);

}  // namespace trireme
