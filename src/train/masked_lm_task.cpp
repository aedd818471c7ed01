#include "masked_lm_task.h"

#include "bert_pack.h"
#include "models/bert/weights.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

struct BertMicroBatch final : MicroBatch {
  BertBatch batch;
  at::Tensor counts;  // fp64 [2]: what masked words' and sequences' losses are divided by
};

constexpr const char* kNoMaskedWord = "no word is masked";

/// Of the tokens of a sequence 15 % are masked.
constexpr double kMaskedPart = 0.15;

std::vector<std::filesystem::path> paths(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

template <class T>
at::Tensor to_tensor(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(type).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return host.to(device, /*non_blocking=*/true);
}

BertBatch batch_on(at::Device device, const BertPack& pack) {
  BertBatch batch;
  batch.ids_T = to_tensor(pack.ids, at::kLong, device);
  batch.positions_T = to_tensor(pack.positions, at::kLong, device);
  batch.types_T = to_tensor(pack.types, at::kLong, device);
  batch.token_keys_T = to_tensor(pack.keys, at::kLong, device);
  batch.sequences = make_sequences(pack.boundaries, pack.sequence_keys, device);
  batch.masked_rows_P = to_tensor(pack.masked_rows, at::kLong, device);
  batch.masked_ids_P = to_tensor(pack.masked_ids, at::kLong, device);
  batch.masked_weights_P = to_tensor(pack.masked_weights, at::kFloat, device);
  batch.first_rows_M = to_tensor(pack.first_rows, at::kLong, device);
  batch.next_labels_M = to_tensor(pack.next_labels, at::kLong, device);
  batch.next_weights_M = to_tensor(pack.next_weights, at::kFloat, device);
  return batch;
}

void check_fp8(const BertConfig& shape, const RankInfo& rank) {
  if (!rank.device.is_cuda()) return;  // emulated: any shape
  if (!has_kernels(rank.device))
    throw ConfigError(
        fmt::format("precision.encoder fp8 needs a GPU of compute capability 9.0, which {} is not: leave it at compute",
                    rank.device.str()));
  if (rank.compute_dtype == at::kFloat)
    throw ConfigError("precision.encoder fp8 goes with precision.compute bf16 or fp16 on a GPU, not with fp32");
  if (shape.hidden_size % 16 != 0 || shape.intermediate_size % 16 != 0)
    throw ConfigError(fmt::format(
        "precision.encoder fp8 needs widths that are multiples of 16: hidden_size is {}, intermediate_size {}",
        shape.hidden_size, shape.intermediate_size));
}

}  // namespace

MaskedLmTask::MaskedLmTask(const Config& config, const RankInfo& rank) : config_(config), rank_(rank) {
  const BertConfig shape = read_bert_config(bert_config_path(config.model.path));
  if (config.data.seq_length > shape.max_position_embeddings)
    throw ConfigError(fmt::format("data.seq_length {} is more than the model's max_position_embeddings {}",
                                  config.data.seq_length, shape.max_position_embeddings));
  model_ = std::make_unique<BertModel>(shape, config.model.pad_vocab_to.value_or(kDefaultVocabMultiple));
  if (config.precision.encoder == "fp8") check_fp8(shape, rank);
  train_ = open_bert_dataset(paths(config.data.train), config.data.seq_length, shape.vocab_size);
  if (!config.data.valid.empty()) {
    valid_ = open_bert_dataset(paths(config.data.valid), config.data.seq_length, shape.vocab_size);
    eval_rows_ = valid_->size();
    if (config.eval.samples) {
      if (valid_->sequences() != valid_->size())
        throw ConfigError("eval.samples counts sequences: it needs data.valid with one sequence a row, not packs");
      if (*config.eval.samples > eval_rows_)
        throw ConfigError(
            fmt::format("eval.samples {} is more than the {} samples of data.valid", *config.eval.samples, eval_rows_));
      eval_rows_ = *config.eval.samples;
    }
  }
  // An MLPerf run reads no row before its clock runs: the first evaluation finds out.
  if (valid_ && !config.logging.mlperf) require_targets();
  sampler_ = std::make_unique<BertSampler>(*train_, static_cast<uint64_t>(config.train.seed), config.data.shuffle);
}

void MaskedLmTask::require_targets() const {
  for (int64_t row = 0; row < eval_rows_; ++row)
    if (!valid_->read(row).masked_positions.empty()) return;
  throw without_targets(config_.data.valid, kNoMaskedWord);
}

double MaskedLmTask::flops_per_row(int64_t length) const {
  const double sequences = static_cast<double>(train_->sequences()) / static_cast<double>(train_->size());
  return bert_flops_per_row(model_->config(), length, sequences, kMaskedPart * static_cast<double>(length));
}

