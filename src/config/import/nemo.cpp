// The training configurations of NeMo's launcher as ours.
#include "importer.h"
#include "nemo_keys.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

namespace trireme {

namespace {

class NemoImporter : Importer<TreeOptions> {
 public:
  NemoImporter(const ConfNode& training, const std::string& source, const NemoImport& import)
      : Importer(source, &OptionNames::nemo, nemo_training_keys()), import_(import) {
    if (import.ignore_unknown) options_.ignore_unknown();
    add_conf_options(training, options_);
    if (const ConfNode* model = training.find("model"))
      if (const ConfNode* data = model->find("data"))
        if (const ConfNode* prefix = data->find("data_prefix")) prefix_ = *prefix;
  }

  ImportedConfig run() {
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

 private:
  /// A number of batches, as Lightning counts them.
  struct Batches {
    bool all = false;  // 1.0, or not given
    int64_t samples = 0;
  };

  void refuse(const std::string& option, const std::string& why) { options_.problem(option, why); }

  /// Refuses anything but `wanted`; says nothing where the option is not given.
  void only(const std::string& option, bool wanted, const std::string& why) {
    if (options_.flag(option, wanted) != wanted)
      refuse(option, why);
    else
      options_.no_key(option, "always");
  }

  std::string absolute(const std::string& path) const {
    const std::filesystem::path given = path;
    if (import_.base.empty() || given.is_absolute()) return path;
    return (import_.base / given).lexically_normal().string();
  }

  void refused() {
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

  bool is(const std::string& option, const std::string& otherwise, std::initializer_list<const char*> words) {
    const std::string value = options_.text(option, otherwise);
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return value == word; });
  }

  /// Which of the two families the options describe; a problem where it is neither.
  bool is_gpt() {
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
      for (const char* option : {"model.normalization", "model.activation", "model.position_embedding_type",
                                 "model.bias", "model.share_embeddings_and_output_weights"})
        options_.no_key(option, gpt ? "as every gpt2 model has it" : "as every Llama has it");
    return gpt || !llama;
  }

  /// The file or directory that the tokenizer's keys name; empty: none.
  std::string tokenizer_path() {
    const std::string library = options_.text("model.tokenizer.library", ""),
                      type = options_.text("model.tokenizer.type", "");
    const std::string vocabulary = options_.text("model.tokenizer.vocab_file", ""),
                      model = options_.text("model.tokenizer.model", "");
    (void)options_.text("model.tokenizer.merge_file", "");
    const std::string path = library == "sentencepiece" ? model : library == "huggingface" ? type : vocabulary;
    return path.empty() ? "" : absolute(path);
  }

  int64_t vocabulary() {
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
        refuse("model.tokenizer.type", fmt::format("--vocab-size says {}, {} has {} tokens", *import_.vocab_size, path,
                                                   tokenizer_->vocab_size));
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

  void model() {
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
    take<int64_t>("model.pad_vocab_to", 128);
    draft_.model(shape);
  }

  void model_report(const ImportedModel& shape) {
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
      line("bias_activation_fusion",
           fmt::format(
               "activation_function: {}",
               shape.gelu_erf ? "gelu (erf)" : "gelu_new, the tanh approximation that the fused kernel computes"));
    }
    draft_.say(options_.shown("model.tokenizer.type"), fmt::format("config.json vocab_size: {}", shape.vocab_size));
  }

  void batch() {
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
      set("model.rampup_batch_size", "batch.rampup", "[" + join(ramp, ", ") + "]",
          "on the same nodes for the whole run");
  }

