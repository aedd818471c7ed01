// The training configurations of NeMo's launcher as ours: what is refused, the model, the batch.
#include "nemo_importer.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {

NemoImporter::NemoImporter(const ConfNode& training, const std::string& source, const NemoImport& import)
    : draft_(source), options_(nemo_training_keys(), draft_), import_(import) {
  if (import.ignore_unknown) options_.ignore_unknown();
  add_conf_options(training, options_);
  if (const ConfNode* model = training.find("model"))
    if (const ConfNode* data = model->find("data"))
      if (const ConfNode* prefix = data->find("data_prefix")) prefix_ = *prefix;
}

ImportedConfig NemoImporter::run() {
  refused();
  model();
  batch();
  data();
  optimizer();
  schedule();
  trainer();
  evaluation();
  precision();
  parallel();
  recompute();
  experiment();
  profile();
  options_.rest();
  ImportedConfig imported = draft_.finish();
  imported.program = gpt_ ? "train_gpt" : "train_llama";
  imported.tokenizer = std::move(tokenizer_);
  return imported;
}

void NemoImporter::set(const std::string& option, const std::string& key, const std::string& value,
                       const std::string& why) {
  draft_.set(key, value, options_.origin(option));
  draft_.say(options_.shown(option), fmt::format("{}: {}{}{}", key, value, why.empty() ? "" : "; ", why));
}
void NemoImporter::refuse(const std::string& option, const std::string& why) { options_.problem(option, why); }
void NemoImporter::only(const std::string& option, bool wanted, const std::string& why) {
  if (options_.flag(option, wanted) != wanted)
    refuse(option, why);
  else
    options_.no_key(option, "always");
}
std::string NemoImporter::absolute(const std::string& path) const {
  const std::filesystem::path given = path;
  if (import_.base.empty() || given.is_absolute()) return path;
  return (import_.base / given).lexically_normal().string();
}

void NemoImporter::refused() {
  const std::string remedy =
      "parallelism is not there; parallel.policy (none, optimizer, gradients, full) divides memory among the ranks: "
      "set it to 1, and model.fsdp=True where the weights themselves do not fit";
  for (const auto& [option, kind] : {std::pair("model.tensor_model_parallel_size", "tensor "),
                                     {"model.pipeline_model_parallel_size", "pipeline "},
                                     {"model.context_parallel_size", "context "},
                                     {"model.expert_model_parallel_size", "expert "}}) {
    if (options_.integer(option, 1) != 1)
      refuse(option, kind + remedy);
    else
      options_.no_key(option, "one: as here");
  }
  if (options_.integer("model.virtual_pipeline_model_parallel_size", 0) > 1)
    refuse("model.virtual_pipeline_model_parallel_size", "pipeline " + remedy);
  for (const char* option : {"model.restore_from_path", "model.resume_from_checkpoint"})
    if (options_.given(option))
      refuse(option, "NeMo's checkpoints are not read: set it to null, or start from model.path");
  if (options_.flag("model.cpu_offloading", false))
    refuse("model.cpu_offloading", "weights and activations stay on the GPU");
  if (options_.given("model.seq_len_interpolation_factor"))
    refuse("model.seq_len_interpolation_factor", "positions are not interpolated");
  if (options_.word("trainer.accelerator", "gpu", {"gpu", "cpu", "auto"}) != "gpu" ||
      options_.given("trainer.accelerator"))
    options_.no_key("trainer.accelerator", "no key: GPUs where there are some; TRIREME_DEVICE=cpu forces the CPU");
  if (options_.given("trainer.max_epochs")) options_.no_key("trainer.max_epochs", "no key: max_steps ends the run");
}

bool NemoImporter::is(const std::string& option, const std::string& otherwise,
                      std::initializer_list<const char*> words) {
  const std::string value = options_.text(option, otherwise);
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return value == word; });
}

