#include "causal_lm_task.h"

#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr const char* kNoTarget = "every loss_mask is 0";

struct TokenMicroBatch final : MicroBatch {
  TokenBatch tokens;
};

std::vector<std::filesystem::path> paths(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

DecoderConfig read_config(const Config& config) {
  const std::filesystem::path path = config.model.path;
  // For random weights config.json alone is enough, given itself or in a directory.
  if (config.model.init == "random" && std::filesystem::is_regular_file(path)) return read_decoder_config(path);
  return read_model_config(path);
}

std::optional<LoraOptions> lora_options(const Config& config) {
  if (!config.lora) return std::nullopt;
  return LoraOptions{config.lora->r, config.lora->alpha, config.lora->dropout, config.lora->target_modules};
}

}  // namespace

CausalLmTask::CausalLmTask(const Config& config, const RankInfo& info) : config_(config), info_(info) {
  DecoderConfig shape = read_config(config);
  check_sequence_length(shape, config.data.seq_length, "data.seq_length");
  stored_vocab_ = shape.vocab_size;
  shape.vocab_size = resized_vocab(stored_vocab_, config.model.vocab_size, config.model.pad_vocab_to);
  model_ = std::make_unique<DecoderModel>(shape, lora_options(config));
  train_ = open_token_dataset(paths(config.data.train), config.data.seq_length, shape.vocab_size);
  if (!config.data.valid.empty())
    valid_ = open_token_dataset(paths(config.data.valid), config.data.seq_length, shape.vocab_size);
  // An MLPerf run reads no row before its clock runs: the first evaluation finds out.
  if (valid_ && !config.logging.mlperf) require_targets();
  sampler_ = std::make_unique<Sampler>(train_->size(), static_cast<uint64_t>(config.train.seed), config.data.shuffle);
}

void CausalLmTask::require_targets() const {
  for (int64_t row = 0; row < valid_->size(); ++row)
    if (valid_->read(row).num_targets() > 0) return;
  throw without_targets(config_.data.valid, kNoTarget);
}

double CausalLmTask::flops_per_sample() const {
  return model_flops_per_sample(model_->config(), model_->lora(), config_.data.seq_length);
}

void CausalLmTask::fill_plan(const Config& config, PlanInput& input) const {
  const DecoderModel* model = model_.get();
  if (config.lora != config_.lora) {
    auto other = std::make_shared<DecoderModel>(model_->config(), lora_options(config));
    model = other.get();
    input.owner = std::move(other);
  }
  const bool fp8 = config.precision.frozen == "fp8";
  const int64_t length = config.data.seq_length;
  const ActivationBytes bytes = activation_bytes(model->config(), model->lora(), length, {input.compute_bytes, fp8});
  input.units = &model->units();
  input.num_blocks = static_cast<int>(model->config().num_hidden_layers);
  input.rows = static_cast<int>(config.batch.micro_batch_size);
  input.block_saved = bytes.block_saved;
  input.block_saved_mlp = bytes.block_saved_mlp;
  input.block_recomputed = bytes.block_recomputed;
  input.working_peak = bytes.working_peak;
  input.working_fixed = bytes.working_fixed;
  input.head = bytes.head;
  const BlockFlops flops = block_forward_flops(model->config(), length);
  const double rate = fp8 ? kFp8Rate : kBf16Rate;
  input.block_forward_s = flops.matrices / rate + flops.attention / kBf16Rate;
  input.mlp_forward_s = flops.gate_up / rate;
  input.gathered_byte_s = 1 / kGatherRate;
}

std::vector<std::string> CausalLmTask::describe() const {
  const DecoderConfig& c = model_->config();
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "model: {} blocks, hidden {}, {} heads / {} KV heads of {}, FFN {}, vocabulary {}: {} parameters, {} trained",
      c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size,
      c.vocab_size, format_count(num_parameters()), format_count(num_trained_parameters())));
  lines.push_back("train: " + train_->description());
  if (valid_) lines.push_back("valid: " + valid_->description());
  return lines;
}

std::vector<RowSet> CausalLmTask::row_sets() const {
  std::vector<RowSet> sets = {{"data.train", train_->size(), {}, [this](int64_t row) { (void)train_->read(row); }}};
  if (valid_) sets.push_back({"data.valid", valid_->size(), {}, [this](int64_t row) { (void)valid_->read(row); }});
  return sets;
}

double CausalLmTask::nominal_denominator() const {
  const auto samples = static_cast<double>(config_.batch.global_batch_size);
  return config_.train.loss == "token_mean" ? samples * static_cast<double>(config_.data.seq_length - 1) : samples;
}

// --- batches -------------------------------------------------------------------------------------

CausalLmTask::HostBatch CausalLmTask::read_step(int64_t step) {
  HostBatch batch;
  const int64_t size = config_.batch.global_batch_size;
  for (int64_t i = info_.rank; i < size; i += info_.world_size) {
    batch.positions.push_back(step * size + i);
    batch.samples.push_back(train_->read(sampler_->at(batch.positions.back())));
  }
  return batch;
}

void CausalLmTask::prefetch(int64_t step) {
  (void)rows_per_pass_.get();
  ahead_.start(step, [this](int64_t due) { return read_step(due); });
}