  void data() {
    const int64_t length =
        options_.integer("model.data.seq_length", options_.integer("model.encoder_seq_length", 2048));
    if (options_.integer("model.encoder_seq_length", length) != length)
      refuse("model.data.seq_length", fmt::format("must be {}", options_.shown("model.encoder_seq_length")));
    else
      options_.no_key("model.encoder_seq_length", "as model.data.seq_length");
    set("model.data.seq_length", "data.seq_length", std::to_string(length));
    const std::string impl = options_.word("model.data.data_impl", "mmap", {"mmap", "mock"});
    mock_ = impl == "mock" || options_.flag("model.data.mock_dataset", false);
    if (!is("model.data.dataloader_type", "single", {"single"}))
      refuse("model.data.dataloader_type", "only single: samples in the order of the index map");
    else
      options_.no_key("model.data.dataloader_type", "always: samples in the order of the index map");
    only("model.data.legacy_dataset", true,
         "the maps are NeMo's; in the result data.index_rules: core has Megatron core's");
    only("model.data.shuffle_documents", true, "the index maps shuffle documents");
    only("model.data.no_seqlen_plus_one_input_tokens", false, "rows are read with the token after their last one");
    if (mock_) {
      draft_.set("data.train", "mock");
      draft_.say(options_.shown("model.data.data_impl"),
                 "data.train: mock; labels are drawn independently, the loss stays at ln(vocabulary)");
      if (prefix_.is(ConfNode::Kind::kList) && !prefix_.items.empty())
        draft_.say("model.data.data_prefix", "not read: the data is mock");
      for (const char* option : {"model.data.splits_string", "model.data.index_mapping_dir", "model.data.data_prefix"})
        options_.no_key(option, "no meaning with mock data");
      return;
    }
    data_prefixes();
    if (options_.given("model.data.index_mapping_dir"))
      set("model.data.index_mapping_dir", "data.index_cache",
          yaml_text(absolute(options_.text("model.data.index_mapping_dir", ""))));
    for (const char* name : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}) {
      const std::string option = std::string("model.data.") + name;
      const bool on = options_.flag(option, false);
      // NeMo's end of a document is the tokenizer's EOS; GPT-2's vocabulary ends with it.
      const std::optional<int64_t> eos = tokenizer_ ? tokenizer_->eos
                                         : gpt_     ? std::optional<int64_t>(50256)
                                                    : std::nullopt;
      if (on && eos)
        draft_.set("data.eos_token", std::to_string(*eos));
      else if (on)
        refuse(option, "the id that ends a document is not known here: the tokenizer's file is not there");
      if (on)
        set(option, std::string("data.") + name, "true");
      else
        options_.no_key(option, "the default");
    }
  }

  void data_prefixes() {
    if (prefix_.is(ConfNode::Kind::kMap)) {
      options_.no_key("model.data.data_impl", "data.train names .bin and .idx files");
      // One set of files for each of the three.
      for (const auto& [name, key] :
           {std::pair("train", "data.train"), {"validation", "data.valid"}, {"test", "data.test"}}) {
        const std::string option = std::string("model.data.data_prefix.") + name;
        const std::vector<std::string> paths = options_.list(option);
        if (paths.size() > 1) {
          refuse(option, "one set of files each; a blend is a list in data_prefix");
        } else if (!paths.empty()) {
          set(option, key, yaml_text(absolute(paths.front())));
        }
      }
      return;
    }
    const std::vector<ConfNode>& items = prefix_.items;
    if (items.empty()) {
      draft_.problem(
          fmt::format("{}: names no data: write a path, or weights and paths in turn (data_impl=mock needs none)",
                      options_.shown("model.data.data_prefix")));
      draft_.set("data.train", "none");
      return;
    }
    std::string parts;
    if (items.size() == 1) {
      parts = yaml_text(absolute(items.front().str()));
    } else {
      for (size_t i = 0; i < items.size(); i += 2) {
        const bool number = items[i].is(ConfNode::Kind::kNumber) || items[i].is(ConfNode::Kind::kInteger);
        if (!number || i + 1 == items.size() || !items[i + 1].is(ConfNode::Kind::kText)) {
          draft_.problem(fmt::format("{}: model.data.data_prefix: weights and paths must follow each other, not {}",
                                     items[i].place.text(), items[i].str()));
          break;
        }
        parts +=
            fmt::format("\n    - {{path: {}, weight: {}}}", yaml_text(absolute(items[i + 1].text)), items[i].str());
      }
    }
    draft_.set("data.train", parts);
    draft_.say("model.data.data_prefix",
               items.size() == 1 ? "data.train: " + parts
                                 : fmt::format("data.train: {} sets of files with weights", items.size() / 2));
    (void)options_.shown("model.data.data_prefix");  // the line above is without the long list
    options_.no_key("model.data.data_impl", "data.train names .bin and .idx files");
    take<std::string>("data.splits", "900,50,50");
    splits_ = true;
  }