bool NemoImporter::is_gpt() {
  const bool layer_norm = is("model.normalization", "layernorm", {"layernorm"}),
             rms_norm = is("model.normalization", "layernorm", {"rmsnorm"}),
             gelu = is("model.activation", "gelu", {"gelu"}),
             swiglu = is("model.activation", "gelu", {"swiglu", "fast-swiglu"}),
             learned = is("model.position_embedding_type", "learned_absolute", {"learned_absolute"}),
             rope = is("model.position_embedding_type", "learned_absolute", {"rope"});
  const bool bias = options_.flag("model.bias", true),
             shared = options_.flag("model.share_embeddings_and_output_weights", true);
  const bool gpt = layer_norm && gelu && learned && bias && shared,
             llama = rms_norm && swiglu && rope && !bias && !shared;
  if (!gpt && !llama)
    draft_.problem(fmt::format(
        "{}; {}; {}; {}; {}: neither a GPT-3 (layernorm, gelu, learned_absolute, biases, shared embeddings) nor a "
        "Llama (rmsnorm, fast-swiglu, rope, none, not shared)",
        options_.shown("model.normalization"), options_.shown("model.activation"),
        options_.shown("model.position_embedding_type"), options_.shown("model.bias"),
        options_.shown("model.share_embeddings_and_output_weights")));
  else
    for (const char* option : {"model.normalization", "model.activation", "model.position_embedding_type", "model.bias",
                               "model.share_embeddings_and_output_weights"})
      options_.no_key(option, gpt ? "as every gpt2 model has it" : "as every Llama has it");
  return gpt || !llama;
}

std::string NemoImporter::tokenizer_path() {
  const std::string library = options_.text("model.tokenizer.library", ""),
                    type = options_.text("model.tokenizer.type", "");
  const std::string vocabulary = options_.text("model.tokenizer.vocab_file", ""),
                    model = options_.text("model.tokenizer.model", "");
  (void)options_.text("model.tokenizer.merge_file", "");
  const std::string path = library == "sentencepiece" ? model : library == "huggingface" ? type : vocabulary;
  return path.empty() ? "" : absolute(path);
}

int64_t NemoImporter::vocabulary() {
  const std::string type = options_.text("model.tokenizer.type", ""), path = tokenizer_path(),
                    merges = options_.text("model.tokenizer.merge_file", "");
  if (import_.tokenizer && !path.empty()) {
    try {
      tokenizer_ = import_.tokenizer(path);
    } catch (const Error& error) {
      draft_.problem(error.what());
    }
  }
  if (tokenizer_ && !tokenizer_->files.empty() && tokenizer_->files.front().second == "vocab.json") {
    // Without its merges the vocabulary is no tokenizer.
    std::error_code error;
    if (const std::filesystem::path file = absolute(merges); std::filesystem::is_regular_file(file, error))
      tokenizer_->files.emplace_back(file, "merges.txt");
    else
      tokenizer_->files.clear();
  }
  for (const char* option : {"model", "vocab_file", "merge_file"})
    options_.no_key(std::string("model.tokenizer.") + option,
                    tokenizer_ ? "model/ gets the tokenizer's files" : "not here: the results have no tokenizer");
  if (import_.vocab_size) {
    if (tokenizer_ && tokenizer_->vocab_size != *import_.vocab_size)
      refuse("model.tokenizer.type",
             fmt::format("--vocab-size says {}, {} has {} tokens", *import_.vocab_size, path, tokenizer_->vocab_size));
    return *import_.vocab_size;
  }
  if (tokenizer_) return tokenizer_->vocab_size;
  if (type == "GPT2BPETokenizer") return 50257;
  if (type.find("lama-3") != std::string::npos) return 128256;
  refuse("model.tokenizer.type",
         path.empty() ? "its vocabulary is not known here: add --vocab-size N"
                      : fmt::format("its vocabulary is not known here: {} is not there; add --vocab-size N", path));
  return 50257;
}

