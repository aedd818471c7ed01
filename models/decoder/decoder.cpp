#include "models/decoder/decoder.h"

#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/ops/embedding.h"
#include "trireme/ops/layers/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include <cmath>

namespace trireme {

namespace {

constexpr int kEmbed = 0;
constexpr size_t kTokenTable = 0, kPositionTable = 1;  // parameters of the embedding's unit
constexpr size_t kFinalNorm = 0, kFinalNormBias = 1;   // of the head's; the output matrix comes last

/// Streams of dropout: block b has the sixteen from 16 b on. The adapters take the first of them, attention, output
/// projection and MLP take 12, 13 and 14 (BlockPass), and the embedding takes 15 of block 0.
constexpr uint64_t kStreams = 16, kFirstStream = 12, kEmbeddingStream = 15;

ParameterSpec token_table(const DecoderConfig& config, const std::string& name, const std::string& module) {
  return matrix_spec(name, config.vocab_size, config.hidden_size, module, config.initializer_range);
}

ParameterSpec position_table(const DecoderConfig& config, const TensorNames& names) {
  return matrix_spec("embed_positions", config.max_position_embeddings, config.hidden_size, names.positions,
                     config.initializer_range);
}

UnitSpec one_parameter(const std::string& name, ParameterSpec parameter) {
  UnitSpec unit;
  unit.name = name;
  unit.parameters = {std::move(parameter)};
  return unit;
}

void check_batch(const TokenBatch& batch) {
  TRIREME_CHECK(batch.tokens_BS.dim() == 2 && batch.tokens_BS.scalar_type() == at::kLong,
                "tokens must be int64 [B, S]");
  TRIREME_CHECK(batch.positions_BS.sizes() == batch.tokens_BS.sizes(), "positions ", batch.positions_BS.sizes(),
                ", tokens ", batch.tokens_BS.sizes());
  TRIREME_CHECK(!batch.labels_BS.defined() || batch.labels_BS.sizes() == batch.tokens_BS.sizes(), "labels ",
                batch.labels_BS.sizes(), ", tokens ", batch.tokens_BS.sizes());
}

/// x times the embedding's multiplier as the type of x has it, which is how Gemma was trained.
at::Tensor scaled_embedding(const at::Tensor& x_TD, double multiplier) {
  if (multiplier == 1) return x_TD;
  return x_TD * at::scalar_tensor(multiplier, at::TensorOptions(x_TD.scalar_type())).item();
}

/// What is drawn for the rows of a batch is keyed by their samples.
Dropout keys_of(const TokenBatch& batch, const ForwardOptions& options, double p, uint64_t stream) {
  Dropout keys{p, options.seed, batch.sample_ids_B, stream};
  if (options.exchange == nullptr) return keys;
  const int64_t slice = batch.tokens_BS.numel();
  keys.first_row = options.exchange->rank() * slice;
  keys.sample_rows = options.exchange->size() * slice / batch.sample_ids_B.numel();
  return keys;
}

/// The embedding with NEFTune's noise, of at most alpha / sqrt(tokens of a row * D).
at::Tensor with_noise(const at::Tensor& x_TD, const TokenBatch& batch, const ForwardOptions& options) {
  if (!options.train || options.neftune_alpha == 0) return x_TD;
  const Dropout keys = keys_of(batch, options, 0, kEmbeddingStream);
  const int64_t length = keys.sample_rows > 0 ? keys.sample_rows : batch.tokens_BS.size(1);
  return add_noise(x_TD, keys, options.neftune_alpha / std::sqrt(static_cast<double>(length * x_TD.size(1))));
}

}  // namespace

std::vector<std::string> token_modules(const DecoderConfig& config) {
  const TensorNames& names = family_of(config).names;
  if (config.tie_word_embeddings) return {names.embedding};
  return {names.embedding, names.head};
}

DecoderModel::DecoderModel(const DecoderConfig& config, std::optional<LoraOptions> lora)
    : config_(config), block_(std::make_shared<BlockTable>(decoder_block(config))), lora_(std::move(lora)) {
  const TensorNames& names = family_of(config_).names;
  const bool tied = config_.tie_word_embeddings;
  // A tied output matrix stays the embedding if lora.ensure_weight_tying says so.
  const bool ensured = lora_ && tied && lora_->ensure_weight_tying,
             names_output = lora_ && is_saved(*lora_, names.head), saves_output = names_output && !ensured,
             saves_embedding = lora_ && (is_saved(*lora_, names.embedding) || (names_output && ensured));
  UnitSpec embed = one_parameter("embed", token_table(config_, "embed_tokens", names.embedding));
  if (config_.positions == DecoderPositions::kLearned && !saves_embedding)
    embed.parameters.push_back(position_table(config_, names));
  // Gradients of the embedding need token ids only, and the loss head forms its gradients in the forward pass.
  embed.backward_reads_weights = false;
  units_.push_back(std::move(embed));
  for (int64_t block = 0; block < config_.num_hidden_layers; ++block)
    units_.push_back(block_unit(*block_, "layers." + std::to_string(block), names.block(block)));
  UnitSpec head;
  head.name = "head";
  add_norm(head, "norm", config_.hidden_size, names.final_norm, config_.norm == NormKind::kLayer,
           config_.norm == NormKind::kRmsPlusOne);
  if (!tied && !saves_output) head.parameters.push_back(token_table(config_, "lm_head", names.head));
  units_.push_back(std::move(head));

  const int head_unit = static_cast<int>(units_.size()) - 1;
  embedding_ = {kEmbed, kTokenTable};
  if (config_.positions == DecoderPositions::kLearned) positions_ = {kEmbed, kPositionTable};
  output_ = tied ? embedding_ : Place{head_unit, units_.back().parameters.size() - 1};
  for (UnitSpec& unit : units_) unit.trained = !lora_;
  if (lora_) {
    add_lora_units();
    units_[kEmbed].trained = saves_embedding;
    if (saves_embedding && positions_.unit >= 0) {
      units_.push_back(one_parameter("embed_positions", position_table(config_, names)));
      positions_ = {static_cast<int>(units_.size()) - 1, 0};
    }
    if (saves_embedding && token_rows_.contains(names.embedding))
      throw ConfigError(
          fmt::format("lora.modules_to_save trains all rows of {}: leave it out of "
                      "lora.trainable_token_indices or of lora.modules_to_save",
                      last_part(names.embedding)));
    if (tied && saves_output && !token_rows_.empty())
      throw ConfigError(fmt::format(
          "lora.modules_to_save has {0}, and single rows of {1}, which is {0}, too, are trained "
          "(lora.trainable_token_indices, or rows that were added to the vocabulary): peft cannot open such "
          "an adapter; add {1} to lora.modules_to_save, or set lora.ensure_weight_tying",
          last_part(names.head), last_part(names.embedding)));
    if (saves_output || (tied && saves_embedding && !ensured)) {
      // The output matrix alone: a trained one, or the embedding as it was before.
      units_.push_back(
          one_parameter("lm_head", token_table(config_, "lm_head", saves_output ? names.head : names.embedding)));
      units_.back().trained = saves_output;
      // token_log_probs() of a trained matrix computes the logits again.
      units_.back().backward_reads_weights = saves_output;
      output_ = {static_cast<int>(units_.size()) - 1, 0};
    }
  }
  units_[kEmbed].keep = this->tied();
  for (const Place& place : {embedding_, output_})
    ++units_[static_cast<size_t>(place.unit)].parameters[place.parameter].given_gradients;
}

void DecoderModel::add_lora_units() {
  const TensorNames& names = family_of(config_).names;
  if (!lora_->target_modules.all_linear() && is_targeted(*lora_, names.head))
    throw ConfigError(
        fmt::format("lora.target_modules: {} with an adapter is not supported: take lora.modules_to_save: "
                    "[{}], which trains it whole, or exclude it by lora.exclude_modules",
                    names.head, names.head));
  std::vector<std::string> prefixes;
  for (int64_t block = 0; block < config_.num_hidden_layers; ++block) prefixes.push_back(names.block(block));
  std::vector<std::string> problems;
  for (const std::string& name : lora_->modules_to_save)
    if (const LoraOptions one{.modules_to_save = {name}}; !is_saved(one, names.embedding) && !is_saved(one, names.head))
      problems.push_back(fmt::format("lora.modules_to_save: a {} has no module '{}', only {} and {}", config_.family,
                                     name, names.embedding, names.head));
  choose_token_rows(problems);
  BlockAdapters adapters{
      .targets = lora_targets(*block_, config_.family, *lora_, prefixes, {names.embedding}, problems),
      .dora = lora_->use_dora};
  for (const std::vector<LoraTarget>& of_block : adapters.targets)
    adapters.biases.push_back(trained_biases(*block_, *lora_, of_block));
  block_adapters_ = std::make_shared<const BlockAdapters>(std::move(adapters));
  // The embedding is no linear layer.
  if (!lora_->target_modules.all_linear() && is_targeted(*lora_, names.embedding)) {
    embedding_adapter_ = strength_of(*lora_, names.embedding);
    if (lora_->use_dora)
      throw ConfigError(
          fmt::format("lora.use_dora is for linear layers: leave {} out of lora.target_modules", names.embedding));
    if (config_.tie_word_embeddings && lora_->ensure_weight_tying)
      throw ConfigError(
          fmt::format("lora.ensure_weight_tying is not supported with an adapter of {}", names.embedding));
  }
  if (embedding_adapter_ && token_rows_.contains(names.embedding))
    throw ConfigError(fmt::format(
        "lora.target_modules has {0}, of which rows are trained, too (lora.trainable_token_indices, or rows "
        "that were added to the vocabulary): peft does not have both; leave it out, or train it whole by "
        "lora.modules_to_save: [{0}]",
        last_part(names.embedding)));
  units_.push_back(adapters_unit());
  adapters_.matrices = static_cast<int>(units_.size()) - 1;
  if (UnitSpec vectors = vectors_unit(); !vectors.parameters.empty()) {
    units_.push_back(std::move(vectors));
    adapters_.vectors = static_cast<int>(units_.size()) - 1;
    if (lora_->bias == LoraOptions::Bias::kAll && config_.norm == NormKind::kLayer)
      final_norm_bias_ = {adapters_.vectors, units_.back().parameters.size() - 1};
  }
}

void DecoderModel::choose_token_rows(std::vector<std::string>& problems) {
  const std::vector<std::string> modules = token_modules(config_);
  for (const auto& [name, ids] : lora_->trainable_token_indices) {
    const auto found = std::ranges::find_if(modules, [&](const std::string& module) {
      return name.empty() || module == name || module.ends_with("." + name);
    });
    const auto problem = [&](const std::string& why) {
      problems.push_back(fmt::format("lora.trainable_token_indices{}{}: {}", name.empty() ? "" : ".", name, why));
    };
    if (found == modules.end()) {
      problem(fmt::format("a {} has rows for tokens in {}{}", config_.family, join(modules, " and "),
                          config_.tie_word_embeddings ? ", which is its output matrix, too" : ""));
      continue;
    }
    if (const auto wrong = std::ranges::find_if(ids, [&](int64_t id) { return id < 0 || id >= config_.vocab_size; });
        wrong != ids.end()) {
      problem(fmt::format("it names row {}, the vocabulary has {}", *wrong, config_.vocab_size));
      continue;
    }
    std::vector<int64_t>& rows = token_rows_[*found];
    rows.insert(rows.end(), ids.begin(), ids.end());
    std::ranges::sort(rows);
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    if (rows.empty()) token_rows_.erase(*found);
  }
}

UnitSpec DecoderModel::adapters_unit() const {
  UnitSpec unit;
  unit.name = "adapters";
  unit.trained = unit.replicated = true;
  const TensorNames& names = family_of(config_).names;
  for (size_t block = 0; block < targets().size(); ++block)
    add_adapters(unit, targets()[block], "layers." + std::to_string(block) + ".",
                 names.block(static_cast<int64_t>(block)));
  if (embedding_adapter_) {
    // PEFT's initialisation: A, which has a column for each token in PEFT's files and a row here, zero, and B normal.
    const auto add = [&](const char* name, int64_t rows, Init init) {
      const std::string full = last_part(names.embedding) + name;
      unit.parameters.push_back({full, {rows, embedding_adapter_->r}, {{names.embedding + name, rows}}, init, 1, true});
    };
    add(".lora_embedding_A", config_.vocab_size, Init::kZeros);
    add(".lora_embedding_B", config_.hidden_size, Init::kNormal);
  }
  for (const std::string& module : token_modules(config_)) {
    const auto rows = token_rows_.find(module);
    if (rows == token_rows_.end()) continue;
    ParameterSpec& spec =
        unit.parameters.emplace_back(matrix_spec(last_part(module) + ".rows", static_cast<int64_t>(rows->second.size()),
                                                 config_.hidden_size, "", config_.initializer_range));
    spec.parts[0].name = module + kTokenRowsSuffix;
  }
  return unit;
}

UnitSpec DecoderModel::vectors_unit() const {
  UnitSpec unit;
  unit.name = "adapter_vectors";
  unit.trained = unit.replicated = unit.fp32 = true;
  const TensorNames& names = family_of(config_).names;
  for (size_t block = 0; block < targets().size(); ++block)
    add_adapter_vectors(unit, *block_, targets()[block], lora_->use_dora, block_adapters_->biases[block],
                        "layers." + std::to_string(block) + ".", names.block(static_cast<int64_t>(block)));
  if (lora_->bias == LoraOptions::Bias::kAll && config_.norm == NormKind::kLayer)
    unit.parameters.push_back(vector_spec("norm.bias", config_.hidden_size, names.final_norm + ".bias"));
  return unit;
}

TrainedRows DecoderModel::trained_rows(UnitStore& store, const std::string& module) const {
  const auto rows = token_rows_.find(module);
  if (rows == token_rows_.end()) return {};
  // They are the last parameters, the embedding's before the output matrix'.
  const size_t behind = module == token_modules(config_).back() ? 1 : token_rows_.size();
  const std::vector<at::Tensor>& tensors = store.parameters(adapters_.matrices);
  TrainedRows trained{tensors[tensors.size() - behind]};
  const std::vector<int64_t>& ids = rows->second;
  if (ids.back() - ids.front() + 1 == static_cast<int64_t>(ids.size())) trained.begin = ids.front();
  at::Tensor& kept = row_ids_[module];
  if (!kept.defined() || kept.device() != trained.values.device())
    kept = at::tensor(ids, at::kLong).to(trained.values.device());
  trained.ids = kept;
  return trained;
}

std::map<std::string, at::Tensor> DecoderModel::initial_magnitudes(UnitStore& store) const {
  at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> magnitudes;
  for (size_t block = 0; lora_ && lora_->use_dora && block < targets().size(); ++block) {
    const int unit = static_cast<int>(block) + 1;
    store.pre_forward(unit);
    const std::vector<at::Tensor>& tensors = store.parameters(unit);
    const UnitTensors weights{tensors, &store.weight_states(unit)};
    for (const LoraTarget& target : targets()[block]) {
      const Weight weight = weights.weight(block_->weight_position(target.layer));
      const at::Tensor lengths = row_squares(weight).sqrt();
      int64_t row = target.row_begin;
      for (const LayerPart& part : block_->layers[static_cast<size_t>(target.layer)].parts) {
        if (!target.fused && part.module != target.module) continue;
        magnitudes[family_of(config_).names.block(static_cast<int64_t>(block)) + part.module + kMagnitudeSuffix] =
            lengths.narrow(0, row, part.rows);
        row += part.rows;
      }
    }
    store.post_forward(unit);
  }
  return magnitudes;
}

at::Tensor DecoderModel::embedded(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  at::Tensor tokens = enter_unit(batch.tokens_BS.flatten(), store, kEmbed);
  if (positions_.unit > kEmbed) store.pre_forward(positions_.unit);  // frozen: without a backward
  const at::Tensor& table = embedding_.in(store);
  const TrainedRows rows = trained_rows(store, token_modules(config_).front());
  rows.put_into(table);
  const int64_t padding = padding_row(config_);
  at::Tensor x_TD = embed(table, tokens, embedding_.sink(store), padding);
  if (rows.defined()) x_TD = train_rows(x_TD, padding < 0 ? tokens : tokens.masked_fill(tokens.eq(padding), -1), rows);
  if (embedding_adapter_ && options.adapters) {
    const std::vector<at::Tensor>& tensors = store.parameters(adapters_.matrices);
    const size_t a = tensors.size() - token_rows_.size() - 2;
    x_TD =
        at::addmm(x_TD, embed(tensors[a], tokens, nullptr, padding), tensors[a + 1].t(), 1, embedding_adapter_->scale);
  }
  // Noise is added to what transformers' embedding module returns, which Gemma's has scaled.
  const bool scaled_inside = config_.norm == NormKind::kRmsPlusOne;
  if (scaled_inside) x_TD = scaled_embedding(x_TD, config_.embedding_multiplier);
  x_TD = with_noise(x_TD, batch, options);
  if (!scaled_inside) x_TD = scaled_embedding(x_TD, config_.embedding_multiplier);
  if (positions_.unit >= 0) x_TD = x_TD + embed(positions_.in(store), batch.positions_BS.flatten());
  if (positions_.unit > kEmbed) store.post_forward(positions_.unit);
  return x_TD;
}

at::Tensor DecoderModel::decode(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                                const at::Tensor& rows) const {
  check_batch(batch);
  const auto dropout = [&](double p, uint64_t stream = 0) -> Dropout {
    return options.train && options.dropout && p != 0 ? keys_of(batch, options, p, stream) : Dropout{};
  };
  at::Tensor x_TD = embedded(store, batch, options);
  if (const Dropout drop = dropout(config_.embedding_dropout, kEmbeddingStream); drop.active())
    x_TD = recorded_dropout(x_TD, drop);
  x_TD = leave_unit(x_TD, store, kEmbed);

  BlockPass pass{.block = block_,
                 .activation = config_.activation,
                 .norm_eps = config_.norm_eps,
                 .attention = dropout(config_.attention_dropout),
                 .residual = dropout(config_.residual_dropout),
                 .first_stream = kFirstStream,
                 .streams = kStreams,
                 .result_rows = rows};
  const int64_t first_token = options.exchange != nullptr ? options.exchange->rank() * x_TD.size(0) : 0;
  if (block_->rotary)
    for (const RopeFrequencies* rope : {&config_.rope, config_.window_rope ? &*config_.window_rope : nullptr})
      if (rope != nullptr)
        pass.ropes.push_back(rope_table(*rope, config_.head_dim, batch.positions_BS.flatten(), batch.cu_seqlens,
                                        x_TD.scalar_type(), first_token));
  const bool drops = pass.attention.active();
  TRIREME_CHECK(!drops || batch.sequence_keys.size() + 1 == batch.cu_seqlens.size(), "dropout of attention needs ",
                batch.cu_seqlens.size() - 1, " sequence keys, there are ", batch.sequence_keys.size());
  pass.sequences =
      make_sequences(batch.cu_seqlens, drops ? batch.sequence_keys : std::vector<int64_t>(), x_TD.device());
  pass.exchange = options.exchange;
  const int64_t blocks = config_.num_hidden_layers;
  if (!lora_) return run_blocks(x_TD, store, pass, blocks, options.recompute);
  if (options.adapters) {
    pass.adapters = block_adapters_;
    pass.lora_dropout = dropout(lora_->dropout);
  }
  x_TD = enter_unit(x_TD, store, adapters_.matrices);
  if (adapters_.vectors >= 0) x_TD = enter_unit(x_TD, store, adapters_.vectors);
  x_TD = run_blocks(x_TD, store, pass, blocks, options.recompute, adapters_);
  if (adapters_.vectors >= 0) x_TD = leave_unit(x_TD, store, adapters_.vectors);
  return leave_unit(x_TD, store, adapters_.matrices);
}

at::Tensor DecoderModel::head_input(UnitStore& store, const at::Tensor& x_TD, bool adapters) const {
  const std::vector<at::Tensor>& tensors = store.parameters(static_cast<int>(config_.num_hidden_layers) + 1);
  at::Tensor bias;
  if (config_.norm == NormKind::kLayer) bias = tensors[kFinalNormBias];
  if (adapters && final_norm_bias_.unit >= 0) bias = final_norm_bias_.in(store).to(x_TD.scalar_type());
  const at::Tensor hidden =
      apply_norm(x_TD, norm_of(tensors[kFinalNorm], bias, config_.norm_eps, config_.norm == NormKind::kRmsPlusOne));
  return config_.logits_divisor == 1 ? hidden : hidden / config_.logits_divisor;
}

template <class F>
at::Tensor DecoderModel::in_head(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options, const F& f,
                                 const at::Tensor& tokens) const {
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  at::Tensor x_RD = enter_unit(decode(store, batch, options, tokens), store, head);
  if (output_.unit > head) x_RD = enter_unit(x_RD, store, output_.unit);
  const at::Tensor hidden = head_input(store, x_RD, options.adapters);
  const at::Tensor& weight = output_.in(store);
  // An output matrix that was the embedding and is no more has no rows.
  const bool own = config_.tie_word_embeddings == tied();
  const TrainedRows rows = own ? trained_rows(store, token_modules(config_).back()) : TrainedRows{};
  if (!tied()) rows.put_into(weight);
  at::Tensor y = f(hidden, weight, rows);
  if (output_.unit > head) y = leave_unit(y, store, output_.unit);
  return leave_unit(y, store, head);
}

template <class F>
at::Tensor DecoderModel::with_head(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                                   const F& f) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  TRIREME_CHECK(batch.labels_BS.defined() || options.exchange == nullptr, "a slice of rows needs labels");
  // Without labels position t predicts token t + 1; what rolls around into the last column has weight 0.
  const at::Tensor targets =
      batch.labels_BS.defined() ? batch.labels_BS.reshape({-1}) : batch.tokens_BS.roll(-1, 1).view({-1});
  const auto counted = [&](const at::Tensor& of_tokens) {
    return batch.loss_rows_R.defined() ? of_tokens.index_select(0, batch.loss_rows_R) : of_tokens;
  };
  return in_head(
      store, batch, options,
      [&](const at::Tensor& hidden, const at::Tensor& weight, const TrainedRows& rows) {
        return f(hidden, weight, counted(targets), counted(batch.loss_weight_BS.reshape({-1})), rows);
      },
      batch.loss_rows_R);
}

