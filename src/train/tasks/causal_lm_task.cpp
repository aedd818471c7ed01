#include "causal_lm_task.h"

#include "data/tokenizer/packed_with.h"
#include "models/common/stored.h"
#include "models/decoder/adapter.h"
#include "models/decoder/model_directory.h"
#include "models/decoder/vocabulary.h"
#include "models/decoder/weights.h"
#include "preference_task.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/config/mlperf_rules.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/ops/attention.h"
#include "trireme/plan/cost.h"
#include "trireme/plan/precision.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace trireme {

namespace {

struct TokenMicroBatch final : MicroBatch {
  TokenBatch tokens;
};

DecoderConfig read_shape(const Config& config) {
  const std::filesystem::path path = config.model.path;
  return config.model.init == ModelSection::Init::kRandom ? read_model_shape(path) : read_model_config(path);
}

/// `positions`: of the model as its directory has it.
void warn_of_new_positions(const Config& config, const DecoderConfig& shape, int64_t positions) {
  log_warn(fmt::format(
      "data.seq_length {} is beyond the model's max_position_embeddings {}: rotary positions from {} on are new to "
      "the model; {}",
      config.data.seq_length, positions, positions,
      config.lora ? fmt::format("to serve the adapter set max_position_embeddings: {} in the base's config.json",
                                config.data.seq_length)
                  : fmt::format("model/config.json will say {}{}", config.data.seq_length,
                                shape.family == "phi3" && shape.rope.scaling == RopeFrequencies::Scaling::kLongrope
                                    ? ", and only transformers 5 will read it"
                                    : "")));
}

void warn_of_slow_attention(const Config& config, const DecoderConfig& shape, const RankInfo& rank) {
  bool windows = true;  // in all blocks, shorter than a row
  for (int64_t block = 0; block < shape.num_hidden_layers; ++block) windows = windows && shape.has_window(block);
  windows = windows && *shape.sliding_window < config.data.seq_length;
  const bool dropout =
      shape.attention_dropout > 0 && (config.train.objective == TrainSection::Objective::kSft ||
                                      !config.preference.value_or(PreferenceSection()).disable_dropout);
  if (const char* why =
          fp8_obstacle(rank.device, rank.compute_dtype, shape.head_dim, dropout, windows, config.data.seq_length))
    log_warn(
        std::string("precision.attention fp8 rounds queries, keys and values to FP8 and is no faster than compute: ") +
        why);
}

/// The tokens whose weight is not 0, and the first others that make their number a multiple; empty: nearly all tokens,
/// so that to pick them is not worth it.
std::vector<int64_t> rows_with_loss(const std::vector<float>& weights, int64_t multiple) {
  const int64_t tokens = std::ssize(weights), counted = tokens - std::ranges::count(weights, 0.0f),
                wanted = round_up(std::max<int64_t>(counted, 1), multiple);
  if (wanted > tokens / 16 * 15) return {};
  std::vector<int64_t> rows;
  int64_t others = wanted - counted;
  for (int64_t t = 0; t < tokens; ++t)
    if (weights[static_cast<size_t>(t)] != 0 || others-- > 0) rows.push_back(t);
  return rows;
}

}  // namespace

TokenBatch token_batch_on(at::Device device, const TokenPack& pack, const std::vector<float>& loss_weights) {
  TokenBatch batch;
  const std::vector<int64_t> shape = {pack.rows, pack.length};
  batch.cu_seqlens = pack.boundaries;
  batch.sequence_keys = pack.sequence_keys;
  batch.tokens_BS = copy_to_device(pack.tokens, device).view(shape);
  if (!pack.labels.empty()) batch.labels_BS = copy_to_device(pack.labels, device).view(shape);
  batch.positions_BS = copy_to_device(pack.positions, device).view(shape);
  batch.loss_weight_BS = copy_to_device(loss_weights, device).view(shape);
  if (const std::vector<int64_t> rows = rows_with_loss(loss_weights, row_multiple(device)); !rows.empty())
    batch.loss_rows_R = copy_to_device(rows, device);
  batch.sample_ids_B = copy_to_device(pack.sample_ids, device);
  return batch;
}