void MaskedLmTask::fill_plan(const Config& config, PlanInput& input) const {
  const int64_t length = config.data.seq_length;
  const BertActivationBytes bytes = bert_activation_bytes(model_->config(), length, input.compute_bytes,
                                                          model_->padded_vocab(), config.precision.encoder == "fp8");
  input.units = &model_->units();
  input.num_blocks = static_cast<int>(model_->config().num_hidden_layers);
  input.rows = static_cast<int>(config.batch.micro_batch_size);
  input.block_saved = bytes.layer_saved;
  input.block_recomputed = bytes.layer_recomputed;
  input.working_peak = bytes.working_peak;
  input.working_fixed = bytes.working_fixed;
  input.head = bytes.head;
  input.block_forward_s = flops_per_row(length) / 3 / static_cast<double>(input.num_blocks) / kBf16Rate;
  input.gathered_byte_s = 1 / kGatherRate;
}

std::vector<std::string> MaskedLmTask::describe() const {
  const BertConfig& c = model_->config();
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "model: {} of {} layers, hidden {}, {} heads of {}, FFN {}, vocabulary {} (padded to {}), GELU {}: {} parameters",
      c.next_sentence ? "BertForPreTraining" : "BertForMaskedLM", c.num_hidden_layers, c.hidden_size,
      c.num_attention_heads, c.head_dim(), c.intermediate_size, c.vocab_size, model_->padded_vocab(),
      c.gelu_tanh ? "by tanh" : "by erf", format_count(num_parameters())));
  lines.push_back("train: " + train_->description());
  if (valid_)
    lines.push_back(fmt::format("valid: {}{}", valid_->description(),
                                config_.eval.samples ? fmt::format(", the first {}", format_count(eval_rows_)) : ""));
  return lines;
}

std::vector<RowSet> MaskedLmTask::row_sets() const {
  const auto set = [](const char* name, const BertDataset& data) {
    return RowSet{name, data.size(), data.shard_rows(), [&data](int64_t row) { (void)data.read(row); }};
  };
  std::vector<RowSet> sets = {set("data.train", *train_)};
  if (valid_) sets.push_back(set("data.valid", *valid_));
  return sets;
}

std::optional<double> MaskedLmTask::nominal_samples_per_step() const {
  return static_cast<double>(config_.batch.global_batch_size) * config_.batch.packing_rate;
}

// --- batches -------------------------------------------------------------------------------------

int64_t MaskedLmTask::padding() const {
  // Few different shapes keep the allocator's and the libraries' choices; a CPU's products take any.
  constexpr int64_t kTokens = 256;
  return rank_.device.is_cuda() ? kTokens : 1;
}

std::vector<BertPack> MaskedLmTask::read_step(int64_t step, int64_t rows_per_pass) {
  const int64_t size = config_.batch.global_batch_size;
  std::vector<BertRow> rows;
  std::vector<int64_t> positions;
  for (int64_t i = rank_.rank; i < size; i += rank_.world_size) {
    positions.push_back(step * size + i);
    rows.push_back(train_->read(sampler_->at(positions.back())));
  }
  std::vector<BertPack> packs;
  const auto per_pass = static_cast<size_t>(rows_per_pass);
  for (size_t begin = 0; begin < rows.size(); begin += per_pass) {
    const auto first = static_cast<std::ptrdiff_t>(begin),
               last = static_cast<std::ptrdiff_t>(std::min(rows.size(), begin + per_pass));
    packs.push_back(make_pack({rows.begin() + first, rows.begin() + last},
                              {positions.begin() + first, positions.begin() + last},
                              {config_.data.seq_length, padding(), config_.train.loss == "sample_mean"}));
  }
  return packs;
}

void MaskedLmTask::prefetch(int64_t step) {
  ahead_.start(step, [this, rows = rows_per_pass_.get()](int64_t due) { return read_step(due, rows); });
}

StepBatch MaskedLmTask::to_device(const std::vector<BertPack>& packs) const {
  double words = 0, sequences = 0;
  for (const BertPack& pack : packs) {
    words += pack.words;
    sequences += pack.sequences;
  }
  StepBatch step;
  step.samples = sequences;
  step.denominator = 1.0 / rank_.world_size;  // the losses come normalised
  const std::string& mean = config_.train.loss;
  if (mean == "sample_mean") words = sequences;
  const bool own = mean == "rank_mean";  // every rank's mean weighs the same
  const double share = own ? rank_.world_size : 1;
  const at::Tensor counts =
      to_tensor<double>({std::max(1.0, words) * share, std::max(1.0, sequences) * share}, at::kDouble, rank_.device);
  for (const BertPack& pack : packs) {
    auto batch = std::make_unique<BertMicroBatch>();
    batch->batch = batch_on(rank_.device, pack);
    batch->counts = counts;
    step.micro_batches.push_back(std::move(batch));
  }
  if (!own) step.counts = counts;
  return step;
}

