#include "masked_lm_task.h"

#include "data/bert/bert_rows.h"
#include "models/bert/files.h"
#include "models/common/blocks.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/config/mlperf_rules.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/plan/cost.h"
#include "trireme/plan/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

struct BertMicroBatch final : MicroBatch {
  BertBatch batch;
  at::Tensor counts;  // fp64 [2]: what masked words' and sequences' losses are divided by
};

BertBatch bert_batch_on(at::Device device, const BertPack& pack) {
  BertBatch batch;
  batch.ids_T = copy_to_device(pack.ids, device);
  batch.positions_T = copy_to_device(pack.positions, device);
  batch.types_T = copy_to_device(pack.types, device);
  batch.token_keys_T = copy_to_device(pack.keys, device);
  batch.sequences = make_sequences(pack.boundaries, pack.sequence_keys, device, pack.needed);
  batch.masked_rows_P = copy_to_device(pack.masked_rows, device);
  batch.masked_ids_P = copy_to_device(pack.masked_ids, device);
  batch.masked_weights_P = copy_to_device(pack.masked_weights, device);
  batch.first_rows_M = copy_to_device(pack.first_rows, device);
  batch.next_labels_M = copy_to_device(pack.next_labels, device);
  batch.next_weights_M = copy_to_device(pack.next_weights, device);
  return batch;
}

}  // namespace

MaskedLmTask::MaskedLmTask(const Config& config, const RankInfo& rank, const ProgramKeys& program)
    : RowTask(config, rank) {
  const BertConfig shape = read_bert_config(bert_config_path(config.model.path));
  if (config.data.seq_length > shape.max_position_embeddings)
    throw ConfigError(fmt::format("data.seq_length {} is more than the model's max_position_embeddings {}",
                                  config.data.seq_length, shape.max_position_embeddings));
  model_ = std::make_unique<BertModel>(shape, config.model.pad_vocab_to.value_or(program.vocab_multiple));
  facts_.mlperf_division =
      check_mlperf_model(config, program,
                         {{"num_hidden_layers", std::to_string(shape.num_hidden_layers)},
                          {"hidden_size", std::to_string(shape.hidden_size)},
                          {"intermediate_size", std::to_string(shape.intermediate_size)},
                          {"num_attention_heads", std::to_string(shape.num_attention_heads)},
                          {"vocab_size", std::to_string(shape.vocab_size)},
                          {"max_position_embeddings", std::to_string(shape.max_position_embeddings)},
                          {"type_vocab_size", std::to_string(shape.type_vocab_size)},
                          {"layer_norm_eps", format_exact(shape.layer_norm_eps)},
                          {"hidden_dropout_prob", format_exact(shape.hidden_dropout_prob)},
                          {"attention_probs_dropout_prob", format_exact(shape.attention_probs_dropout_prob)},
                          {"hidden_act", shape.gelu_tanh ? "gelu by tanh" : "gelu by erf"},
                          {"next-sentence head", shape.next_sentence ? "true" : "false"}});
  facts_.automatic_fp8 = Recipe::kFp8Delayed;  // MLPerf's BERT
  const std::string fp8 =
      fp8_problem(rank, traits_of(chosen_fp8_recipe(config, facts_.automatic_fp8)),
                  {{"hidden_size", shape.hidden_size}, {"intermediate_size", shape.intermediate_size}});
  if (trains_in_fp8(config) && !fp8.empty()) throw ConfigError(fp8);
  facts_.trained_fp8 = fp8.empty();
  if (rank.plan_only)
    sequences_per_row_ = config.batch.packing_rate;
  else
    open_rows(shape.vocab_size);

  facts_.units = &model_->units();
  facts_.parameters = facts_.trained_parameters = model_->num_parameters();
  facts_.flops = RowFlops(model_shape(config, /*element_size=*/1));
  facts_.nominal_samples_per_step = static_cast<double>(config.batch.global_batch_size) * config.batch.packing_rate;
  facts_.description.insert(
      facts_.description.begin(),
      fmt::format("model: {} of {} layers, hidden {}, {} heads of {}, FFN {}, vocabulary {} (padded to {}), GELU {}: "
                  "{} parameters",
                  shape.next_sentence ? "BertForPreTraining" : "BertForMaskedLM", shape.num_hidden_layers,
                  shape.hidden_size, shape.num_attention_heads, shape.head_dim(), shape.intermediate_size,
                  shape.vocab_size, model_->padded_vocab(), shape.gelu_tanh ? "by tanh" : "by erf",
                  format_count(facts_.parameters)));
}