  void optimizer() {
    const std::string name =
        options_.word("model.optim.name", "distributed_fused_adam",
                      {"distributed_fused_adam", "mcore_distributed_optim", "fused_adam", "adamw"});
    draft_.set("optimizer.name", "adamw");
    take("optimizer.lr", 1e-4);
    take("optimizer.weight_decay", 0.01);
    std::vector<std::string> betas = options_.list("model.optim.betas");
    if (betas.empty()) betas = {"0.9", "0.999"};
    set("model.optim.betas", "optimizer.betas", "[" + join(betas, ", ") + "]");
    take("optimizer.eps", 1e-8);
    take("optimizer.grad_clip", 0.0);

    const bool fsdp = options_.flag("model.fsdp", false), divided = name != "fused_adam" && name != "adamw";
    const std::string strategy = options_.word("model.fsdp_sharding_strategy", "full", {"full", "hybrid", "grad"});
    if (fsdp) {
      set("model.fsdp_sharding_strategy", "parallel.policy", strategy == "grad" ? "gradients" : "full");
      draft_.set("parallel.shard_size", strategy == "hybrid" ? "auto" : "world");
      draft_.say(options_.shown("model.optim.name"), "optimizer.name: adamw; FSDP divides its state");
    } else {
      options_.no_key("model.fsdp_sharding_strategy", "not used there: model.fsdp is off");
      // It reduces and scatters after the last micro-batch only, and keeps whole gradients until then.
      const std::string policy = !divided ? "none" : global_ / (micro_ * ranks_) > 1 ? "optimizer" : "gradients";
      draft_.set("parallel.policy", policy);
      draft_.say(options_.shown("model.optim.name"),
                 fmt::format("optimizer.name: adamw, parallel.policy: {}{}", policy,
                             policy == "optimizer" ? " (gradients stay whole over the micro-batches of a step)" : ""));
    }
    options_.no_key("model.fsdp", fsdp ? "parallel.policy" : "parallel.policy, from the optimizer");
    const std::string reduce =
        options_.text(fsdp ? "model.fsdp_grad_reduce_dtype" : "model.optim.grad_sync_dtype", "32");
    if (const std::string option = fsdp ? "model.fsdp_grad_reduce_dtype" : "model.optim.grad_sync_dtype";
        options_.given(option)) {
      const bool low = reduce.starts_with("bf16") || reduce.starts_with("16");
      if (!low && !reduce.starts_with("32") && reduce != "fp32") refuse(option, "one of 32, bf16, 16");
      set(option, "parallel.reduce_dtype", low ? "compute" : "fp32");
    }
    if (!fsdp) options_.no_key("model.fsdp_grad_reduce_dtype", "not used there: model.fsdp is off");
  }

  void schedule() {
    const std::string name = options_.word("model.optim.sched.name", "CosineAnnealing", {"CosineAnnealing"});
    draft_.set("schedule.name", "cosine");
    draft_.say(options_.shown("model.optim.sched.name"), name == "CosineAnnealing" ? "schedule.name: cosine" : "");
    const int64_t constant = options_.count("model.optim.sched.constant_steps", 0, 0);
    if (constant > 0)
      set("model.optim.sched.constant_steps", "schedule.constant_steps", std::to_string(constant));
    else
      options_.no_key("model.optim.sched.constant_steps", "the default");
    take<int64_t>("schedule.warmup_steps", 0);
    take("schedule.min_lr", 0.0);
    for (const char* option : {"model.optim.sched.max_steps", "model.optim.sched.max_steps_for_lr_sched"})
      if (options_.given(option) && options_.integer(option, 0) != options_.integer("trainer.max_steps", 0))
        refuse(option, "the schedule has the length of the run, trainer.max_steps");
  }