CausalLmTask::CausalLmTask(const Config& config, const RankInfo& rank, const ProgramKeys& program)
    : RowTask(config, rank) {
  DecoderConfig shape = read_shape(config);
  auto found = shape_facts(shape);
  shape.fp8_attention = config.precision.attention == PrecisionSection::Attention::kFp8;
  check_sequence_length(shape, config.data.seq_length, "data.seq_length");
  if (const int64_t positions = shape.max_position_embeddings;
      extend_positions(shape, config.data.seq_length) && !rank.plan_only && rank.grid.world.rank == 0)
    warn_of_new_positions(config, shape, positions);
  if (shape.fp8_attention && rank.device.is_cuda() && !rank.plan_only && rank.grid.world.rank == 0)
    warn_of_slow_attention(config, shape, rank);
  shape.scaled_residual_init = config.model.scaled_residual_init.value_or(shape.scaled_residual_init);
  stored_vocab_ = shape.vocab_size;
  shape.vocab_size =
      resized_vocab(stored_vocab_, config.model.vocab_size, config.model.pad_vocab_to.value_or(program.vocab_multiple));
  data_vocab_ = config.model.vocab_size.value_or(stored_vocab_);
  std::optional<LoraOptions> lora = config.lora;
  if (lora) {
    const AddedRows added = added_rows(config.model.path, stored_vocab_, data_vocab_);
    train_added_rows(added, shape, *lora);
    if (!added.ids.empty()) {
      const int64_t first = added.ids.front(), last = added.ids.back(), count = std::ssize(added.ids);
      facts_.description.push_back(
          fmt::format("vocabulary: {}rows {} to {} were added to the base and are trained beside the adapters{}",
                      count == last - first + 1 ? "" : fmt::format("{} of the ", count), first, last,
                      added.tokens.empty() ? "" : ": " + added.tokens));
    }
  }
  model_ = std::make_unique<DecoderModel>(shape, std::move(lora));
  if (shape.tie_word_embeddings && !model_->tied() && shape.vocab_size > stored_vocab_)
    throw ConfigError(
        "new rows of the vocabulary, and an output matrix that lora.modules_to_save makes another than the embedding: "
        "set "
        "lora.ensure_weight_tying to true, or write the larger model first (trireme model resize-vocab)");
  const std::vector<std::pair<const char*, int64_t>> sizes = {
      {"hidden_size", shape.hidden_size},
      {"intermediate_size", shape.intermediate_size},
      {"the queries' width", shape.num_attention_heads * shape.head_dim},
      {"the keys' width", shape.num_key_value_heads * shape.head_dim}};
  const RecipeTraits &frozen = traits_of(Recipe::kFp8Frozen),
                     &trained = traits_of(chosen_fp8_recipe(config, facts_.automatic_fp8));
  facts_.frozen_fp8 = fp8_problem(rank, frozen, sizes).empty();
  facts_.trained_fp8 = program.features.has(Feature::kFp8Training) && fp8_problem(rank, trained, sizes).empty();
  const std::string blocks = nf4_problem(model_->units());
  facts_.frozen_nf4 = config.lora && blocks.empty();
  if (frozen_nf4(config) && !blocks.empty()) throw ConfigError(blocks);
  if (block_recipe(config, facts_.automatic_fp8) != Recipe::kCompute) {
    const int64_t tokens = config.batch.micro_batch_size * config.data.seq_length / rank.grid.context.size;
    if (const std::string problem = fp8_problem(rank, config.lora ? frozen : trained, sizes, tokens); !problem.empty())
      throw ConfigError(problem);
  }
  if (!rank.plan_only) {
    format_ = &row_format("data.train", config.data.train);
    open_rows();
    if (rank.grid.world.rank == 0) {
      warn_of_tokenizers();
      if (packs_samples())
        facts_.description.emplace_back(
            "loss: sample_mean: each row has the same weight, however many sequences are packed in it and however few "
            "targets they have; train.loss: token_mean gives each target the same");
      if (!config.eval.prompts.empty())
        facts_.description.push_back(prompts_.emplace(config, shape, tokens_at_once()).description());
    }
    found.insert(found.end(), {{"format of data.train", format_->labels ? "Megatron" : "rows"},
                               {"rows of data.train", std::to_string(facts_.train_rows)},
                               {"rows of data.valid", std::to_string(facts_.eval_samples)}});
    facts_.mlperf_division = check_mlperf_model(config, program, found);
  }

  const bool per_token = config.train.loss == TrainSection::Loss::kTokenMean;
  const auto samples = static_cast<double>(config.batch.global_batch_size);
  facts_.units = &model_->units();
  facts_.divides_rows =
      program.features.has(Feature::kContext) && config.train.objective == TrainSection::Objective::kSft;
  facts_.parameters = model_->num_parameters();
  facts_.trained_parameters = model_->num_trained_parameters();
  facts_.flops = RowFlops(model_->shape(config.data.seq_length, /*element_size=*/1));
  facts_.nominal_denominator =
      per_token
          ? samples * static_cast<double>(config.data.seq_length - (format_ != nullptr && format_->labels ? 0 : 1))
          : samples;
  if (program.features.has(Feature::kAdapters)) facts_.adapter_targets = default_lora_targets(model_->block());
  facts_.description.insert(
      facts_.description.begin(),
      fmt::format(
          "model: {} blocks, hidden {}, {} heads / {} KV heads of {}, FFN {}, vocabulary {}: {} parameters, {} trained",
          shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, shape.num_key_value_heads,
          shape.head_dim, shape.intermediate_size, shape.vocab_size, format_count(facts_.parameters),
          format_count(facts_.trained_parameters)));
  if (frozen_nf4(config)) facts_.description.push_back(nf4_description(model_->units(), rank.compute_dtype));
}

