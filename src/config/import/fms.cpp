// fms-fsdp's options as our configuration.
#include "fms_options.h"
#include "importer.h"
#include "trireme/base/fraction.h"
#include "trireme/base/text.h"
#include "variants.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

/// What the three scripts do with options that are not given.
struct FmsDefaults {
  const char* name;
  int64_t num_steps, report_interval, checkpoint_interval, logical_shards;
  double grad_clip;
  std::optional<int64_t> eos_token;
};
FmsDefaults defaults_of(FmsDialect dialect) {
  switch (dialect) {
    case FmsDialect::kHead: return {"fms-fsdp's HEAD", 1000000, 100, 10000, 1024, 1.0, 0};
    case FmsDialect::kMarch2024: return {"fms-fsdp of March 2024", 2000000, 200, 20000, 768, 1.0, 1};
    case FmsDialect::kAws: break;
  }
  return {"the AWS test case", 2000, 200, 20000, 768, 4.0, 1};
}

constexpr const char* kDatasetsAtHead =
    "lang=en/dataset=commoncrawl,lang=en/dataset=webhose,lang=en/dataset=github_clean,lang=de/dataset=wikipedia,"
    "lang=es/dataset=wikipedia,lang=fr/dataset=wikipedia,lang=ja/dataset=wikipedia,lang=pt/dataset=wikipedia,"
    "lang=en/dataset=wikimedia,lang=en/dataset=uspto,lang=en/dataset=pubmedcentral,lang=en/dataset=arxiv,"
    "lang=en/dataset=stackexchange";
constexpr const char* kWeightsAtHead = "7725,500,550,28,17,22,25,8,100,500,175,250,100";

class FmsImporter : Importer<FmsOptions> {
 public:
  FmsImporter(const std::vector<std::string>& arguments, const FmsImport& import)
      : Importer("fms-fsdp's options", &OptionNames::fms, arguments),
        dialect_(import.dialect.value_or(guess())),
        defaults_(defaults_of(dialect_)),
        ranks_(import.ranks) {
    draft_.say("read as", fmt::format("{}{}", defaults_.name,
                                      import.dialect ? "" : ", by the names of the options (--dialect says it)"));
  }

  ImportedConfig run() {
    model();
    data();
    batch();
    optimizer();
    precision();
    parallel();
    output();
    profile();
    meaningless();
    return draft_.finish();
  }

 private:
  bool aws() const { return dialect_ == FmsDialect::kAws; }

  FmsDialect guess() const {
    for (const char* name :
         {"model_name", "load_ckpt_path", "save_ckpt_path", "dataset_path", "use_nsight", "use_nsys", "wandb_dir"})
      if (options_.spelled(name)) return FmsDialect::kAws;
    for (const char* name : {"sep_token", "use_wandb", "use_aim"})
      if (options_.spelled(name)) return FmsDialect::kMarch2024;
    return FmsDialect::kHead;
  }

  /// Reports an option that has no key; only where it was given.
  void no_key(const std::string& option, const std::string& why) {
    if (options_.given(option)) draft_.say(options_.shown(option), why);
  }
  /// A boolean as people mean it. argparse's type=bool makes every text true, and an option that is not given None.
  bool flag(const std::string& option, bool otherwise) {
    const bool value = options_.flag(option, aws() ? false : otherwise);
    if (aws() && options_.given(option) && !value)
      draft_.say(options_.shown(option), "false, as it says; the AWS script reads every text as true");
    if (aws() && !options_.given(option) && otherwise)
      draft_.say(option + " (default)",
                 "off: the AWS parser overwrites the documented default True where the option is not given");
    return value;
  }