  void trainer() {
    const int64_t steps = options_.integer("trainer.max_steps", 1);
    if (steps < 1) refuse("trainer.max_steps", "must be at least 1");
    set("trainer.max_steps", "train.max_steps", std::to_string(std::max<int64_t>(1, steps)));
    if (options_.given(option_of("train.deterministic"))) take("train.deterministic", false);
    if (const std::string train = "trainer.limit_train_batches"; options_.given(train)) {
      // Batches of an epoch; max_steps ends the run.
      if (options_.is_fraction(train) ? options_.number(train, 1) != 1 : options_.integer(train, steps) < steps)
        refuse(train, "the run would read the same rows again: leave it out, or set it to trainer.max_steps");
      else
        options_.no_key(train, "no key: max_steps ends the run");
    }
    if (options_.flag("model.deterministic_mode", false))
      set("model.deterministic_mode", "train.deterministic", "true");
    if (options_.given(option_of("train.max_time"))) take<std::string>("train.max_time", "");
    set("trainer.log_every_n_steps", "logging.every_steps",
        std::to_string(options_.count("trainer.log_every_n_steps", 10, 1)));
    if (options_.integer("trainer.accumulate_grad_batches", 1) != 1)
      refuse("trainer.accumulate_grad_batches",
             "must be 1, as in NeMo: global and micro batch size give the micro-batches");
    else
      options_.no_key("trainer.accumulate_grad_batches", "no key: global and micro batch size give the micro-batches");
    take<int64_t>("train.seed", 1234);
    draft_.set("train.loss", "token_mean");
  }

  Batches batches(const std::string& option) {
    // Lightning: an integer counts batches, a fraction is a share of all, and the default is 1.0.
    if (!options_.given(option) || (options_.is_fraction(option) && options_.number(option, 1) == 1)) return {true, 0};
    const double count = options_.number(option, 0);
    if (options_.is_fraction(option) && count != 0)
      refuse(option, count > 0 && count < 1
                         ? "a share of the batches is not available: write a number of batches, or 1.0"
                         : "a number of batches is an integer, as NeMo says; 1.0 is all of them");
    else if (count < 0 || count > 2147483647)
      refuse(option, "must be a number of batches from 0 to 2147483647, or 1.0 for all");
    return {false, static_cast<int64_t>(std::clamp(count, 0.0, 2147483647.0)) * global_};
  }

  /// Steps between validations; 0: only at the end of the run.
  int64_t validation_interval() {
    const std::string option = "trainer.val_check_interval";
    if (!options_.given(option)) return 0;
    if (options_.is_fraction(option)) {
      if (options_.number(option, 1) != 1) refuse(option, "must be a number of steps, or 1.0 for the end of the run");
      return 0;
    }
    const int64_t every = options_.integer(option, 1);
    if (every < 1 || every > 2147483647)
      refuse(option, "must be a number of steps from 1 to 2147483647, or 1.0 for the end of the run");
    return std::clamp<int64_t>(every, 1, 2147483647);
  }