SplitRows<Sample> CausalLmTask::open_split(Split split) const {
  return trireme::open_rows(config_, split, *format_,
                            {data_vocab_, stored_vocab_, rank_.grid.data.rank, rank_.grid.data.size});
}

void CausalLmTask::open_rows() {
  RowSource<Sample, TokenPack> rows;
  rows.train = open_split(Split::kTrain);
  rows.valid = open_split(Split::kValid);
  rows.test = open_split(Split::kTest);
  const bool pairs = config_.train.objective != TrainSection::Objective::kSft;
  rows.collate = [per_token = pairs || config_.train.loss == TrainSection::Loss::kTokenMean,
                  context = rank_.grid.context](const std::vector<Sample>& samples,
                                                const std::vector<int64_t>& positions, bool) {
    TokenPack pack = make_token_pack(samples, positions, per_token);
    if (context.size > 1) pack = token_slice(std::move(pack), context.rank, context.size);
    return pack;
  };
  rows.has_target = [](const Sample& sample) { return sample.num_targets() > 0; };
  rows.without_target = format_->without_target;
  rows.all_starts = [](const Sample& sample) { return sample.sequence_starts.size() == sample.input_ids.size(); };
  rows.filler = filler_sample(config_.data.seq_length);
  rows.pattern = pattern_sample(config_.data.seq_length, data_vocab_);
  if (format_->labels) {
    rows.filler = with_labels(std::move(rows.filler));
    rows.pattern = with_labels(std::move(rows.pattern));
  }
  rows.whole_passes = true;  // one shape for all of them
  set_rows(std::move(rows));
}

bool CausalLmTask::packs_samples() const {
  // MLPerf's rules: no data is read before the run starts.
  const SplitRows<Sample>& train = rows().train;
  if (config_.train.loss != TrainSection::Loss::kSampleMean || config_.logging.mlperf || !train.of_files ||
      config_.train.objective != TrainSection::Objective::kSft)
    return false;
  constexpr int64_t kRows = 8;
  for (int64_t row = 0; row < std::min(kRows, train.there); ++row) {
    Sample sample;
    try {
      sample = train.of_files(row);
    } catch (const DataError&) {
      return false;  // the check of all rows says it
    }
    int64_t with_targets = 0;
    for (size_t i = 0; i < sample.sequence_starts.size(); ++i) {
      const auto begin = sample.loss_mask.begin() + sample.sequence_starts[i];
      const auto end = i + 1 < sample.sequence_starts.size() ? sample.loss_mask.begin() + sample.sequence_starts[i + 1]
                                                             : sample.loss_mask.end();
      with_targets += std::any_of(begin, end, [](uint8_t target) { return target != 0; }) ? 1 : 0;
    }
    if (with_targets > 1) return true;
  }
  return false;
}