void MaskedLmTask::open_rows(int64_t vocab_size) {
  const int64_t length = config_.data.seq_length;
  const auto open = [&](Split split) -> std::shared_ptr<const BertDataset> {
    return open_bert_dataset(to_paths(split_keys(config_, split).files), length, vocab_size,
                             model_->config().type_vocab_size);
  };
  const auto opened = [](const char* name, const std::shared_ptr<const BertDataset>& data) {
    SplitRows<BertRow> rows = {.rows = data->size(), .description = data->description()};
    rows.read = [data](int64_t index) { return data->read(index); };
    rows.sets.push_back({name, data->size(), data->shard_rows(), [data](int64_t row) { (void)data->read(row); }});
    return rows;
  };
  RowSource<BertRow, BertPack> rows;
  const auto train = open(Split::kTrain);
  rows.train = opened("data.train", train);
  rows.train.samples = train->sequences();
  rows.train.read = [train, sampler = std::make_shared<BertSampler>(*train, seed(), config_.data.shuffle)](
                        int64_t position) { return train->read(sampler->at(position)); };
  sequences_per_row_ = static_cast<double>(rows.train.samples) / static_cast<double>(rows.train.rows);
  std::shared_ptr<const BertDataset> valid;
  if (!config_.data.valid.empty()) {
    valid = open(Split::kValid);
    if (config_.eval.samples && valid->sequences() != valid->size())
      throw ConfigError("eval.samples counts sequences: it needs data.valid with one sequence a row, not packs");
    rows.valid = opened("data.valid", valid);
    rows.valid.there = valid->size();
    rows.valid.rows = rows_to_evaluate(config_, Split::kValid, rows.valid.there);
    if (config_.eval.samples) rows.valid.description += fmt::format(", the first {}", format_count(rows.valid.rows));
  }
  if (!config_.data.test.empty()) {
    const auto test = open(Split::kTest);
    rows.test = opened("data.test", test);
    rows.test.rows = rows_to_evaluate(config_, Split::kTest, test->size());
  }
  BertPackOptions options{length, row_multiple(rank_.device), config_.train.loss == TrainSection::Loss::kSampleMean};
  rows.collate = [options](const std::vector<BertRow>& read, const std::vector<int64_t>& positions, bool training) {
    BertPackOptions mine = options;
    mine.per_sequence = mine.per_sequence && training;
    return make_bert_pack(read, positions, mine);
  };
  rows.has_target = [](const BertRow& row) { return !row.masked_positions.empty(); };
  rows.without_target = "no word is masked";
  rows.filler = filler_bert_row();
  rows.pattern = pattern_bert_row(length, vocab_size);
  rows.keep_evaluation = true;
  set_rows(std::move(rows));
  if (valid && !config_.eval.samples) facts_.eval_samples = valid->sequences();
}

RunFiles MaskedLmTask::files() const {
  const auto shards = [](const std::vector<std::string>& entries) {
    return entries.empty() ? std::vector<std::filesystem::path>() : bert_shards(to_paths(entries));
  };
  return {shards(config_.data.train),
          find_bert_config(bert_config_path(config_.model.path)),
          {},
          shards(config_.data.valid),
          rows().valid.there,
          shards(config_.data.test),
          config_.model.init == ModelSection::Init::kCheckpoint ? tensorflow_files(config_.model.path)
                                                                : std::vector<std::filesystem::path>()};
}

ModelShape MaskedLmTask::model_shape(const Config& config, int64_t element_size) const {
  return model_->shape(config.data.seq_length, sequences_per_row_, element_size);
}

StepBatch MaskedLmTask::to_device(const std::vector<BertPack>& passes) const {
  double words = 0, sequences = 0;
  for (const BertPack& pack : passes) {
    words += pack.words;
    sequences += pack.sequences;
  }
  StepBatch step;
  step.samples = sequences;
  step.denominator = 1.0 / rank_.grid.data.size;                         // the losses come normalised
  const bool own = config_.train.loss == TrainSection::Loss::kRankMean;  // every rank's mean weighs the same
  const double share = own ? rank_.grid.data.size : 1;
  const at::Tensor counts = copy_to_device<double>({words * share, sequences * share}, rank_.device);
  for (const BertPack& pack : passes) {
    auto batch = std::make_unique<BertMicroBatch>();
    batch->batch = bert_batch_on(rank_.device, pack);
    batch->counts = counts;
    step.micro_batches.push_back(std::move(batch));
  }
  if (!own) step.counts = counts;
  return step;
}

at::Tensor MaskedLmTask::loss(UnitStore& units, const MicroBatch& micro_batch, const Recomputation& recompute,
                              bool train) {
  const auto& mine = static_cast<const BertMicroBatch&>(micro_batch);
  BertBatch batch = mine.batch;
  const at::Tensor counts = mine.counts.clamp_min(1);  // without masked words all their weights are 0
  batch.masked_weights_P = batch.masked_weights_P.div(counts[0]).to(at::kFloat);
  batch.next_weights_M = batch.next_weights_M.div(counts[1]).to(at::kFloat);
  BertForward options;
  options.train = train;
  options.seed = seed();
  options.recompute = recompute;
  options.smoothing = {config_.train.label_smoothing, model_->config().vocab_size};
  return model_->loss(units, batch, options);
}

at::Tensor MaskedLmTask::score(UnitStore& units, const MicroBatch& batch) {
  const BertScore score = model_->score(units, static_cast<const BertMicroBatch&>(batch).batch);
  return at::stack({score.masked_loss, score.next_loss, score.hits});
}

EvalResult MaskedLmTask::eval_result(const EvalSums& sums, Split split) const {
  const double words = sums.at(3), sequences = std::max(1.0, sums.at(4));
  if (words == 0) throw without_targets(split_keys(config_, split).files, rows().without_target);
  return {sums[0] / words + sums[1] / sequences, sums[2] / words};
}

std::unique_ptr<WeightSource> MaskedLmTask::open_weights() const {
  return open_bert_weights(config_.model.path, *model_);
}

void MaskedLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  const auto writer = export_model(units, [&] {
    return std::make_unique<BertDirectoryWriter>(directory / "model",
                                                 stored_tensors(model_->units(), to_file_dtype(rank_.compute_dtype)));
  });
  if (!writer) return;
  BertConfig config = model_->config();
  config.dtype = torch_dtype_name(to_file_dtype(rank_.compute_dtype));
  if (!std::filesystem::exists(bert_config_path(config_.model.path)))
    log_warn(
        fmt::format("model.path {} is not there any more: its vocab.txt and the other files of its tokenizer are not "
                    "copied to {}",
                    config_.model.path, (directory / "model").string()));
  writer->finish(config_.model.path, config);
}

std::unique_ptr<TrainingTask> make_masked_lm_task(const Config& config, const RankInfo& rank,
                                                  const ProgramKeys& program) {
  return std::make_unique<MaskedLmTask>(config, rank, program);
}

}  // namespace trireme
