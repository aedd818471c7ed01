// The training configurations of NeMo's launcher as ours.
#include "importer.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

class NemoImporter : Importer {
 public:
  NemoImporter(const ConfNode& training, const std::string& source, const NemoImport& import)
      : Importer(source, &OptionNames::nemo, nemo_options(), import.base), import_(import) {
    if (import.ignore_unknown) ignore_unknown();
    if (const ConfNode* model = training.find("model"); model != nullptr && model->find("bert_binary_head") != nullptr)
      throw ConfigError(source +
                        ": this is a BERT configuration; only those of GPT and Llama can be imported. Write one for "
                        "train_bert: docs/howto/train-bert.md");
    add_below(training, "");
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
    rest();
    ImportedConfig imported = finish();
    imported.program = gpt_ ? "train_gpt" : "train_llama";
    imported.tokenizer = std::move(tokenizer_);
    imported.output_dir = output_dir_;
    return imported;
  }

 private:
  /// A number of batches, as Lightning counts them.
  struct Batches {
    bool all = false;  // 1.0, or not given
    int64_t samples = 0;
  };

  /// "hydra" and "defaults" are not read.
  void add_below(const ConfNode& node, const std::string& prefix) {
    for (const ConfEntry& entry : node.entries) {
      if (prefix.empty() && (entry.key == "hydra" || entry.key == "defaults")) continue;
      const std::string name = prefix + entry.key;
      const ConfNode& value = entry.value;
      // The key in the file, or the override that gave the value.
      const std::string place = (value.place.line == 0 ? value.place : entry.place).text();
      if (!value.is(ConfNode::Kind::kMap))
        add(name, value, value.str(), place);
      else if (enter_section(name, place))
        add_below(value, name + ".");
    }
  }

  /// Refuses anything but `wanted`; says nothing where the option is not given.
  void only(const std::string& option, bool wanted, const std::string& why) {
    expect(option, flag(option, wanted) == wanted, why, "always");
  }

  void refused() {
    const std::string remedy =
        "parallelism is not there; parallel.policy (none, optimizer, gradients, full) divides memory among the ranks: "
        "set it to 1, and model.fsdp=True where the weights themselves do not fit";
    for (const auto& [option, kind] : {std::pair("model.tensor_model_parallel_size", "tensor "),
                                       {"model.pipeline_model_parallel_size", "pipeline "},
                                       {"model.expert_model_parallel_size", "expert "}})
      expect(option, integer(option, 1) == 1, kind + remedy, "one: as here");
    if (integer("model.virtual_pipeline_model_parallel_size", 0) > 1)
      refuse("model.virtual_pipeline_model_parallel_size", "pipeline " + remedy);
    for (const char* option : {"restore_from_path", "model.restore_from_path", "model.resume_from_checkpoint",
                               "exp_manager.resume_from_checkpoint"})
      if (given(option)) refuse(option, "NeMo's checkpoints are not read: set it to null, or start from model.path");
    if (flag("model.cpu_offloading", false))
      became(
          "model.cpu_offloading",
          "parallel.offload: auto; activations go to the host where the plan finds it worth the copies, weights stay");
    if (given("model.seq_len_interpolation_factor"))
      refuse("model.seq_len_interpolation_factor", "positions are not interpolated");
    (void)word("trainer.accelerator", "gpu", {"gpu", "cpu", "auto"});
  }

  /// Which of the two families the options describe; a problem where it is neither.
  bool is_gpt() {
    const std::string norm = text("model.normalization", "layernorm"), activation = text("model.activation", "gelu"),
                      positions = text("model.position_embedding_type", "learned_absolute");
    const bool bias = flag("model.bias", true), shared = flag("model.share_embeddings_and_output_weights", true);
    const bool gpt = norm == "layernorm" && activation == "gelu" && positions == "learned_absolute" && bias && shared,
               llama = norm == "rmsnorm" && (activation == "swiglu" || activation == "fast-swiglu") &&
                       positions == "rope" && !bias && !shared;
    if (!gpt && !llama)
      problem(fmt::format(
          "{}; {}; {}; {}; {}: neither a GPT-3 (layernorm, gelu, learned_absolute, biases, shared embeddings) nor a "
          "Llama (rmsnorm, fast-swiglu, rope, none, not shared)",
          shown("model.normalization"), shown("model.activation"), shown("model.position_embedding_type"),
          shown("model.bias"), shown("model.share_embeddings_and_output_weights")));
    else
      for (const char* option : {"model.normalization", "model.activation", "model.position_embedding_type",
                                 "model.bias", "model.share_embeddings_and_output_weights"})
        no_key(option, gpt ? "as every gpt2 model has it" : "as every Llama has it");
    return gpt || !llama;
  }