void NemoImporter::model() {
  draft_.set("model.path", "model");
  draft_.set("model.init", "random");
  gpt_ = is_gpt();
  ImportedModel shape;
  shape.name = "model";
  shape.gpt = gpt_;
  shape.layers = layers_ = options_.integer("model.num_layers", 12);
  shape.hidden_size = options_.integer("model.hidden_size", 768);
  shape.heads = options_.integer("model.num_attention_heads", 12);
  shape.kv_heads = options_.integer("model.num_query_groups", shape.heads);
  shape.intermediate_size = options_.integer("model.ffn_hidden_size", 4 * shape.hidden_size);
  shape.positions = options_.integer("model.max_position_embeddings", 2048);
  shape.norm_eps = options_.number("model.layernorm_epsilon", 1e-5);
  shape.initializer_range = options_.number("model.init_method_std", 0.02);
  shape.hidden_dropout = options_.number("model.hidden_dropout", 0.1);
  shape.attention_dropout = options_.number("model.attention_dropout", 0.1);
  shape.gelu_erf = !options_.flag("model.bias_activation_fusion", true) && !options_.flag("model.openai_gelu", false);
  shape.vocab_size = vocabulary();
  if (gpt_) {
    for (const char* option : {"model.rotary_base", "model.scale_positional_embedding"})
      options_.no_key(option, "nothing: positions are learned");
  } else {
    shape.rope_theta = options_.number("model.rotary_base", 10000);
    if (!(shape.rope_theta > 0)) refuse("model.rotary_base", "must be above 0");
    draft_.say(options_.shown("model.rotary_base"), fmt::format("config.json rope_theta: {}", shape.rope_theta));
    shape.llama3_rope = options_.flag("model.scale_positional_embedding", false);
    options_.no_key("model.scale_positional_embedding",
                    shape.llama3_rope ? "config.json rope_scaling: Llama 3.1's, factor 8" : "no rope_scaling");
  }
  for (const auto& [name, value] : {std::pair("num_layers", shape.layers),
                                    {"hidden_size", shape.hidden_size},
                                    {"num_attention_heads", shape.heads},
                                    {"ffn_hidden_size", shape.intermediate_size},
                                    {"max_position_embeddings", shape.positions}})
    if (value < 1) refuse(fmt::format("model.{}", name), "must be at least 1");
  if (shape.heads < 1 || shape.hidden_size % std::max<int64_t>(shape.heads, 1) != 0) {
    refuse("model.num_attention_heads", fmt::format("does not divide the width {}", shape.hidden_size));
    shape.heads = shape.kv_heads = 1;
  }
  if (gpt_ && shape.kv_heads != shape.heads)
    refuse("model.num_query_groups", "a GPT has as many key/value heads as query heads");
  if (options_.given("model.kv_channels") &&
      options_.integer("model.kv_channels", 1) * shape.heads != shape.hidden_size)
    refuse("model.kv_channels",
           fmt::format("a head has {} elements, the width over the heads", shape.hidden_size / shape.heads));
  if (options_.number("model.ffn_dropout", 0) != 0)
    refuse("model.ffn_dropout", "there is no dropout inside of the MLP");
  else
    options_.no_key("model.ffn_dropout", "always");
  if (options_.number("model.rotary_percentage", 1) != 1)
    refuse("model.rotary_percentage", "rotary positions cover whole heads");
  else
    options_.no_key("model.rotary_percentage", "always");
  if (!gpt_ && (shape.hidden_dropout != 0 || shape.attention_dropout != 0))
    draft_.problem("model.hidden_dropout and attention_dropout: a Llama has none: set both to 0");
  if (!is("model.transformer_block_type", "pre_ln", {"pre_ln"}))
    refuse("model.transformer_block_type", "only pre_ln");
  else
    options_.no_key("model.transformer_block_type", "always");
  only("model.use_scaled_init_method", true, "projections that end in the residual start with std / sqrt(2 layers)");
  only("model.normalize_attention_scores", true, "attention scores are divided by the square root of the head size");
  only("model.fp32_residual_connection", false, "the residual is in the compute type");
  only("model.fp16_lm_cross_entropy", false, "the cross entropy is in fp32");
  only("model.headscale", false, "heads have no scale of their own");
  only("model.layernorm_zero_centered_gamma", false, "gains start from 1");
  const bool decay_norms = options_.flag("model.do_layer_norm_weight_decay", false);
  draft_.set("optimizer.decay_norms", decay_norms ? "true" : "false");
  options_.no_key("model.do_layer_norm_weight_decay", fmt::format("optimizer.decay_norms: {}", decay_norms));
  model_report(shape);
  set("model.make_vocab_size_divisible_by", "model.pad_vocab_to",
      std::to_string(options_.integer("model.make_vocab_size_divisible_by", 128)));
  draft_.model(shape);
}