  void evaluation() {
    const int64_t every = validation_interval();
    const auto evaluated = [&](const char* option, const char* key, const char* data_key, const Batches& count) {
      if (mock_) draft_.set(data_key, "mock", options_.origin(option));
      if (!count.all)
        set(option, key, std::to_string(count.samples), fmt::format("{} batches", count.samples / global_));
      else if (mock_)
        refuse(option, "mock data has no end: write a number of batches");
      else if (prefix_.items.size() > 2)
        refuse(option, "a blend has no end: write a number of batches");
      else
        draft_.say(options_.shown(option), fmt::format("{}: null, all rows", key));
    };
    const Batches valid = batches("trainer.limit_val_batches"), test = batches("trainer.limit_test_batches");
    const bool validates = valid.all ? options_.given("trainer.limit_val_batches") || !mock_ : valid.samples > 0;
    if (validates) {
      if (every > 0)
        set("trainer.val_check_interval", "eval.every_samples", std::to_string(every * global_),
            fmt::format("{} steps", every));
      else
        options_.no_key("trainer.val_check_interval", "eval.every_samples: null, at the end of the run");
      evaluated("trainer.limit_val_batches", "eval.samples", "data.valid", valid);
    } else {
      options_.no_key("trainer.val_check_interval", "nothing: limit_val_batches is 0");
      options_.no_key("trainer.limit_val_batches",
                      splits_ ? fmt::format("eval.samples: {}; an evaluation of one batch at the end remains", global_)
                              : "no data.valid, no evaluation");
      if (splits_) draft_.set("eval.samples", std::to_string(global_));
    }
    const bool has_test = splits_ || mock_ || options_.given("model.data.data_prefix.test");
    if (validates && has_test && options_.given("trainer.limit_test_batches") && (test.all || test.samples > 0))
      evaluated("trainer.limit_test_batches", "eval.test_samples", "data.test", test);
    else
      options_.no_key("trainer.limit_test_batches",
                      validates ? "nothing: there are no test rows, or 0 of them" : "nothing: there is no validation");
  }

  void precision() {
    const std::string text = options_.text("trainer.precision", "bf16");
    const bool bf16 = text.starts_with("bf16"), fp16 = text.starts_with("16"), fp32 = text.starts_with("32");
    const std::string suffix = text.substr(std::min<size_t>(text.size(), bf16 ? 4 : 2));
    if ((!bf16 && !fp16 && !fp32) || (!suffix.empty() && suffix != "-mixed" && suffix != "-true"))
      refuse("trainer.precision", "one of bf16, 16, 32, and their -mixed and -true");
    set("trainer.precision", "precision.compute", fp32 ? "fp32" : fp16 ? "fp16" : "bf16");
    const double scale = options_.number("model.native_amp_init_scale", 65536);
    if (fp16 && !(scale >= 1)) refuse("model.native_amp_init_scale", "must be at least 1");
    if (fp16)
      set("model.native_amp_init_scale", "precision.loss_scale", yaml_text(std::clamp(scale, 1.0, 16777216.0)),
          scale > 16777216 ? "the largest that is allowed" : "");
    else
      options_.no_key("model.native_amp_init_scale", "no meaning here: only fp16 has a loss scale");
    const bool fp8 = options_.flag("model.fp8", false);
    if (fp8 && options_.flag("model.fp8_e4m3", false))
      refuse("model.fp8_e4m3", "gradients are E5M2: set fp8_hybrid");
    else
      options_.no_key("model.fp8_e4m3", "gradients are E5M2, as with fp8_hybrid");
    if (!fp8) {
      options_.no_key("model.fp8", "precision.linear: compute");
      return;
    }
    set("model.fp8", "precision.linear", "fp8", "precision.fp8_recipe: delayed");
    draft_.set("precision.fp8_recipe", "delayed");
  }

  void parallel() {
    if (!options_.flag("model.fsdp", false))
      draft_.say("parallel.shard_size",
                 "auto: the plan chooses the ranks that share; world divides over all, as NeMo does");
  }

  void recompute() {
    const std::string what = options_.text("model.activations_checkpoint_granularity", "none"),
                      how = options_.word("model.activations_checkpoint_method", "uniform", {"uniform", "block"});
    const int64_t count = options_.integer("model.activations_checkpoint_num_layers", 0);
    std::string value = "none";
    if (what == "full" && how == "block")
      value = count >= layers_ ? "full" : count > 0 ? fmt::format("{}/{}", count, layers_) : "none";
    else if (what == "full")
      value = "full";
    else if (what != "none" && what != "selective")
      refuse("model.activations_checkpoint_granularity", "one of null, selective, full");
    set("model.activations_checkpoint_granularity", "parallel.recompute", value,
        what == "selective" ? "the attention kernels keep no scores: they always recompute them" : "");
    const std::string of = what == "full" ? "parallel.recompute" : "nothing: granularity is not full";
    options_.no_key("model.activations_checkpoint_method", of);
    options_.no_key("model.activations_checkpoint_num_layers", of);
  }