  /// The file or directory that the tokenizer's keys name; empty: none.
  std::string tokenizer_path() {
    const std::string library = text("model.tokenizer.library", ""), type = text("model.tokenizer.type", "");
    const std::string vocabulary = text("model.tokenizer.vocab_file", ""), model = text("model.tokenizer.model", "");
    (void)text("model.tokenizer.merge_file", "");
    const std::string path = library == "sentencepiece" ? model : library == "huggingface" ? type : vocabulary;
    return absolute(path);
  }

  int64_t vocabulary() {
    const std::string type = text("model.tokenizer.type", ""), path = tokenizer_path(),
                      merges = text("model.tokenizer.merge_file", "");
    if (import_.tokenizer && !path.empty()) {
      try {
        tokenizer_ = import_.tokenizer(path);
      } catch (const Error& error) {
        problem(error.what());
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
      no_key(std::string("model.tokenizer.") + option,
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
    put("model.path", "model");
    put("model.init", "random");
    gpt_ = is_gpt();
    ImportedModel shape;
    shape.name = "model";
    shape.gpt = gpt_;
    shape.layers = layers_ = integer("model.num_layers", 12);
    shape.hidden_size = integer("model.hidden_size", 768);
    shape.heads = integer("model.num_attention_heads", 12);
    shape.kv_heads = integer("model.num_query_groups", shape.heads);
    shape.intermediate_size = integer("model.ffn_hidden_size", 4 * shape.hidden_size);
    shape.positions = integer("model.max_position_embeddings", 2048);
    shape.norm_eps = number("model.layernorm_epsilon", 1e-5);
    shape.initializer_range = number("model.init_method_std", 0.02);
    shape.hidden_dropout = number("model.hidden_dropout", 0.1);
    shape.attention_dropout = number("model.attention_dropout", 0.1);
    shape.gelu_erf = !flag("model.bias_activation_fusion", true) && !flag("model.openai_gelu", false);
    shape.vocab_size = vocabulary();
    set_ends(shape, tokenizer_);
    if (gpt_) {
      for (const char* option : {"model.rotary_base", "model.scale_positional_embedding"})
        no_key(option, "nothing: positions are learned");
    } else {
      shape.rope_theta = number("model.rotary_base", 10000);
      if (!(shape.rope_theta > 0)) refuse("model.rotary_base", "must be above 0");
      became("model.rotary_base", fmt::format("config.json rope_theta: {}", shape.rope_theta));
      shape.llama3_rope = flag("model.scale_positional_embedding", false);
      no_key("model.scale_positional_embedding",
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
    if (given("model.kv_channels") && integer("model.kv_channels", 1) * shape.heads != shape.hidden_size)
      refuse("model.kv_channels",
             fmt::format("a head has {} elements, the width over the heads", shape.hidden_size / shape.heads));
    expect("model.ffn_dropout", number("model.ffn_dropout", 0) == 0, "there is no dropout inside of the MLP", "always");
    expect("model.rotary_percentage", number("model.rotary_percentage", 1) == 1, "rotary positions cover whole heads",
           "always");
    if (!gpt_ && (shape.hidden_dropout != 0 || shape.attention_dropout != 0))
      problem("model.hidden_dropout and attention_dropout: a Llama has none: set both to 0");
    expect("model.transformer_block_type", text("model.transformer_block_type", "pre_ln") == "pre_ln", "only pre_ln",
           "always");
    only("model.use_scaled_init_method", true, "projections that end in the residual start with std / sqrt(2 layers)");
    only("model.normalize_attention_scores", true, "attention scores are divided by the square root of the head size");
    only("model.fp32_residual_connection", false, "the residual is in the compute type");
    only("model.fp16_lm_cross_entropy", false, "the cross entropy is in fp32");
    only("model.headscale", false, "heads have no scale of their own");
    only("model.layernorm_zero_centered_gamma", false, "gains start from 1");
    const bool decay_norms = flag("model.do_layer_norm_weight_decay", false);
    put("optimizer.decay_norms", decay_norms ? "true" : "false");
    no_key("model.do_layer_norm_weight_decay", fmt::format("optimizer.decay_norms: {}", decay_norms));
    model_report(shape);
    take<int64_t>("model.pad_vocab_to", 128);
    model_ = shape;
  }

  void model_report(const ImportedModel& shape) {
    const std::string family = gpt_ ? "gpt2 (GPT-2 and GPT-3)" : "llama";
    say("the model", fmt::format("model.path: model, init: random; model/config.json, model_type {}", family));
    const auto line = [&](const char* option, const std::string& what) {
      became(std::string("model.") + option, "config.json " + what);
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
    became("model.tokenizer.type", fmt::format("config.json vocab_size: {}", shape.vocab_size));
  }

  void batch() {
    micro_ = count("model.micro_batch_size", 4, 1);
    global_ = count("model.global_batch_size", 256, 1);
    set("model.micro_batch_size", "batch.micro_batch_size", std::to_string(micro_));
    set("model.global_batch_size", "batch.global_batch_size", std::to_string(global_));
    const int64_t nodes = count("trainer.num_nodes", 1, 1), devices = count("trainer.devices", 1, 1);
    ranks_ = nodes * devices;
    for (const char* option : {"trainer.num_nodes", "trainer.devices"})
      no_key(option, fmt::format("no key: the job has {} x {} = {} ranks", nodes, devices, ranks_));
    const std::string context = option_of("parallel.context_size");
    if (const int64_t size = count(context, 1, 1); ranks_ % size != 0) {
      refuse(context, fmt::format("does not divide the {} ranks", ranks_));
    } else if (given(context)) {
      take<int64_t>("parallel.context_size", 1);
      readers_ = ranks_ / size;
    } else {
      readers_ = ranks_;
    }
    if (readers_ > global_ || global_ % (micro_ * readers_) != 0)
      refuse("model.global_batch_size", fmt::format("must be a multiple of micro_batch_size {} x {} {}", micro_,
                                                    readers_, readers_ == ranks_ ? "ranks" : "groups of ranks"));
    const std::vector<std::string> ramp = list("model.rampup_batch_size");
    ramps_ = !ramp.empty();
    if (ramps_)
      set("model.rampup_batch_size", "batch.rampup", "[" + join(ramp, ", ") + "]",
          "on the same nodes for the whole run");
  }

  /// Samples of so many steps, for a key that counts samples.
  std::string samples(const std::string& option, int64_t steps, const char* key) {
    if (ramps_)
      refuse(option, fmt::format("with rampup_batch_size steps differ in samples, and {0} counts samples: set it to "
                                 "null, and {0} in the result",
                                 key));
    return std::to_string(steps * global_);
  }

  void data() {
    const int64_t length = integer("model.data.seq_length", integer("model.encoder_seq_length", 2048));
    if (integer("model.encoder_seq_length", length) != length)
      refuse("model.data.seq_length", fmt::format("must be {}", shown("model.encoder_seq_length")));
    else
      no_key("model.encoder_seq_length", "as model.data.seq_length");
    set("model.data.seq_length", "data.seq_length", std::to_string(length));
    const std::string impl = word("model.data.data_impl", "mmap", {"mmap", "mock"});
    mock_ = impl == "mock" || flag("model.data.mock_dataset", false);
    expect("model.data.dataloader_type", text("model.data.dataloader_type", "single") == "single",
           "only single: samples in the order of the index map", "always: samples in the order of the index map");
    only("model.data.legacy_dataset", true,
         "the maps are NeMo's; in the result data.index_rules: core has Megatron core's");
    only("model.data.shuffle_documents", true, "the index maps shuffle documents");
    only("model.data.no_seqlen_plus_one_input_tokens", false, "rows are read with the token after their last one");
    if (mock_) {
      put("data.train", "mock");
      became("model.data.data_impl",
             "data.train: mock; labels are drawn independently, the loss stays at ln(vocabulary)");
      if (prefix_.is(ConfNode::Kind::kList) && !prefix_.items.empty())
        say("model.data.data_prefix", "not read: the data is mock");
      for (const char* option : {"model.data.splits_string", "model.data.index_mapping_dir", "model.data.data_prefix"})
        no_key(option, "no meaning with mock data");
      return;
    }
    data_prefixes();
    if (given("model.data.index_mapping_dir"))
      set("model.data.index_mapping_dir", "data.index_cache",
          yaml_text(absolute(text("model.data.index_mapping_dir", ""))));
    for (const char* name : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}) {
      const std::string option = std::string("model.data.") + name;
      const bool on = flag(option, false);
      // NeMo's end of a document is the tokenizer's EOS; GPT-2's vocabulary ends with it.
      const bool of_gpt2 = gpt_ && model_->vocab_size > 50256;
      const std::optional<int64_t> eos = tokenizer_ || of_gpt2 ? model_->eos : std::nullopt;
      if (on && eos)
        put("data.eos_token", std::to_string(*eos));
      else if (on)
        refuse(option,
               "the id that ends a document is not known here, because the tokenizer's file is not there: override "
               "model.tokenizer.model by its path, or this option by False");
      if (on)
        set(option, std::string("data.") + name, "true");
      else
        no_key(option, "the default");
    }
  }

  void data_prefixes() {
    if (prefix_.is(ConfNode::Kind::kMap)) {
      no_key("model.data.data_impl", "data.train names .bin and .idx files");
      // One set of files for each of the three.
      for (const auto& [name, key] :
           {std::pair("train", "data.train"), {"validation", "data.valid"}, {"test", "data.test"}}) {
        const std::string option = std::string("model.data.data_prefix.") + name;
        const std::vector<std::string> paths = list(option);
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
      problem(fmt::format("{}: names no data: write a path, or weights and paths in turn (data_impl=mock needs none)",
                          shown("model.data.data_prefix")));
      put("data.train", "none");
      return;
    }
    std::string parts;
    if (items.size() == 1) {
      parts = yaml_text(absolute(items.front().str()));
    } else {
      for (size_t i = 0; i < items.size(); i += 2) {
        const bool number = items[i].is(ConfNode::Kind::kNumber) || items[i].is(ConfNode::Kind::kInteger);
        if (!number || i + 1 == items.size() || !items[i + 1].is(ConfNode::Kind::kText)) {
          problem(fmt::format("{}: model.data.data_prefix: weights and paths must follow each other, not {}",
                              items[i].place.text(), items[i].str()));
          break;
        }
        parts +=
            fmt::format("\n    - {{path: {}, weight: {}}}", yaml_text(absolute(items[i + 1].text)), items[i].str());
      }
    }
    put("data.train", parts);
    say("model.data.data_prefix", items.size() == 1
                                      ? "data.train: " + parts
                                      : fmt::format("data.train: {} sets of files with weights", items.size() / 2));
    (void)shown("model.data.data_prefix");  // the line above is without the long list
    no_key("model.data.data_impl", "data.train names .bin and .idx files");
    take<std::string>("data.splits", "900,50,50");
    splits_ = true;
  }

  void optimizer() {
    const std::string name = word("model.optim.name", "distributed_fused_adam",
                                  {"distributed_fused_adam", "mcore_distributed_optim", "fused_adam", "adamw"});
    put("optimizer.name", "adamw");
    take("optimizer.lr", 1e-4);
    // Defaults of the optimizers: apex has 0, torch and Megatron core have 0.01.
    take("optimizer.weight_decay", name == "fused_adam" || name == "distributed_fused_adam" ? 0.0 : 0.01);
    std::vector<std::string> betas = list("model.optim.betas");
    if (betas.empty()) betas = {"0.9", "0.999"};
    set("model.optim.betas", "optimizer.betas", "[" + join(betas, ", ") + "]");
    take("optimizer.eps", 1e-8);
    take("optimizer.grad_clip", 0.0);

    const bool fsdp = flag("model.fsdp", false), divided = name != "fused_adam" && name != "adamw";
    const std::string strategy = word("model.fsdp_sharding_strategy", "full", {"full", "hybrid", "grad"});
    if (fsdp) {
      set("model.fsdp_sharding_strategy", "parallel.policy", strategy == "grad" ? "gradients" : "full");
      put("parallel.shard_size", strategy == "hybrid" ? "auto" : "world");
      became("model.optim.name", "optimizer.name: adamw; FSDP divides its state");
    } else {
      no_key("model.fsdp_sharding_strategy", "not used there: model.fsdp is off");
      // It reduces and scatters after the last micro-batch only, and keeps whole gradients until then.
      const std::string policy = !divided ? "none" : global_ / (micro_ * readers_) > 1 ? "optimizer" : "gradients";
      put("parallel.policy", policy);
      became("model.optim.name",
             fmt::format("optimizer.name: adamw, parallel.policy: {}{}", policy,
                         policy == "optimizer" ? " (gradients stay whole over the micro-batches of a step)" : ""));
    }
    no_key("model.fsdp", fsdp ? "parallel.policy" : "parallel.policy, from the optimizer");
    const std::string option = fsdp ? "model.fsdp_grad_reduce_dtype" : "model.optim.grad_sync_dtype";
    if (const std::string reduce = dtype(option); given(option)) {
      const bool low = reduce != "32";
      if (low && !text("trainer.precision", "bf16").starts_with(reduce))
        refuse(option, "gradients are reduced in fp32 or in the type of trainer.precision");
      set(option, "parallel.reduce_dtype", low ? "compute" : "fp32", low ? "micro-batches are summed in fp32" : "");
    }
    if (!fsdp) no_key("model.fsdp_grad_reduce_dtype", "not used there: model.fsdp is off");
    const std::string masters = "model.optim.master_weights";
    expect("model.optim.dtype", dtype("model.optim.dtype") == "32",
           "moments and master weights are fp32: leave it out (optimizer.moments: bf16 and optimizer.masters: bf16 in "
           "the result halve them, rounded stochastically, where NeMo rounds to nearest)",
           "optimizer.moments and optimizer.masters: fp32, the default");
    expect(masters, flag(masters, true),
           "the optimizer updates fp32 master weights: leave it out (optimizer.masters: bf16 in the result has none, "
           "and rounds updates stochastically)",
           "optimizer.masters: fp32, the default");
  }

  /// "32", "bf16" or "16": a type as torch, NeMo or Lightning spell it; "32" where it is not given.
  std::string dtype(const std::string& option) {
    std::string name = lower(text(option, "32"));
    if (name.starts_with("torch.")) name.erase(0, 6);
    name.resize(std::min(name.find('-'), name.size()));
    for (const auto& [type, spellings] :
         {std::pair("32", " 32 fp32 float32 float "), {"bf16", " bf16 bfloat16 "}, {"16", " 16 fp16 float16 half "}})
      if (std::string(spellings).find(" " + name + " ") != std::string::npos) return type;
    refuse(option, "one of 32, bf16, 16");
    return "32";
  }

  void schedule() {
    (void)word("model.optim.sched.name", "CosineAnnealing", {"CosineAnnealing"});
    put("schedule.name", "cosine");
    became("model.optim.sched.name", "schedule.name: cosine");
    const int64_t constant = count("model.optim.sched.constant_steps", 0, 0);
    if (constant > 0)
      set("model.optim.sched.constant_steps", "schedule.constant_steps", std::to_string(constant));
    else
      no_key("model.optim.sched.constant_steps", "the default");
    take<int64_t>("schedule.warmup_steps", 0);
    take("schedule.min_lr", 0.0);
    for (const char* option : {"model.optim.sched.max_steps", "model.optim.sched.max_steps_for_lr_sched"})
      if (given(option) && integer(option, 0) != integer("trainer.max_steps", 0))
        refuse(option, "the schedule has the length of the run, trainer.max_steps");
  }

  void trainer() {
    const int64_t steps = steps_ = count("trainer.max_steps", 1, 1);
    if (!given("trainer.max_steps")) refuse("trainer.max_steps", "is not given: how long is the run?");
    set("trainer.max_steps", "train.max_steps", std::to_string(steps));
    if (given(option_of("train.deterministic"))) take("train.deterministic", false);
    // Batches of an epoch; max_steps ends the run.
    const std::string train = "trainer.limit_train_batches";
    expect(train, is_fraction(train) ? number(train, 1) == 1 : integer(train, steps) >= steps,
           "the run would read the same rows again: leave it out, or set it to trainer.max_steps",
           "no key: max_steps ends the run");
    if (flag("model.deterministic_mode", false)) set("model.deterministic_mode", "train.deterministic", "true");
    if (given(option_of("train.max_time"))) take<std::string>("train.max_time", "");
    set("trainer.log_every_n_steps", "logging.every_steps", std::to_string(count("trainer.log_every_n_steps", 10, 1)));
    expect("trainer.accumulate_grad_batches", integer("trainer.accumulate_grad_batches", 1) == 1,
           "must be 1, as in NeMo: global and micro batch size give the micro-batches",
           "no key: global and micro batch size give the micro-batches");
    take<int64_t>("train.seed", 1234);
    put("train.loss", "token_mean");
  }

  Batches batches(const std::string& option) {
    // Lightning: an integer counts batches, a fraction is a share of all, and the default is 1.0.
    if (!given(option) || (is_fraction(option) && number(option, 1) == 1)) return {true, 0};
    const double count = number(option, 0);
    if (is_fraction(option) && count != 0)
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
    if (!given(option)) return 0;
    if (is_fraction(option)) {
      if (number(option, 1) != 1) refuse(option, "must be a number of steps, or 1.0 for the end of the run");
      return 0;
    }
    const int64_t every = integer(option, 1);
    if (every < 1 || every > 2147483647)
      refuse(option, "must be a number of steps from 1 to 2147483647, or 1.0 for the end of the run");
    return std::clamp<int64_t>(every, 1, 2147483647);
  }

  void evaluation() {
    const int64_t every = validation_interval();
    const auto evaluated = [&](const char* option, const char* key, const char* data_key, const Batches& count) {
      if (mock_) put(data_key, "mock", origin(option));
      if (!count.all)
        set(option, key, std::to_string(count.samples), fmt::format("{} batches", count.samples / global_));
      else if (mock_)
        refuse(option, "mock data has no end: write a number of batches");
      else if (prefix_.items.size() > 2)
        refuse(option, "a blend has no end: write a number of batches");
      else
        became(option, fmt::format("{}: null, all rows", key));
    };
    const Batches valid = batches("trainer.limit_val_batches"), test = batches("trainer.limit_test_batches");
    validates_ = valid.all ? given("trainer.limit_val_batches") || !mock_ : valid.samples > 0;
    const std::string interval = "trainer.val_check_interval";
    if (validates_) {
      if (every > 0)
        set(interval, "eval.every_samples", samples(interval, every, "eval.every_samples"),
            fmt::format("{} steps", every));
      else
        no_key(interval, "eval.every_samples: null, at the end of the run");
      evaluated("trainer.limit_val_batches", "eval.samples", "data.valid", valid);
    } else {
      no_key(interval, "nothing: limit_val_batches is 0");
      no_key("trainer.limit_val_batches",
             splits_ ? fmt::format("eval.samples: {}; an evaluation of one batch at the end remains", global_)
                     : "no data.valid, no evaluation");
      if (splits_) put("eval.samples", std::to_string(global_));
    }
    const bool has_test = splits_ || mock_ || given("model.data.data_prefix.test");
    if (validates_ && has_test && given("trainer.limit_test_batches") && (test.all || test.samples > 0))
      evaluated("trainer.limit_test_batches", "eval.test_samples", "data.test", test);
    else
      no_key("trainer.limit_test_batches",
             validates_ ? "nothing: there are no test rows, or 0 of them" : "nothing: there is no validation");
  }

  void precision() {
    const std::string type = text("trainer.precision", "bf16");
    const bool bf16 = type.starts_with("bf16"), fp16 = type.starts_with("16"), fp32 = type.starts_with("32");
    const std::string suffix = type.substr(std::min<size_t>(type.size(), bf16 ? 4 : 2));
    if ((!bf16 && !fp16 && !fp32) || (!suffix.empty() && suffix != "-mixed" && suffix != "-true"))
      refuse("trainer.precision", "one of bf16, 16, 32, and their -mixed and -true");
    set("trainer.precision", "precision.compute", fp32 ? "fp32" : fp16 ? "fp16" : "bf16");
    const double scale = number("model.native_amp_init_scale", 65536);
    if (fp16 && !(scale >= 1)) refuse("model.native_amp_init_scale", "must be at least 1");
    if (fp16)
      set("model.native_amp_init_scale", "precision.loss_scale", yaml_text(std::clamp(scale, 1.0, 16777216.0)),
          scale > 16777216 ? "the largest that is allowed" : "");
    else
      no_key("model.native_amp_init_scale", "no meaning here: only fp16 has a loss scale");
    const bool fp8 = flag("model.fp8", false);
    expect("model.fp8_e4m3", !fp8 || !flag("model.fp8_e4m3", false), "gradients are E5M2: set fp8_hybrid",
           "gradients are E5M2, as with fp8_hybrid");
    expect("model.fp8_wgrad", !fp8 || flag("model.fp8_wgrad", true), "wgrad products are in FP8 too: set it to True",
           fp8 ? "always" : "nothing: model.fp8 is off");
    expect("model.fp8_margin", !fp8 || number("model.fp8_margin", 0) == 0, "scales have no margin: set it to 0",
           fp8 ? "none: as here" : "nothing: model.fp8 is off");
    if (flag("model.fp8_dot_product_attention", false) && fp8)
      set("model.fp8_dot_product_attention", "precision.attention", "fp8", "backward is in the compute type");
    else
      no_key("model.fp8_dot_product_attention", "precision.attention: compute");
    if (!fp8) return no_key("model.fp8", "precision.linear: compute");
    set("model.fp8", "precision.linear", "fp8", "precision.fp8_recipe: delayed");
    put("precision.fp8_recipe", "delayed");
  }

  void parallel() {
    if (!flag("model.fsdp", false))
      say("parallel.shard_size", "auto: the plan chooses the ranks that share; world divides over all, as NeMo does");
  }

  void recompute() {
    const std::string what = text("model.activations_checkpoint_granularity", "none"),
                      how = word("model.activations_checkpoint_method", "uniform", {"uniform", "block"});
    const int64_t count = integer("model.activations_checkpoint_num_layers", 0);
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
    no_key("model.activations_checkpoint_method", of);
    no_key("model.activations_checkpoint_num_layers", of);
  }

  void experiment() {
    const std::string folder = "exp_manager.explicit_log_dir", base = "exp_manager.exp_dir", name = "exp_manager.name";
    const bool resumes = flag("exp_manager.resume_if_exists", false);
    const auto set_folder = [&](const std::string& option, const std::string& path, const std::string& note = "") {
      output_dir_ = absolute(path);
      set(option, "output.dir", yaml_text(output_dir_), note);
    };
    if (given(folder)) {
      set_folder(folder, text(folder, ""));
      for (const std::string& option : {base, name}) no_key(option, "nothing: explicit_log_dir is the folder");
    } else if (!given(base)) {
      set_folder(folder, "results", "NeMo: nemo_experiments/, and name, where it starts");
      no_key(name, "no key: output.dir");
    } else {
      const std::filesystem::path within = text(base, "");
      set_folder(base, (within / text(name, "default")).string(),
                 resumes ? "" : "NeMo makes a folder below it for each start: its date and time");
      no_key(name, "the last part of output.dir");
    }
    if (flag("exp_manager.create_checkpoint_callback", true))
      checkpoints();
    else
      set("exp_manager.create_checkpoint_callback", "output.save_on_stop", "false", "no checkpoints");
    no_key("exp_manager.resume_if_exists",
           resumes ? "always: a run goes on from the newest whole checkpoint in output.dir"
                   : "no key: `trireme launch` moves the results of an earlier run to run_<k>; elsewhere a run goes on "
                     "from a checkpoint in output.dir: name another one for a new run");
    put("logging.style", "nemo");
    say("exp_manager", "logging.style: nemo: log files and TensorBoard events of NeMo's experiment manager");
  }

  /// When Lightning's callback saves, and which checkpoints it keeps.
  void checkpoints() {
    const std::string params = "exp_manager.checkpoint_callback_params.", steps = params + "every_n_train_steps",
                      epochs = params + "every_n_epochs", best = params + "save_best_model",
                      callback = "exp_manager.create_checkpoint_callback", key = "output.save_every_samples";
    const int64_t every = count(steps, 0, 0), validation = validates_ ? validation_interval() : 0;
    if (every > 0) {
      set(steps, key, samples(steps, every, key.c_str()),
          fmt::format("{} steps{}", every, validation % every == 0 ? "" : "; NeMo also saves after each validation"));
      no_key(callback, "output.save_every_samples, from every_n_train_steps");
    } else {
      no_key(steps, "0: after each validation");
      set(callback, key,
          validation > 0 ? samples("trainer.val_check_interval", validation, key.c_str())
                         : std::to_string(steps_ * global_),
          validation > 0 ? "after each validation"
                         : "at the end of the run, because validations save, and there is none before");
    }
    const int64_t epoch = count(epochs, 0, 0);
    expect(epochs, epoch == 0 || (epoch == 1 && every == 0),
           every > 0 ? "excludes every_n_train_steps, in Lightning too: set it to 0"
                     : "a run is one epoch: set it to 1, or every_n_train_steps to a number of steps",
           every > 0 ? "no key: every_n_train_steps says when" : "no key: a run is one epoch, whose validations save");
    no_key(params + "save_last", "no key: the newest checkpoint is always kept");
    if (given(params + "train_time_interval"))
      refuse(params + "train_time_interval", "set it to null, and output.save_every_minutes in the result");

    const std::string monitor = text(params + "monitor", "val_loss"), mode = text(params + "mode", "min");
    const bool newest =
        mode == "max" && (monitor == "step" || monitor == "global_step" || monitor == "consumed_samples");
    const int64_t keep = integer(params + "save_top_k", 3);
    set(params + "save_top_k", "output.keep_last", std::to_string(keep < 0 ? 2147483647 : std::max<int64_t>(2, keep)),
        newest ? "the newest" : fmt::format("the newest; NeMo keeps the best by {}, and the last", monitor));
    for (const char* option : {"monitor", "mode"})
      no_key(params + option, newest ? "output.keep_last keeps the newest, too"
                                     : "no key: the newest are kept (output.keep_best: the best by loss beside them)");
    if (!flag(best, false))
      no_key(best, "output.keep_best: false");
    else if (newest)
      no_key(best, fmt::format("no key: by {} the best is the last, which is in model/", monitor));
    else if (monitor == "val_loss" && mode == "min")
      set(best, "output.keep_best", "true",
          "in best/; model/ is of the last step, where NeMo's .nemo file is the best");
    else
      refuse(best, "output.keep_best goes by validation loss: set monitor to val_loss and mode to min");
  }

  void profile() {
    if (!flag("model.nsys_profile.enabled", false)) {
      for (const char* name : {"enabled", "start_step", "end_step", "ranks", "gen_shape"})
        no_key(std::string("model.nsys_profile.") + name, "nothing: profiling is off");
      return;
    }
    const int64_t start = count("model.nsys_profile.start_step", 10, 0),
                  end = count("model.nsys_profile.end_step", 10, start);
    std::vector<std::string> ranks = list("model.nsys_profile.ranks");
    if (ranks.empty()) ranks = {"0"};
    put_all({{"profile.wait", std::to_string(std::max<int64_t>(0, start - 1))},
             {"profile.warmup", start > 0 ? "1" : "0"},
             {"profile.active", std::to_string(end - start + 1)},
             {"profile.repeat", "1"},
             {"profile.ranks", "[" + join(ranks, ", ") + "]"},
             {"profile.shapes", yaml_text(flag("model.nsys_profile.gen_shape", false))}});
    became("model.nsys_profile.enabled",
           fmt::format("profile: steps {} to {} of ranks {}, between cudaProfilerStart and cudaProfilerStop", start + 1,
                       end + 1, join(ranks, ", ")));
  }

  NemoImport import_;
  ConfNode prefix_;  // model.data.data_prefix
  std::optional<ImportedTokenizer> tokenizer_;
  std::string output_dir_;
  bool gpt_ = true, mock_ = false, splits_ = false, ramps_ = false, validates_ = false;
  int64_t ranks_ = 1, readers_ = 1, micro_ = 1, global_ = 1, layers_ = 1, steps_ = 1;
};

}  // namespace

ImportedConfig import_nemo(const ConfNode& training, const std::string& source, const NemoImport& options) {
  return NemoImporter(training, source, options).run();
}

}  // namespace trireme