  void model() {
    const std::string name = options_.text("model_variant", "llama2_7b");
    draft_.set("model.path", "model");
    draft_.set("model.init", "random");
    auto variant = fms_variant(name);
    if (!variant) {
      draft_.problem(name.starts_with("mamba")
                         ? fmt::format("'{}': Trireme has no Mamba", options_.shown("model_variant"))
                         : fmt::format("'{}' is no Llama of fms-fsdp.{} Known: {}", options_.shown("model_variant"),
                                       did_you_mean(name, fms_variant_names()), join(fms_variant_names(), ", ")));
      return;
    }
    std::string note = variant->name == name ? "" : fmt::format(" (read as {})", variant->name);
    if (aws() && variant->name == "llama2_70b") note += "; the MLP is 28672 wide, where the AWS case writes 28762";
    draft_.say(
        options_.shown("model_variant"),
        fmt::format("model.path: model, init: random; model/config.json is {}{}: {} blocks, width {}, {} query and "
                    "{} key/value heads",
                    variant->name, note, variant->layers, variant->hidden_size, variant->heads, variant->kv_heads));
    draft_.say("initial weights",
               "model.init random draws Hugging Face's normal(0.02); fms-fsdp's embedding and head "
               "have other deviations");
    if (options_.given("vocab_size") && options_.integer("vocab_size", variant->vocab_size, 1) != variant->vocab_size)
      draft_.say(
          options_.shown("vocab_size"),
          fmt::format("no key: fms-fsdp uses it for its dummy data only; the model has {} rows", variant->vocab_size));
    else
      no_key("vocab_size", "as the model's config.json has it");
    const int64_t length = options_.integer("seq_length", 4096, 2);
    if (length > variant->positions)
      draft_.say(options_.shown("seq_length"),
                 fmt::format("config.json's max_position_embeddings rises from {} to {}", variant->positions, length));
    variant->positions = std::max(variant->positions, length);
    draft_.model(*variant);
  }

  void data() {
    const bool text = options_.text("file_type", "arrow") == "hf_parquet";
    if (options_.flag("use_dummy_dataset", false))
      draft_.problem(fmt::format("'{}': there is no dummy data; `trireme data pack` makes rows from any text",
                                 options_.shown("use_dummy_dataset")));
    else
      no_key("use_dummy_dataset", "data.train has the data");
    if (aws() && options_.spelled("data_path"))
      draft_.say(options_.shown("data_path"), "taken; the AWS script knows --dataset_path only and ignores this one");
    const std::string root = options_.text("data_path", "data");
    train(root);
    const int64_t length = options_.integer("seq_length", 4096, 2);
    set("seq_length", "data.seq_length", std::to_string(length),
        fmt::format("a row has {} tokens and {} targets; fms-fsdp reads {} and counts {}", length, length - 1,
                    length + 1, length));
    draft_.set("data.shuffle", aws() ? "false" : "true");
    if (aws()) draft_.say("shuffle=False", "data.shuffle: false; the AWS sampler keeps the file's order");
    no_key("file_type", text ? "the format follows from the content; text is tokenised with model/tokenizer.model"
                             : "the format follows from the content");
    if (options_.given(option_of("data.column"))) take<std::string>("data.column", "tokens");
    no_key("tokenizer_path", "copy its tokenizer.model to model/; tokenised data needs none");
    const auto token = [&](const char* option, std::optional<int64_t> otherwise) {
      const auto id = options_.token(option, otherwise);
      const std::string value = id ? std::to_string(*id) : "null";
      if (options_.given(option) || otherwise) set(option, fmt::format("data.{}", option), value);
    };
    if (aws()) {
      for (const char* option : {"bos_token", "eos_token", "bol_token", "eol_token", "strip_tokens", "logical_shards"})
        no_key(option, "nothing: the AWS case reads rows that are packed already and never uses it");
    } else {
      token("bos_token", std::nullopt);
      token("eos_token", defaults_.eos_token);
      token("bol_token", std::nullopt);
      token("eol_token", std::nullopt);
      const auto strip = options_.items("strip_tokens", "");
      if (!strip.empty())
        set("strip_tokens", "data.strip_tokens", fmt::format("[{}]", join(strip, ", ")));
      else
        no_key("strip_tokens", "none: the default");
      take("data.logical_shards", defaults_.logical_shards);
    }
    no_key("num_workers", "no meaning here: a thread of each rank prepares the next rows while the step runs");
    no_key("resuming_dataset", "no meaning here: a resumed run always goes on where its data stopped");
  }