StepBatch MaskedLmTask::batch(int64_t step) {
  prefetch(step);
  return to_device(ahead_.take());
}

StepBatch MaskedLmTask::synthetic_batch() {
  // Two sequences a row, ids of a fixed pattern, every seventh word masked: as good as another for timing.
  const auto length = static_cast<int32_t>(config_.data.seq_length), first = length / 2;
  BertRow row;
  for (int32_t t = 0; t < length; ++t) {
    row.input_ids.push_back(static_cast<int32_t>((int64_t{t} * 7919 + 13) % model_->config().vocab_size));
    row.segment_ids.push_back(0);
    if (t % 7 != 3) continue;
    row.masked_positions.push_back(t);
    row.masked_ids.push_back(row.input_ids.back());
  }
  row.sequence_lengths = first > 0 ? std::vector<int32_t>{first, length - first} : std::vector<int32_t>{length};
  row.next_sentence_labels.assign(row.sequence_lengths.size(), 0);
  const auto rows = static_cast<size_t>(rows_per_pass_.get());
  return to_device({make_pack(std::vector<BertRow>(rows, row), std::vector<int64_t>(rows, 0),
                              {config_.data.seq_length, padding(), config_.train.loss == "sample_mean"})});
}

at::Tensor MaskedLmTask::loss(UnitStore& units, const MicroBatch& micro_batch, const std::vector<Recompute>& recompute,
                              bool train) {
  const auto& mine = static_cast<const BertMicroBatch&>(micro_batch);
  BertBatch batch = mine.batch;
  batch.masked_weights_P = batch.masked_weights_P.div(mine.counts[0]).to(at::kFloat);
  batch.next_weights_M = batch.next_weights_M.div(mine.counts[1]).to(at::kFloat);
  BertForward options;
  options.train = train;
  options.seed = static_cast<uint64_t>(config_.train.seed);
  options.recompute = recompute;
  return model_->loss(units, batch, options);
}

// --- evaluation ----------------------------------------------------------------------------------

void MaskedLmTask::read_evaluation() {
  // As many sequences at a time as a packed micro-batch has; the same number of passes on every rank.
  const auto rows =
      static_cast<int64_t>(std::ceil(static_cast<double>(rows_per_pass_.get()) * config_.batch.packing_rate));
  const int64_t per_rank = (eval_rows_ + rank_.world_size - 1) / rank_.world_size,
                passes = (per_rank + rows - 1) / rows;
  std::vector<BertPack> packs;
  for (int64_t pass = 0; pass < passes; ++pass) {
    std::vector<BertRow> read;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t index = (pass * rows + i) * rank_.world_size + rank_.rank;
      if (index < eval_rows_) {
        read.push_back(valid_->read(index));
        positions.push_back(index);
      } else if (read.empty()) {
        read.push_back(filler_row());
        positions.push_back(-1);
      }
    }
    packs.push_back(make_pack(read, positions, {config_.data.seq_length, padding(), /*per_sequence=*/false}));
    evaluated_words_ += packs.back().words;
    evaluated_sequences_ += packs.back().sequences;
  }
  evaluation_ = to_device(packs);
}

EvalSums MaskedLmTask::evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) {
  TRIREME_CHECK(valid_ != nullptr, "evaluation without data.valid");
  at::NoGradGuard no_grad;
  if (evaluation_.micro_batches.empty()) read_evaluation();
  at::Tensor sums = at::zeros({3}, at::TensorOptions().dtype(at::kDouble).device(rank_.device));
  const auto passes = static_cast<int64_t>(evaluation_.micro_batches.size());
  for (int64_t pass = 0; pass < passes; ++pass) {
    const auto& mine = static_cast<const BertMicroBatch&>(*evaluation_.micro_batches[static_cast<size_t>(pass)]);
    const BertScore score = model_->score(units, mine.batch);
    sums.add_(at::stack({score.masked_loss, score.next_loss, score.hits}));
    units.release();
    if (progress) progress(pass + 1, passes);
  }
  const at::Tensor host = sums.to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  return {values[0], evaluated_words_, values[1], evaluated_sequences_, values[2]};
}

EvalResult MaskedLmTask::eval_result(const EvalSums& sums) const {
  if (sums.at(1) == 0) throw without_targets(config_.data.valid, kNoMaskedWord);
  const double words = sums.at(1), sequences = std::max(1.0, sums.at(3));
  return {sums[0] / words + sums[2] / sequences, sums.at(4) / words};
}

std::unique_ptr<TrainingTask> make_masked_lm_task(const Config& config, int rank, int world_size, at::Device device,
                                                  at::ScalarType compute_dtype) {
  return std::make_unique<MaskedLmTask>(config, RankInfo{rank, world_size, device, compute_dtype});
}

}  // namespace trireme
