#include "causal_lm_task.h"

#include "models/decoder/vocabulary.h"
#include "trireme/base/text.h"
#include "trireme/train/model_family.h"
#include "trireme/train/precision.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace trireme {

namespace {

struct TokenMicroBatch final : MicroBatch {
  TokenBatch tokens;
};

DecoderConfig read_shape(const Config& config) {
  const std::filesystem::path path = config.model.path;
  // For random weights config.json alone is enough, given itself or in a directory.
  if (config.model.init == "random" && std::filesystem::is_regular_file(path)) return read_decoder_config(path);
  return read_model_config(path);
}

std::optional<LoraOptions> lora_options(const Config& config) {
  if (!config.lora) return std::nullopt;
  return LoraOptions{config.lora->r, config.lora->alpha, config.lora->dropout, config.lora->target_modules};
}

std::unique_ptr<MicroBatch> token_batch_on(at::Device device, const TokenPack& pack) {
  auto batch = std::make_unique<TokenMicroBatch>();
  const std::vector<int64_t> shape = {pack.rows, pack.length};
  batch->tokens.cu_seqlens = pack.boundaries;
  batch->tokens.sequence_keys = pack.sequence_keys;
  batch->tokens.tokens_BS = to_tensor(pack.tokens, device).view(shape);
  batch->tokens.positions_BS = to_tensor(pack.positions, device).view(shape);
  batch->tokens.loss_weight_BS = to_tensor(pack.loss_weights, device).view(shape);
  batch->tokens.sample_ids_B = to_tensor(pack.sample_ids, device);
  return batch;
}

}  // namespace

CausalLmTask::CausalLmTask(const Config& config, const RankInfo& rank, const ConfigFamily& family)
    : RowTask(config, rank) {
  DecoderConfig shape = read_shape(config);
  check_sequence_length(shape, config.data.seq_length, "data.seq_length");
  stored_vocab_ = shape.vocab_size;
  shape.vocab_size =
      resized_vocab(stored_vocab_, config.model.vocab_size, config.model.pad_vocab_to.value_or(family.vocab_multiple));
  model_ = std::make_unique<DecoderModel>(shape, lora_options(config));
  if (trained_recipe(config) != Recipe::kCompute)
    check_fp8_training(rank, {{"hidden_size", shape.hidden_size},
                              {"intermediate_size", shape.intermediate_size},
                              {"the queries' width", shape.num_attention_heads * shape.head_dim},
                              {"the keys' width", shape.num_key_value_heads * shape.head_dim},
                              {"the tokens of a micro-batch", config.batch.micro_batch_size * config.data.seq_length}});
  open_rows();

  const bool per_token = config.train.loss == "token_mean";
  const auto samples = static_cast<double>(config.batch.global_batch_size);
  facts_.units = &model_->units();
  facts_.parameters = model_->num_parameters();
  facts_.trained_parameters = model_->num_trained_parameters();
  facts_.flops_per_row = model_flops_per_sample(shape, model_->lora(), config.data.seq_length);
  facts_.nominal_denominator = per_token ? samples * static_cast<double>(config.data.seq_length - 1) : samples;
  facts_.takes_adapters = family.features.has(Feature::kAdapters);
  facts_.description.insert(
      facts_.description.begin(),
      fmt::format(
          "model: {} blocks, hidden {}, {} heads / {} KV heads of {}, FFN {}, vocabulary {}: {} parameters, {} trained",
          shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads,
          shape.head_dim, shape.intermediate_size, shape.vocab_size, format_count(facts_.parameters),
          format_count(facts_.trained_parameters)));
}

void CausalLmTask::open_rows() {
  const int64_t length = config_.data.seq_length, vocab = model_->config().vocab_size;
  const auto open = [&](const std::vector<std::string>& files) -> std::shared_ptr<const TokenDataset> {
    return open_token_dataset(paths(files), length, vocab);
  };
  const auto set = [](const char* name, const std::shared_ptr<const TokenDataset>& data) {
    return RowSet{name, data->size(), {}, [data](int64_t row) { (void)data->read(row); }};
  };
  RowSource<Sample, TokenPack> rows;
  const auto train = open(config_.data.train);
  const auto sampler = std::make_shared<Sampler>(train->size(), seed(), config_.data.shuffle);
  rows.train = [train, sampler](int64_t position) { return train->read(sampler->at(position)); };
  rows.sets.push_back(set("data.train", train));
  facts_.train_rows = facts_.train_samples = train->size();
  facts_.description.push_back("train: " + train->description());
  if (!config_.data.valid.empty()) {
    const auto valid = open(config_.data.valid);
    rows.valid = [valid](int64_t index) { return valid->read(index); };
    rows.valid_rows = facts_.eval_samples = valid->size();
    rows.sets.push_back(set("data.valid", valid));
    facts_.description.push_back("valid: " + valid->description());
  }
  rows.collate = [per_token = config_.train.loss == "token_mean"](const std::vector<Sample>& samples,
                                                                  const std::vector<int64_t>& positions, bool) {
    return make_token_pack(samples, positions, per_token);
  };
  rows.has_target = [](const Sample& sample) { return sample.num_targets() > 0; };
  rows.without_target = "every loss_mask is 0";
  rows.filler = filler_sample(length);
  rows.pattern = pattern_sample(length, vocab);
  rows.whole_passes = true;  // one shape for all of them
  set_rows(std::move(rows));
}

void CausalLmTask::fill_plan(const Config& config, PlanInput& input) const {
  const DecoderModel* model = model_.get();
  if (config.lora != config_.lora) {
    auto other = std::make_shared<DecoderModel>(model_->config(), lora_options(config));
    model = other.get();
    input.owner = std::move(other);
  }
  const bool fp8 = config.precision.linear == "fp8";
  const int64_t length = config.data.seq_length;
  const ActivationBytes bytes = activation_bytes(model->config(), model->lora(), length,
                                                 {.element_size = input.compute_bytes,
                                                  .frozen_fp8 = frozen_recipe(config) == Recipe::kFp8Frozen,
                                                  .trained_fp8 = trained_recipe(config) != Recipe::kCompute});
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

StepBatch CausalLmTask::to_device(const std::vector<TokenPack>& passes) const {
  StepBatch batch;
  for (const TokenPack& pack : passes) {
    batch.samples += static_cast<double>(pack.rows);
    batch.denominator += pack.denominator;
    batch.micro_batches.push_back(token_batch_on(rank_.device, pack));
  }
  return batch;
}

at::Tensor CausalLmTask::loss(UnitStore& units, const MicroBatch& batch, const std::vector<Recompute>& recompute,
                              bool train) {
  ForwardOptions options;
  options.train = train;
  options.seed = seed();
  options.recompute = recompute;
  return model_->loss(units, static_cast<const TokenMicroBatch&>(batch).tokens, options).loss_sum;
}

at::Tensor CausalLmTask::score(UnitStore& units, const MicroBatch& batch) {
  return loss(units, batch, {}, /*train=*/false).view({1});
}

EvalResult CausalLmTask::eval_result(const EvalSums& sums) const {
  if (sums.at(1) == 0) throw without_targets(config_.data.valid, rows().without_target);
  return {sums.at(0) / sums.at(1), {}};
}

std::unique_ptr<TrainingTask> make_causal_lm_task(const Config& config, const RankInfo& rank,
                                                  const ConfigFamily& family) {
  return std::make_unique<CausalLmTask>(config, rank, family);
}

}  // namespace trireme