  void experiment() {
    set("exp_manager.explicit_log_dir", "output.dir",
        yaml_text(absolute(options_.text("exp_manager.explicit_log_dir", "results"))));
    const bool saves = options_.flag("exp_manager.create_checkpoint_callback", true);
    const int64_t every = validation_interval();
    if (saves) {
      if (every > 0)
        set("exp_manager.create_checkpoint_callback", "output.save_every_samples", std::to_string(every * global_),
            "after each validation");
      else
        options_.no_key("exp_manager.create_checkpoint_callback", "a signal saves (output.save_on_stop)");
      const int64_t keep = options_.integer("exp_manager.checkpoint_callback_params.save_top_k", 10);
      set("exp_manager.checkpoint_callback_params.save_top_k", "output.keep_last",
          std::to_string(std::max<int64_t>(2, keep < 0 ? 9007199254740991 / 4194304 : keep)),
          "the newest; NeMo keeps the best and the last");
    } else {
      set("exp_manager.create_checkpoint_callback", "output.save_on_stop", "false", "no checkpoints");
      options_.no_key("exp_manager.checkpoint_callback_params.save_top_k", "no checkpoints");
    }
    options_.no_key("exp_manager.resume_if_exists",
                    options_.flag("exp_manager.resume_if_exists", false)
                        ? "always: a run goes on from the newest whole checkpoint in output.dir"
                        : "no key: `trireme launch` moves the results of an earlier run to run_<k>");
    options_.no_key("exp_manager.create_wandb_logger", "no meaning here: nothing is sent anywhere");
    draft_.set("logging.style", "nemo");
    draft_.say("exp_manager", "logging.style: nemo: log files and TensorBoard events of NeMo's experiment manager");
  }

  void profile() {
    if (!options_.flag("model.nsys_profile.enabled", false)) {
      for (const char* name : {"enabled", "start_step", "end_step", "ranks", "gen_shape"})
        options_.no_key(std::string("model.nsys_profile.") + name, "nothing: profiling is off");
      return;
    }
    const int64_t start = options_.count("model.nsys_profile.start_step", 10, 0),
                  end = options_.count("model.nsys_profile.end_step", 10, start);
    std::vector<std::string> ranks = options_.list("model.nsys_profile.ranks");
    if (ranks.empty()) ranks = {"0"};
    draft_.set("profile.wait", std::to_string(std::max<int64_t>(0, start - 1)));
    draft_.set("profile.warmup", start > 0 ? "1" : "0");
    draft_.set("profile.active", std::to_string(end - start + 1));
    draft_.set("profile.repeat", "1");
    draft_.set("profile.ranks", "[" + join(ranks, ", ") + "]");
    draft_.set("profile.shapes", options_.flag("model.nsys_profile.gen_shape", false) ? "true" : "false");
    draft_.say(options_.shown("model.nsys_profile.enabled"),
               fmt::format("profile: steps {} to {} of ranks {}, between cudaProfilerStart and cudaProfilerStop",
                           start + 1, end + 1, join(ranks, ", ")));
  }

  NemoImport import_;
  ConfNode prefix_;  // model.data.data_prefix
  std::optional<ImportedTokenizer> tokenizer_;
  bool gpt_ = true, mock_ = false, splits_ = false;
  int64_t ranks_ = 1, micro_ = 1, global_ = 1, layers_ = 1;
};

}  // namespace

ImportedConfig import_nemo(const ConfNode& training, const std::string& source, const NemoImport& options) {
  return NemoImporter(training, source, options).run();
}

}  // namespace trireme