at::Tensor DecoderModel::loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  return with_head(store, batch, options,
                   [&](const auto& hidden, const auto& weight, const auto& targets, const auto& token_weight,
                       const TrainedRows& rows) {
                     return loss_head(hidden, weight, targets, token_weight, {}, rows,
                                      options.train ? options.smoothing : LabelSmoothing{}, output_.sink(store),
                                      options.recompute.head_logits);
                   });
}

at::Tensor DecoderModel::log_probs(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  const at::Tensor log_probs = with_head(
      store, batch, options,
      [&](const auto& hidden, const auto& weight, const auto& targets, const auto& counted, const TrainedRows& rows) {
        return token_log_probs(hidden, weight, targets, counted, {}, rows, output_.sink(store),
                               options.recompute.head_logits);
      });
  if (!batch.loss_rows_R.defined()) return log_probs;
  return at::zeros({batch.tokens_BS.numel()}, log_probs.options()).index_copy(0, batch.loss_rows_R, log_probs);
}

at::Tensor DecoderModel::logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                                const at::Tensor& tokens) const {
  at::NoGradGuard no_grad;
  const auto f = [](const at::Tensor& hidden, const at::Tensor& weight, const TrainedRows&) {
    return at::linear(hidden, weight).to(at::kFloat);
  };
  if (tokens.defined()) return in_head(store, batch, options, f, tokens);
  return in_head(store, batch, options, f).view({batch.tokens_BS.size(0), batch.tokens_BS.size(1), -1});
}