std::unique_ptr<MicroBatch> CausalLmTask::to_device(const std::vector<Sample>& samples,
                                                    const std::vector<int64_t>& stream_positions,
                                                    double& denominator) const {
  const auto rows = static_cast<int64_t>(samples.size());
  const int64_t length = config_.data.seq_length;
  const bool pinned = info_.device.is_cuda();
  const auto host = at::TensorOptions().pinned_memory(pinned);
  at::Tensor tokens = at::empty({rows, length}, host.dtype(at::kLong));
  at::Tensor positions = at::empty({rows, length}, host.dtype(at::kLong));
  at::Tensor weights = at::zeros({rows, length}, host.dtype(at::kFloat));
  at::Tensor ids = at::empty({rows}, host.dtype(at::kLong));
  auto batch = std::make_unique<TokenMicroBatch>();
  batch->tokens.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < rows; ++row) {
    const Sample& sample = samples[row];
    std::copy(sample.input_ids.begin(), sample.input_ids.end(), tokens.data_ptr<int64_t>() + row * length);
    ids.data_ptr<int64_t>()[row] = stream_positions[row];
    int64_t* position = positions.data_ptr<int64_t>() + row * length;
    for (size_t s = 0; s < sample.sequence_starts.size(); ++s) {
      const int64_t begin = sample.sequence_starts[s];
      const int64_t end = s + 1 < sample.sequence_starts.size() ? sample.sequence_starts[s + 1] : length;
      for (int64_t t = begin; t < end; ++t) position[t] = t - begin;
      batch->tokens.cu_seqlens.push_back(static_cast<int32_t>(row * length + end));
      batch->tokens.sequence_keys.push_back(stream_positions[row] * length + begin);
    }
    const int64_t targets = sample.num_targets();
    if (targets == 0) continue;
    const bool per_token = config_.train.loss == "token_mean";
    denominator += per_token ? static_cast<double>(targets) : 1.0;
    const float weight = per_token ? 1.0f : static_cast<float>(1.0 / static_cast<double>(targets));
    float* out = weights.data_ptr<float>() + row * length;
    for (int64_t t = 0; t + 1 < length; ++t)
      if (sample.loss_mask[t + 1] != 0) out[t] = weight;
  }
  const auto move = [&](const at::Tensor& tensor) { return tensor.to(info_.device, /*non_blocking=*/true); };
  batch->tokens.tokens_BS = move(tokens);
  batch->tokens.positions_BS = move(positions);
  batch->tokens.loss_weight_BS = move(weights);
  batch->tokens.sample_ids_B = move(ids);
  return batch;
}

StepBatch CausalLmTask::batch(int64_t step) {
  prefetch(step);
  const HostBatch host = ahead_.take();
  StepBatch batch;
  batch.samples = static_cast<double>(host.samples.size());
  const int64_t rows = rows_per_pass_.get();
  for (size_t begin = 0; begin < host.samples.size(); begin += static_cast<size_t>(rows)) {
    const size_t end = std::min(host.samples.size(), begin + static_cast<size_t>(rows));
    batch.micro_batches.push_back(
        to_device({host.samples.begin() + static_cast<long>(begin), host.samples.begin() + static_cast<long>(end)},
                  {host.positions.begin() + static_cast<long>(begin), host.positions.begin() + static_cast<long>(end)},
                  batch.denominator));
  }
  return batch;
}

StepBatch CausalLmTask::synthetic_batch() {
  // Ids of a fixed pattern: every row of the vocabulary is as good as another for timing.
  Sample sample;
  const int64_t vocab = model_->config().vocab_size;
  for (int64_t t = 0; t < config_.data.seq_length; ++t) sample.input_ids.push_back((t * 7919 + 13) % vocab);
  sample.loss_mask.assign(sample.input_ids.size(), 1);
  sample.loss_mask[0] = 0;
  sample.sequence_starts = {0};
  const auto rows = static_cast<size_t>(rows_per_pass_.get());
  StepBatch batch;
  batch.micro_batches.push_back(
      to_device(std::vector<Sample>(rows, sample), std::vector<int64_t>(rows, 0), batch.denominator));
  return batch;
}

at::Tensor CausalLmTask::loss(UnitStore& units, const MicroBatch& batch, const std::vector<Recompute>& recompute,
                              bool train) {
  ForwardOptions options;
  options.train = train;
  options.seed = static_cast<uint64_t>(config_.train.seed);
  options.recompute = recompute;
  return model_->loss(units, static_cast<const TokenMicroBatch&>(batch).tokens, options).loss_sum;
}

EvalSums CausalLmTask::evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) {
  TRIREME_CHECK(valid_ != nullptr, "evaluation without data.valid");
  at::NoGradGuard no_grad;
  const int64_t total = valid_->size(), rows = rows_per_pass_.get();
  const int64_t per_rank = (total + info_.world_size - 1) / info_.world_size;
  const int64_t passes = (per_rank + rows - 1) / rows;
  // Rows that only fill up the last batch: no target, so they count nowhere.
  Sample filler;
  filler.input_ids.assign(config_.data.seq_length, 0);
  filler.loss_mask.assign(config_.data.seq_length, 0);
  filler.sequence_starts = {0};
  double denominator = 0;
  at::Tensor loss = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(info_.device));
  for (int64_t pass = 0; pass < passes; ++pass) {
    std::vector<Sample> samples;
    std::vector<int64_t> positions;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t index = (pass * rows + row) * info_.world_size + info_.rank;
      samples.push_back(index < total ? valid_->read(index) : filler);
      positions.push_back(index);
    }
    const auto batch = to_device(samples, positions, denominator);
    loss.add_(this->loss(units, *batch, {}, /*train=*/false));
    units.release();
    if (progress) progress(pass + 1, passes);
  }
  return {loss.item<double>(), denominator};
}

EvalResult CausalLmTask::eval_result(const EvalSums& sums) const {
  if (sums.at(1) == 0) throw without_targets(config_.data.valid, kNoTarget);
  return {sums.at(0) / sums.at(1), {}};
}

}  // namespace trireme
