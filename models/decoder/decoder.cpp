#include "models/decoder/decoder.h"

#include "models/common/blocks.h"
#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/ops/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace trireme {

namespace {

constexpr int kEmbed = 0;
constexpr int kTokenTable = 0, kPositionTable = 1;  // parameters of the embedding's unit
constexpr int kFinalNorm = 0, kFinalNormBias = 1;   // of the head's; the output matrix comes last

/// Streams of dropout: block b has the sixteen from 16 b on. The adapters take the first of them, attention, output
/// projection and MLP take 12, 13 and 14 (BlockPass), and the embedding takes 15 of block 0.
constexpr uint64_t kStreams = 16, kFirstStream = 12, kEmbeddingStream = 15;

UnitSpec embed_unit(const DecoderConfig& config, const TensorNames& names) {
  UnitSpec unit;
  unit.name = "embed";
  unit.parameters = {
      matrix_spec("embed_tokens", config.vocab_size, config.hidden_size, names.embedding, config.initializer_range)};
  if (config.positions == DecoderPositions::kLearned)
    unit.parameters.push_back(matrix_spec("embed_positions", config.max_position_embeddings, config.hidden_size,
                                          names.positions, config.initializer_range));
  unit.keep = config.tie_word_embeddings;
  // Gradients of the embedding need token ids only, and the loss head forms its gradients in the forward pass.
  unit.backward_reads_weights = false;
  return unit;
}

UnitSpec head_unit(const DecoderConfig& config, const TensorNames& names) {
  UnitSpec unit;
  unit.name = "head";
  add_norm(unit, "norm", config.hidden_size, names.final_norm, config.norm == NormKind::kLayer,
           config.norm == NormKind::kRmsPlusOne);
  if (!config.tie_word_embeddings)
    unit.parameters.push_back(
        matrix_spec("lm_head", config.vocab_size, config.hidden_size, names.head, config.initializer_range));
  return unit;
}

UnitSpec adapters_unit(const DecoderModel& model) {
  const DecoderConfig& config = model.config();
  const LoraOptions& lora = *model.lora();
  UnitSpec unit;
  unit.name = "adapters";
  unit.trained = unit.replicated = true;
  for (int64_t block = 0; block < config.num_hidden_layers; ++block)
    add_adapters(unit, model.targets(), lora.r, "layers." + std::to_string(block) + ".",
                 family_of(config).names.block(block));
  if (const int64_t rows = lora.rows_end - lora.rows_begin; rows > 0)
    for (const std::string& module : token_modules(config)) {
      ParameterSpec& spec = unit.parameters.emplace_back(matrix_spec(
          module.substr(module.rfind('.') + 1) + ".rows", rows, config.hidden_size, "", config.initializer_range));
      spec.parts[0].name = module + kTokenRowsSuffix;
    }
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

/// The trained rows of the embedding (0) or of the output matrix (1), undefined if there are none. A tied model has one
/// matrix for both.
at::Tensor trained_rows(const DecoderModel& model, UnitStore& store, int matrix) {
  if (!model.lora() || model.lora()->rows_begin == model.lora()->rows_end) return {};
  const std::vector<at::Tensor>& adapters = store.parameters(static_cast<int>(model.units().size()) - 1);
  return adapters[adapters.size() - (model.config().tie_word_embeddings || matrix == 1 ? 1 : 2)];
}

/// Puts trained rows into the gathered weight.
void replace_rows(const at::Tensor& weight, const at::Tensor& rows, int64_t begin) {
  at::NoGradGuard no_grad;
  if (rows.defined()) weight.narrow(0, begin, rows.size(0)).copy_(rows);
}

/// The output matrix: lm_head, or the embedding when tied.
const at::Tensor& output_weight(const DecoderModel& model, UnitStore& store, int head) {
  return model.config().tie_word_embeddings ? store.parameters(kEmbed)[kTokenTable] : store.parameters(head).back();
}

/// What the output matrix reads: the logits' divisor divides it instead of them.
at::Tensor head_input(const DecoderModel& model, UnitStore& store, int head, const at::Tensor& x_TD) {
  const std::vector<at::Tensor>& tensors = store.parameters(head);
  const DecoderConfig& config = model.config();
  const at::Tensor bias = config.norm == NormKind::kLayer ? tensors[kFinalNormBias] : at::Tensor();
  const at::Tensor hidden =
      apply_norm(x_TD, norm_of(tensors[kFinalNorm], bias, config.norm_eps, config.norm == NormKind::kRmsPlusOne));
  return config.logits_divisor == 1 ? hidden : hidden / config.logits_divisor;
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
  units_.push_back(embed_unit(config_, names));
  for (int64_t block = 0; block < config_.num_hidden_layers; ++block)
    units_.push_back(block_unit(*block_, "layers." + std::to_string(block), names.block(block)));
  units_.push_back(head_unit(config_, names));
  for (UnitSpec& unit : units_) unit.trained = !lora_;
  if (!lora_) return;
  targets_ = lora_targets(*block_, config_.family, *lora_);
  units_.push_back(adapters_unit(*this));
}

at::Tensor DecoderModel::decode(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  check_batch(batch);
  const auto dropout = [&](double p, uint64_t stream = 0) -> Dropout {
    return options.train && options.dropout && p != 0 ? keys_of(batch, options, p, stream) : Dropout{};
  };
  const at::Tensor tokens = enter_unit(batch.tokens_BS.flatten(), store, kEmbed);
  const at::Tensor positions = batch.positions_BS.flatten();
  const at::Tensor rows = trained_rows(*this, store, 0);
  replace_rows(store.parameters(kEmbed)[kTokenTable], rows, lora_ ? lora_->rows_begin : 0);
  at::Tensor x_TD = embed(store.parameters(kEmbed)[kTokenTable], tokens);
  if (rows.defined()) x_TD = train_rows(x_TD, tokens, rows, lora_->rows_begin);
  // Noise is added to what transformers' embedding module returns, which Gemma's has scaled.
  const bool scaled_inside = config_.norm == NormKind::kRmsPlusOne;
  if (scaled_inside) x_TD = scaled_embedding(x_TD, config_.embedding_multiplier);
  x_TD = with_noise(x_TD, batch, options);
  if (!scaled_inside) x_TD = scaled_embedding(x_TD, config_.embedding_multiplier);
  if (config_.positions == DecoderPositions::kLearned)
    x_TD = x_TD + embed(store.parameters(kEmbed)[kPositionTable], positions);
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
                 .targets = options.adapters ? targets_ : std::vector<LoraTarget>()};
  if (block_->rotary)
    for (const RopeFrequencies* rope : {&config_.rope, config_.window_rope ? &*config_.window_rope : nullptr})
      if (rope != nullptr)
        pass.ropes.push_back(rope_table(*rope, config_.head_dim, positions, batch.cu_seqlens, x_TD.scalar_type()));
  const bool drops = pass.attention.active();
  TRIREME_CHECK(!drops || batch.sequence_keys.size() + 1 == batch.cu_seqlens.size(), "dropout of attention needs ",
                batch.cu_seqlens.size() - 1, " sequence keys, there are ", batch.sequence_keys.size());
  pass.sequences =
      make_sequences(batch.cu_seqlens, drops ? batch.sequence_keys : std::vector<int64_t>(), x_TD.device());
  pass.exchange = options.exchange;
  const int64_t blocks = config_.num_hidden_layers;
  if (!lora_) return run_blocks(x_TD, store, pass, blocks, options.recompute);
  const int adapters = static_cast<int>(blocks) + 2;
  pass.lora_scale = lora_->alpha / static_cast<double>(lora_->r);
  pass.lora_dropout = dropout(lora_->dropout);
  x_TD = run_blocks(enter_unit(x_TD, store, adapters), store, pass, blocks, options.recompute, adapters);
  return leave_unit(x_TD, store, adapters);
}

at::Tensor DecoderModel::with_head(decltype(loss_head)& run_head, UnitStore& store, const TokenBatch& batch,
                                   const ForwardOptions& options) const {
  at::AutoGradMode grad_mode(options.train && at::GradMode::is_enabled());
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  const at::Tensor x_TD = enter_unit(decode(store, batch, options), store, head);
  const at::Tensor hidden = head_input(*this, store, head, x_TD);
  TRIREME_CHECK(batch.labels_BS.defined() || options.exchange == nullptr, "a slice of rows needs labels");
  // Without labels position t predicts token t + 1; what rolls around into the last column has weight 0.
  const at::Tensor targets =
      batch.labels_BS.defined() ? batch.labels_BS.reshape({-1}) : batch.tokens_BS.roll(-1, 1).view({-1});
  const at::Tensor weight = output_weight(*this, store, head), rows = trained_rows(*this, store, 1);
  const int64_t rows_begin = lora_ ? lora_->rows_begin : 0;
  if (!config_.tie_word_embeddings) replace_rows(weight, rows, rows_begin);
  return leave_unit(run_head(hidden, weight, targets, batch.loss_weight_BS.reshape({-1}), {}, rows, rows_begin), store,
                    head);
}

at::Tensor DecoderModel::loss(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  return with_head(loss_head, store, batch, options);
}

at::Tensor DecoderModel::log_probs(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options) const {
  return with_head(token_log_probs, store, batch, options);
}

at::Tensor DecoderModel::logits(UnitStore& store, const TokenBatch& batch, const ForwardOptions& options,
                                const at::Tensor& tokens) const {
  at::NoGradGuard no_grad;
  const int head = static_cast<int>(config_.num_hidden_layers) + 1;
  at::Tensor x_TD = enter_unit(decode(store, batch, options), store, head);
  if (tokens.defined()) x_TD = x_TD.index_select(0, tokens);
  const at::Tensor hidden = head_input(*this, store, head, x_TD);
  const at::Tensor weight = output_weight(*this, store, head);
  if (!config_.tie_word_embeddings) replace_rows(weight, trained_rows(*this, store, 1), lora_ ? lora_->rows_begin : 0);
  const at::Tensor logits_TV = leave_unit(at::linear(hidden, weight).to(at::kFloat), store, head);
  if (tokens.defined()) return logits_TV;
  return logits_TV.view({batch.tokens_BS.size(0), batch.tokens_BS.size(1), -1});
}

ModelShape DecoderModel::shape(int64_t tokens, int64_t element_size) const {
  const int64_t d = config_.hidden_size, v = config_.vocab_size;
  ModelShape shape{.units = &units_, .block = block_, .num_blocks = static_cast<int>(config_.num_hidden_layers)};
  shape.trained = !lora_;
  shape.tokens = tokens;
  shape.attention_dropout = config_.attention_dropout > 0;
  if (lora_) {
    shape.adapter_rank = lora_->r;
    shape.adapter_dropout = lora_->dropout > 0;
    for (const LoraTarget& target : targets_) shape.adapters.push_back({target.layer, target.in, target.rows});
  }
  HeadShape& head = shape.head;
  head.products = {{static_cast<double>(tokens), d, v}};
  head.trained = shape.trained;
  // The head's norm keeps its input; the loss head keeps the gradient of its input.
  head.memory.row = tokens * (2 * d * element_size + 4);
  head.memory.logits = tokens * v * element_size;
  head.memory.logits_most = int64_t{256} << 20;  // a chunk of the loss head's kernel
  // The gradient of the matrix, or of its trained rows, in fp32.
  head.memory.fixed = 4 * d * (shape.trained ? v : lora_->rows_end - lora_->rows_begin);
  // Tied: autograd holds it until the embedding's comes, at the end of backward.
  head.memory.held = shape.trained && config_.tie_word_embeddings ? v * d * element_size : 0;
  return shape;
}

}  // namespace trireme