void NemoImporter::model_report(const ImportedModel& shape) {
  const std::string family = gpt_ ? "gpt2 (GPT-2 and GPT-3)" : "llama";
  draft_.say("the model", fmt::format("model.path: model, init: random; model/config.json, model_type {}", family));
  const auto line = [&](const char* option, const std::string& became) {
    draft_.say(options_.shown(std::string("model.") + option), "config.json " + became);
  };
  line("num_layers", fmt::format("{}: {}", gpt_ ? "n_layer" : "num_hidden_layers", shape.layers));
  line("hidden_size", fmt::format("{}: {}", gpt_ ? "n_embd" : "hidden_size", shape.hidden_size));
  line("ffn_hidden_size", fmt::format("{}: {}", gpt_ ? "n_inner" : "intermediate_size", shape.intermediate_size));
  line("num_attention_heads", fmt::format("{}: {}", gpt_ ? "n_head" : "num_attention_heads", shape.heads));
  line("max_position_embeddings",
       fmt::format("{}: {}", gpt_ ? "n_positions" : "max_position_embeddings", shape.positions));
  line("layernorm_epsilon",
       fmt::format("{}: {}", gpt_ ? "layer_norm_epsilon" : "rms_norm_eps", format_exact(shape.norm_eps)));
  line("init_method_std", fmt::format("initializer_range: {}", format_exact(shape.initializer_range)));
  if (gpt_) {
    line("hidden_dropout", fmt::format("embd_pdrop and resid_pdrop: {}", format_exact(shape.hidden_dropout)));
    line("attention_dropout", fmt::format("attn_pdrop: {}", format_exact(shape.attention_dropout)));
    line(
        "bias_activation_fusion",
        fmt::format("activation_function: {}",
                    shape.gelu_erf ? "gelu (erf)" : "gelu_new, the tanh approximation that the fused kernel computes"));
  }
  draft_.say(options_.shown("model.tokenizer.type"), fmt::format("config.json vocab_size: {}", shape.vocab_size));
}

void NemoImporter::batch() {
  micro_ = options_.count("model.micro_batch_size", 4, 1);
  global_ = options_.count("model.global_batch_size", 256, 1);
  set("model.micro_batch_size", "batch.micro_batch_size", std::to_string(micro_));
  set("model.global_batch_size", "batch.global_batch_size", std::to_string(global_));
  const int64_t nodes = options_.count("trainer.num_nodes", 1, 1), devices = options_.count("trainer.devices", 1, 1);
  ranks_ = nodes * devices;
  for (const char* option : {"trainer.num_nodes", "trainer.devices"})
    options_.no_key(option, fmt::format("no key: the job has {} x {} = {} ranks", nodes, devices, ranks_));
  if (ranks_ > global_ || global_ % (micro_ * ranks_) != 0)
    refuse("model.global_batch_size",
           fmt::format("must be a multiple of micro_batch_size {} x {} ranks", micro_, ranks_));
  if (const std::vector<std::string> ramp = options_.list("model.rampup_batch_size"); !ramp.empty())
    set("model.rampup_batch_size", "batch.rampup", "[" + join(ramp, ", ") + "]", "on the same nodes for the whole run");
}

ImportedConfig import_nemo(const ConfNode& training, const std::string& source, const NemoImport& options) {
  return NemoImporter(training, source, options).run();
}

}  // namespace trireme