void CausalLmTask::warn_of_tokenizers() const {
  std::vector<std::filesystem::path> files;
  for (const auto& list : {config_.data.train, config_.data.valid, config_.data.test})
    files.insert(files.end(), list.begin(), list.end());
  std::filesystem::path model = config_.model.path;
  if (std::filesystem::is_regular_file(model)) model = model.parent_path();  // config.json alone
  try {
    for (const std::string& sentence : packed_with_others(files, model)) log_warn(sentence);
  } catch (const Error& error) {
    log_warn(fmt::format("whether the rows are of the model's tokenizer is not known: {}", error.what()));
  }
}

RunFiles CausalLmTask::files() const {
  const std::filesystem::path model = config_.model.path;
  return {to_paths(row_files(config_.data.train)),
          std::filesystem::is_directory(model) ? model / "config.json" : model,
          row_tokenizer(config_),
          to_paths(row_files(split_keys(config_, Split::kValid).files)),
          rows().valid.there,
          to_paths(row_files(split_keys(config_, Split::kTest).files)),
          {},
          !token_rows_.empty()};
}

ModelShape CausalLmTask::model_shape(const Config& config, int64_t element_size) const {
  if (config.lora == config_.lora) return model_->shape(config.data.seq_length, element_size);
  std::optional<LoraOptions> lora = config.lora;
  if (lora && model_->lora()) lora->trainable_token_indices = model_->lora()->trainable_token_indices;
  const auto other = std::make_shared<const DecoderModel>(model_->config(), std::move(lora));
  ModelShape shape = other->shape(config.data.seq_length, element_size);
  shape.owner = other;
  return shape;
}

double CausalLmTask::row_flops(const std::vector<TokenPack>& passes) const {
  double sum = 0, rows = 0;
  for (const TokenPack& pack : passes) {
    const auto count = static_cast<int64_t>(pack.sample_ids.size());
    sum += static_cast<double>(count) * facts_.flops.mean(count, pack.boundaries);
    rows += static_cast<double>(count);
  }
  return sum / rows;
}

StepBatch CausalLmTask::to_device(const std::vector<TokenPack>& passes) const {
  StepBatch batch;
  batch.row_flops = row_flops(passes);
  for (const TokenPack& pack : passes) {
    // Of the ranks that share rows, one counts them.
    if (rank_.grid.context.rank == 0) batch.samples += static_cast<double>(pack.sample_ids.size());
    batch.denominator += counts(pack)[0];
    auto micro_batch = std::make_unique<TokenMicroBatch>();
    micro_batch->tokens = token_batch_on(rank_.device, pack, pack.loss_weights);
    batch.micro_batches.push_back(std::move(micro_batch));
  }
  return batch;
}

at::Tensor CausalLmTask::loss(UnitStore& units, const MicroBatch& batch, const Recomputation& recompute, bool train) {
  ForwardOptions options;
  options.train = train;
  options.seed = seed();
  options.recompute = recompute;
  options.neftune_alpha = config_.train.neftune_alpha;
  options.smoothing = {config_.train.label_smoothing, data_vocab_};
  options.exchange = rank_.exchange;
  return model_->loss(units, static_cast<const TokenMicroBatch&>(batch).tokens, options);
}

at::Tensor CausalLmTask::score(UnitStore& units, const MicroBatch& batch) {
  return loss(units, batch, {}, /*train=*/false).view({1});
}