  void train(const std::string& root) {
    if (aws()) {
      set("data_path", "data.train", yaml_text(root));
      if (options_.given("datasets") || options_.given("weights"))
        draft_.say("--datasets, --weights", "nothing: the AWS case never uses them");
      return;
    }
    const auto names = options_.items("datasets", kDatasetsAtHead), weights = options_.items("weights", kWeightsAtHead);
    const bool given = options_.given("datasets") || options_.given("weights");
    const std::string remedy = given ? "" : " (the defaults of fms-fsdp; --datasets and --weights name others)";
    if (names.empty() || names.size() != weights.size()) {
      draft_.problem(
          fmt::format("--datasets has {} names and --weights {} numbers{}", names.size(), weights.size(), remedy));
      return;
    }
    std::string streams;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string path = yaml_text(root + (root.empty() || root.ends_with('/') ? "" : "/") + names[i]);
      if (const auto weight = parse_fraction(weights[i]); !weight || !(*weight > 0))
        draft_.problem(
            fmt::format("--weights: '{}' of {} is no weight above 0 (fms-fsdp stops, too): leave it out of "
                        "--datasets and --weights",
                        weights[i], names[i]));
      streams += fmt::format("{}{{path: {}, weight: {}, name: {}}}", i == 0 ? "" : ", ", path, weights[i],
                             yaml_text(names[i]));
    }
    draft_.set("data.train", fmt::format("[{}]", streams), "--datasets, --weights");
    draft_.say("--data_path, --datasets, --weights",
               fmt::format("data.train: {} weighted streams below {}{}", names.size(), root, remedy));
  }

  void batch() {
    take<int64_t>("batch.micro_batch_size", 2);
    draft_.set("batch.global_batch_size", std::to_string(global_batch()));
    draft_.say(fmt::format("batch_size x {} ranks", ranks_),
               fmt::format("batch.global_batch_size: {}; --ranks N says how many GPUs", global_batch()));
  }
  int64_t global_batch() { return options_.integer("batch_size", 2, 1) * ranks_; }

  void optimizer() {
    const int64_t steps = options_.integer("num_steps", defaults_.num_steps, 1);
    draft_.set("optimizer.name", "adamw");
    take("optimizer.lr", 3e-4);
    draft_.set("optimizer.betas", "[0.9, 0.95]");
    draft_.set("optimizer.eps", "1e-08");
    draft_.set("optimizer.weight_decay", "0.1");
    draft_.set("optimizer.decay_norms", "true");
    draft_.say("AdamW",
               "optimizer.betas: [0.9, 0.95], weight_decay: 0.1 on every parameter (decay_norms: true), eps: 1e-8");
    take("optimizer.grad_clip", defaults_.grad_clip);
    const std::string stage = options_.text("training_stage", "initial");
    if (stage == "annealing") {
      set("training_stage", "schedule.name", "annealing", "lr * (1 - t / num_steps)");
    } else {
      const int64_t warmup = std::min<int64_t>(2000, steps / 20);
      set("training_stage", "schedule.name", "fms_cosine", "quadratic warm-up, cosine to a tenth");
      draft_.set("schedule.warmup_steps", std::to_string(warmup));
      draft_.say("min(2000, num_steps // 20)", fmt::format("schedule.warmup_steps: {}{}", warmup,
                                                           warmup == 0 ? "; fms-fsdp divides by zero here" : ""));
      if (stage != "initial")
        draft_.problem(fmt::format("'{}': stages are initial and annealing", options_.shown("training_stage")));
    }
    take("train.max_steps", defaults_.num_steps,
         aws() && !options_.given("num_steps") ? "the AWS parser's default; its dataclass says 2000000" : "");
    take<int64_t>("train.seed", 2023, "other random numbers than torch's");
    draft_.set("train.loss", "token_mean");
    draft_.say("cross entropy", "train.loss: token_mean");
  }

  void precision() {
    const bool mixed = aws() && !options_.given("mixed_precision") ? true : options_.flag("mixed_precision", true);
    set("mixed_precision", "precision.compute", mixed ? "bf16" : "fp32",
        mixed ? "parallel.reduce_dtype: compute, as fms-fsdp reduces gradients in bf16; fp32 is the default here" : "");
    if (mixed) draft_.set("parallel.reduce_dtype", "compute");
    if (aws() && !options_.given("mixed_precision"))
      draft_.say("mixed_precision (default)",
                 "on, as the dataclass says; the AWS parser's None would be fp32 at half the speed");
  }

  void parallel() {
    const std::string given = options_.text("sharding_strategy", aws() ? "fsdp" : "hsdp");
    std::string strategy;
    for (const char c : given) strategy += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (strategy == "fsdp" || strategy == "hsdp" || strategy == "ddp") {
      const std::string size = strategy == "fsdp" ? "world" : strategy == "hsdp" ? "auto" : "1";
      draft_.set("parallel.policy", strategy == "ddp" ? "none" : "full");
      set("sharding_strategy", "parallel.shard_size", size,
          strategy == "fsdp"   ? "parallel.policy: full, over all ranks"
          : strategy == "hsdp" ? "parallel.policy: full, inside a host, with copies across hosts"
                               : "parallel.policy: none, weights whole on every rank");
    } else {
      draft_.problem(fmt::format("'{}': strategies are fsdp, hsdp and ddp (fms-fsdp takes every other word as fsdp).{}",
                                 options_.shown("sharding_strategy"), did_you_mean(strategy, {"fsdp", "hsdp", "ddp"})));
    }
    recompute();
  }

  void recompute() {
    if (!flag("fsdp_activation_checkpointing", aws())) {
      draft_.set("parallel.recompute", "none");
      draft_.say(options_.shown("fsdp_activation_checkpointing"),
                 "parallel.recompute: none; auto would recompute what memory asks for");
      no_key("selective_checkpointing", "nothing while fsdp_activation_checkpointing is off");
      return;
    }
    if (options_.given("selective_checkpointing"))
      no_key("fsdp_activation_checkpointing", "parallel.recompute, see selective_checkpointing");
    const std::string given = options_.text("selective_checkpointing", "1");
    const auto share = parse_fraction(given);
    if (!share) {
      draft_.problem(
          fmt::format("'{}' must be a number or a fraction such as 1/3", options_.shown("selective_checkpointing")));
      return;
    }
    const std::string option =
        options_.given("selective_checkpointing") ? "selective_checkpointing" : "fsdp_activation_checkpointing";
    if (dialect_ == FmsDialect::kHead) {
      const std::string value = *share <= 0 ? "none" : *share >= 1 ? "full" : given;
      set(option, "parallel.recompute", value, *share > 0 && *share < 1 ? "the same blocks as there" : "");
      return;
    }
    // Every k-th block; 0 is all.
    const auto every = static_cast<int64_t>(*share);
    if (static_cast<double>(every) != *share || every < 0) {
      draft_.problem(fmt::format("'{}': {} takes an integer k, for every k-th block; --dialect head takes fractions",
                                 options_.shown(option), defaults_.name));
      return;
    }
    if (every <= 1)
      set(option, "parallel.recompute", "full");
    else
      set(option, "parallel.recompute", fmt::format("1/{}", every),
          fmt::format("every {}{} block there; here as many, at the middle of each group", every,
                      every == 2   ? "nd"
                      : every == 3 ? "rd"
                                   : "th"));
  }

  void output() {
    if (aws() && (options_.spelled("ckpt_save_path") || options_.spelled("ckpt_load_path")))
      draft_.say("--ckpt_save_path, --ckpt_load_path",
                 "taken; the AWS script knows --save_ckpt_path and --load_ckpt_path only and ignores these");
    const std::string directory = options_.text("ckpt_save_path", "runs/fms");
    set("ckpt_save_path", "output.dir", yaml_text(directory),
        "checkpoints below checkpoints/; the newest whole one is resumed by the same command");
    if (const std::string from = options_.text("ckpt_load_path", directory); from == directory)
      no_key("ckpt_load_path", "the same directory: resuming needs no key");
    else
      draft_.problem(
          fmt::format("'{}': fms-fsdp's checkpoints (torch DCP) are not read. Leave it out; to start from that model, "
                      "export it to Hugging Face's format and set model.path and model.init: checkpoint",
                      options_.shown("ckpt_load_path")));
    const int64_t interval = options_.integer("checkpoint_interval", defaults_.checkpoint_interval, 1);
    set("checkpoint_interval", "output.save_every_samples", std::to_string(interval * global_batch()),
        fmt::format("{} steps of {} samples", interval, global_batch()));
    take("logging.every_steps", defaults_.report_interval);
    draft_.set("logging.style", dialect_ == FmsDialect::kHead ? "fms" : "fms_2024");
    draft_.say("report labels", fmt::format("logging.style: {}; plain prints a line a step",
                                            dialect_ == FmsDialect::kHead ? "fms" : "fms_2024"));
  }

  void profile() {
    if (flag("use_profiler", false)) {
      const bool one = options_.flag("profiler_rank0_only", dialect_ == FmsDialect::kHead);
      for (const auto& [key, value] :
           std::initializer_list<std::pair<const char*, const char*>>{{"wait", "1"},
                                                                      {"warmup", "2"},
                                                                      {"active", "3"},
                                                                      {"repeat", "1"},
                                                                      {"ranks", one ? "[0]" : "all"},
                                                                      {"memory", "true"},
                                                                      {"shapes", "true"},
                                                                      {"stacks", "false"}})
        draft_.set(fmt::format("profile.{}", key), value);
      draft_.say(
          options_.shown("use_profiler"),
          fmt::format("profile: wait 1, warmup 2, active 3, repeat 1, ranks {}; traces in profile/ of output.dir",
                      one ? "[0]" : "all"));
    } else {
      no_key("use_profiler", "no profile section");
    }
    no_key("profiler_rank0_only", "profile.ranks, where use_profiler is on");
    if (aws() && options_.spelled("use_nsys"))
      draft_.say(options_.shown("use_nsight"), "taken; the AWS script knows --use_nsight only and ignores this one");
    if (options_.given("use_nsight"))
      draft_.say(options_.shown("use_nsight"), options_.flag("use_nsight", false)
                                                   ? "no key: submit scripts/slurm/pretrain/03.pretrain-nsys.sbatch"
                                                   : "no key: nsys is started by the sbatch file");
  }

  void meaningless() {
    for (const char* option : {"use_wandb", "use_aim", "low_cpu_fsdp", "use_torch_compile", "resuming_dataset"})
      (void)options_.flag(option, false);  // a value that is no boolean is an error here, too
    for (const char* option :
         {"tracker", "use_wandb", "use_aim", "tracker_dir", "tracker_project_name", "tracker_run_id"})
      no_key(option, "no meaning here: nothing is sent anywhere; metrics.jsonl in output.dir has every number");
    no_key("low_cpu_fsdp", "no meaning here: a rank makes its own shards only");
    no_key("use_torch_compile", "no meaning here: the kernels are compiled ahead");
    for (const char* option : {"tp_size", "model_arch", "model_path", "n_speculator_heads", "speculator_width",
                               "speculator_tie_weights", "speculator_scale_input", "stage2_start_step",
                               "stage2_prompt_length", "stage2_batch_size", "stage2_seq_length"})
      no_key(option, "no meaning here: it is for fms-fsdp's speculator training, which Trireme lacks");
  }

  FmsDialect dialect_;
  FmsDefaults defaults_;
  int64_t ranks_;
};

}  // namespace

ImportedConfig import_fms(const std::vector<std::string>& arguments, const FmsImport& options) {
  return FmsImporter(arguments, options).run();
}

}  // namespace trireme