ModelShape DecoderModel::shape(int64_t tokens, int64_t element_size) const {
  const int64_t d = config_.hidden_size, v = config_.vocab_size;
  ModelShape shape{.units = &units_, .block = block_, .num_blocks = static_cast<int>(config_.num_hidden_layers)};
  shape.trained = !lora_;
  shape.tokens = tokens;
  shape.attention_dropout = config_.attention_dropout > 0;
  if (lora_) {
    shape.adapter_dropout = lora_->dropout > 0;
    shape.dora = lora_->use_dora;
    shape.adapters = adapter_shapes(targets());
  }
  HeadShape& head = shape.head;
  head.products = {{static_cast<double>(tokens), d, v}};
  head.trained = units_[static_cast<size_t>(output_.unit)].trained;
  // The head's norm keeps its input; the loss head keeps the gradient of its input.
  head.memory.row = tokens * (2 * d * element_size + 4);
  head.memory.logits = tokens * v * element_size;
  head.memory.logits_most = loss_head_kernel_chunk(v, element_size, head.trained) * v * element_size;
  // The gradient of the matrix, or of its trained rows, in fp32.
  const auto rows = token_rows_.find(token_modules(config_).back());
  head.memory.fixed = 4 * d * (head.trained ? v : rows == token_rows_.end() ? 0 : std::ssize(rows->second));
  // Tied: its gradient is there from the beginning of backward on, and does not take the place of activations.
  head.memory.held = head.trained && tied() ? 4 * v * d : 0;
  return shape;
}

}  // namespace trireme