std::vector<SampledText> CausalLmTask::sample(ShardedUnits& units, Communicator& comm,
                                              const std::function<void(int64_t, int64_t)>& progress) {
  if (config_.eval.prompts.empty()) return {};
  // Rank 0 has the tokenizer, and chooses: with sharded weights all ranks need the same passes.
  using Given = std::pair<std::vector<std::vector<int32_t>>, std::vector<int64_t>>;
  const Given own = prompts_ ? Given(prompts_->ids(), prompts_->options().ends) : Given();
  const auto [texts, ends] = nlohmann::json::parse(comm.all_gather_host(nlohmann::json(own).dump())[0]).get<Given>();
  GenerationOptions options;
  if (prompts_) options = prompts_->options();
  options.max_new_tokens = config_.eval.max_new_tokens;
  options.pass_tokens = tokens_at_once();
  options.ends = ends;
  GenerationSteps steps;
  steps.agree = [&](std::vector<int64_t>& ids) {
    const at::Tensor tensor = copy_to_device(ids, rank_.device);
    comm.broadcast(tensor, 0)->wait();
    const at::Tensor host = tensor.to(at::kCPU);
    std::copy_n(host.const_data_ptr<int64_t>(), ids.size(), ids.begin());
  };
  steps.pass = [&](int64_t done, int64_t total) {
    units.release();
    progress(done, total);
  };
  const auto answers = generate(*model_, units, rank_.device, texts, options, steps);
  return prompts_ ? prompts_->texts(answers) : std::vector<SampledText>();
}

EvalResult CausalLmTask::eval_result(const EvalSums& sums, Split split) const {
  if (sums.at(1) == 0) throw without_targets(config_, split, rows().without_target);
  return {sums.at(0) / sums.at(1), {}};
}

void CausalLmTask::check_start() {
  const bool random = config_.model.init == ModelSection::Init::kRandom, named = config_.lora && config_.lora->adapter;
  std::string warning = random || named ? "" : ignored_adapter(config_.model.path);
  if (random && config_.lora) warning = "model.init random: the adapter is of random weights, which are not kept";
  if (!warning.empty() && rank_.grid.world.rank == 0) log_warn(warning);
  // Before the weights: the rows of the vocabulary that an adapter holds are read in place of the base model's.
  if (!named) return;
  const std::string& path = *config_.lora->adapter;
  const Adapter start = read_adapter(path, model_->config());
  try {
    adapter_ = import_adapter(start, *model_);
  } catch (const ModelError& error) {
    throw ModelError(fmt::format("lora.adapter {}: {}", path, error.what()));
  }
  token_rows_ = start.token_rows;
  if (!start.base.empty()) check_base_tensors(start, *open_weights());
  if (const std::string other = other_base(start, config_.model.path, "model.path");
      !other.empty() && rank_.grid.world.rank == 0)
    log_warn(fmt::format("lora.adapter {}: {}", path, other));
  log_info(fmt::format("starting from adapter {} ({} modules)", path, start.modules.size()));
}

std::unique_ptr<WeightSource> CausalLmTask::open_weights() const {
  DecoderConfig stored = model_->config();
  stored.vocab_size = stored_vocab_;
  return open_decoder_weights(config_.model.path, stored, model_->config().vocab_size, seed(), token_rows_);
}

void CausalLmTask::weights_loaded(ShardedUnits& units, const WeightSource* source) {
  const int64_t rows = model_->config().vocab_size;
  const std::map<std::string, TokenRows> start = token_rows_;
  if (source == nullptr)
    token_rows_.clear();
  else if (config_.lora && rank_.grid.world.rank == 0)
    token_rows_ = adapter_token_rows(*source, model_->config(), stored_vocab_, token_rows_);
  if (config_.lora) std::erase_if(token_rows_, [&](const auto& held) { return is_saved(*config_.lora, held.first); });
  if (source != nullptr && rows > stored_vocab_)
    log_info(fmt::format("vocabulary: {} rows of the model, {} new ones", format_count(stored_vocab_),
                         format_count(rows - stored_vocab_)));
  // The trained rows start with the weights' values, or with lora.adapter's, which the weights' type may round.
  if (source != nullptr)
    for (const auto& [module, ids] : model_->token_rows()) {
      const at::Tensor trained = matrix_rows(*source, module + ".weight", ids);
      if (const auto part = start.find(module); part != start.end())
        for (size_t i = 0; i < part->second.ids.size(); ++i)
          if (const auto row = std::ranges::lower_bound(ids, part->second.ids[i]);
              row != ids.end() && *row == part->second.ids[i])
            std::copy_n(part->second.values.data() + static_cast<int64_t>(i) * part->second.columns,
                        part->second.columns, trained[row - ids.begin()].mutable_data_ptr<float>());
      adapter_[module + kTokenRowsSuffix] = trained;
    }
  const std::string embedding = token_modules(model_->config()).front();
  if (source != nullptr && config_.lora && model_->token_rows().empty() && !is_saved(*config_.lora, embedding) &&
      rank_.grid.world.rank == 0) {
    const int64_t added = added_last_rows(*source, embedding + ".weight", rows);
    if (added > 0)
      log_warn(fmt::format(
          "{}, as rows that were added to a base and not trained since. LoRA keeps them as they are: if the data uses "
          "their tokens, put \"{}\": {{\"first\": {}}} into {}/config.json, and they are trained",
          added == 1 ? fmt::format("row {} of the vocabulary is all but the mean of the others", rows - 1)
                     : fmt::format("rows {} to {} of the vocabulary are all but equal", rows - added, rows - 1),
          kAddedRowsKey, rows - added, config_.model.path));
  }
  // Trained biases start with the base's, or with lora.adapter's.
  for (const UnitSpec& unit : model_->units())
    for (const ParameterSpec& parameter : unit.parameters)
      for (const ParameterPart& part : parameter.parts)
        if (source != nullptr && unit.replicated && part.name.ends_with(".bias") && !adapter_.contains(part.name))
          adapter_.emplace(part.name, read_tensor(*source, part.name));
  for (const auto& [name, value] : adapter_)
    TRIREME_CHECK(units.assign(name, value), "adapter tensor ", name, " has no place in the model");
  if (!adapter_.empty()) units.weights_changed();
  adapter_.clear();
}

void CausalLmTask::complete_weights(ShardedUnits& units) {
  if (!config_.lora || config_.lora->adapter) return;  // lora.adapter has its magnitudes
  for (const auto& [name, value] : model_->initial_magnitudes(units))
    TRIREME_CHECK(units.assign(name, value), "no magnitude ", name, " in the model");
  units.release();
}

void CausalLmTask::save_artefact(ShardedUnits& units, const std::filesystem::path& directory) {
  if (config_.lora) return save_adapter(units, directory / "adapter");
  const auto writer = export_model(units, [&] {
    return std::make_unique<ModelDirectoryWriter>(directory / "model",
                                                  stored_tensors(model_->units(), to_file_dtype(rank_.compute_dtype)));
  });
  if (!writer) return;
  DecoderConfig config = model_->config();
  config.dtype = torch_dtype_name(to_file_dtype(rank_.compute_dtype));
  if (std::filesystem::is_directory(config_.model.path))
    writer->copy_companions(config_.model.path);
  else if (!std::filesystem::exists(config_.model.path))
    log_warn(
        fmt::format("model.path {} is not there any more: its tokenizer, chat templates, generation_config.json and "
                    "other keys of its config.json are not copied to {}",
                    config_.model.path, (directory / "model").string()));
  writer->finish(config);
}

void CausalLmTask::save_adapter(ShardedUnits& units, const std::filesystem::path& directory) {
  std::map<std::string, at::Tensor> tensors;
  units.export_tensors(
      at::kFloat, [&](int unit) { return units.units()[unit].trained; },
      [&](const std::string& name, const at::Tensor& value) { tensors[name] = value; });
  if (rank_.grid.world.rank != 0) return;
  Adapter adapter = export_adapter(tensors, *model_, config_.model.path, token_rows_);
  if (config_.model.init == ModelSection::Init::kCheckpoint) adapter.base_hash = base_hash(config_.model.path);
  make_directories(directory);
  write_adapter(directory, adapter, DType::kF32);
}

std::unique_ptr<TrainingTask> make_causal_lm_task(const Config& config, const RankInfo& rank,
                                                  const ProgramKeys& program) {
  if (config.train.objective != TrainSection::Objective::kSft)
    return std::make_unique<PreferenceTask>(config, rank, program);
  return std::make_unique<CausalLmTask>(config, rank, program);
}

}  // namespace trireme
