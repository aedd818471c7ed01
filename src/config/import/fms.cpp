// fms-fsdp's command line as our configuration.
#include "importer.h"
#include "trireme/base/text.h"

#include <algorithm>
#include <filesystem>

namespace trireme {

namespace {

/// What the three scripts do with options that are not given.
struct FmsDefaults {
  const char* name;
  int64_t num_steps, report_interval, checkpoint_interval, logical_shards;
  double grad_clip;
  int64_t eos_token;
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
    "lang=en/dataset=commoncrawl,lang=en/dataset=webhose,lang=en/dataset=github_clean,lang=de/"
    "dataset=wikipedia,lang=es/dataset=wikipedia,lang=fr/dataset=wikipedia,lang=ja/dataset=wikipedia,lang=pt/"
    "dataset=wikipedia,lang=en/dataset=wikimedia,lang=en/dataset=uspto,lang=en/dataset=pubmedcentral,lang=en/"
    "dataset=arxiv,lang=en/dataset=stackexchange";
constexpr const char* kWeightsAtHead = "7725,500,550,28,17,22,25,8,100,500,175,250,100";

/// get_model_config(): name, width, heads, key/value heads, blocks, MLP width, vocabulary, positions, RoPE base.
const std::vector<ImportedModel> kVariants = {
    {"llama2_1.4b", 2048, 16, 4, 24, 6144, 32000, 4096, 1e4},
    {"llama2_7b", 4096, 32, 32, 32, 11008, 32000, 4096, 1e4},
    {"llama2_13b", 5120, 40, 40, 40, 13824, 32000, 4096, 1e4},
    {"llama2_34b", 8192, 64, 8, 48, 22016, 32000, 16384, 1e6},
    {"llama2_70b", 8192, 64, 8, 80, 28672, 32000, 4096, 1e4},
    // 8/3 of the width, up to a multiple of 256.
    {"llama3_194m_4k", 1024, 8, 8, 10, 2816, 128256, 4096, 5e5},
    {"llama3_1.8b", 2048, 16, 8, 24, 7168, 128256, 8192, 5e5},
    {"llama3_1.8b_4k", 2048, 16, 8, 24, 7168, 128256, 4096, 5e5},
    {"llama3_3.2b", 3072, 24, 8, 24, 8192, 128256, 8192, 5e5},
    {"llama3_3.2b_4k", 3072, 24, 8, 24, 8192, 128256, 4096, 5e5},
    {"llama3_8b", 4096, 32, 8, 32, 14336, 128256, 8192, 5e5},
    {"llama3_8b_4k", 4096, 32, 8, 32, 14336, 128256, 4096, 5e5},
    {"llama3_70b", 8192, 64, 8, 80, 28672, 128256, 8192, 5e5},
    {"llama3_70b_4k", 8192, 64, 8, 80, 28672, 128256, 4096, 5e5},
};

/// Spellings of March 2024 and of the AWS case with the names at HEAD.
const std::map<std::string, std::string> kOtherSpellings = {
    {"model_name", "model_variant"},
    {"load_ckpt_path", "ckpt_load_path"},
    {"save_ckpt_path", "ckpt_save_path"},
    {"dataset_path", "data_path"},
    {"sep_token", "eos_token"},
    {"use_nsys", "use_nsight"},
    {"wandb_dir", "tracker_dir"},
    {"aim_dir", "tracker_dir"},
    {"wandb_project_name", "tracker_project_name"},
    {"aim_project_name", "tracker_project_name"},
    {"wandb_run_id", "tracker_run_id"},
    {"aim_run_id", "tracker_run_id"},
    {"dataset_name", "datasets"},
};

const std::set<std::string> kBooleans = {"use_dummy_dataset",
                                         "fsdp_activation_checkpointing",
                                         "mixed_precision",
                                         "low_cpu_fsdp",
                                         "resuming_dataset",
                                         "use_profiler",
                                         "profiler_rank0_only",
                                         "use_nsight",
                                         "use_wandb",
                                         "use_aim",
                                         "use_torch_compile",
                                         "speculator_tie_weights",
                                         "speculator_scale_input"};

std::string trimmed(const std::string& text, const char* these) {
  const size_t first = text.find_first_not_of(these);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(these) - first + 1);
}

/// "llama2_7b", "llama3_8b_4k" …; dashes count as underscores, a bare "7b" as llama2_7b. nullopt: no such Llama.
std::optional<ImportedModel> variant_of(const std::string& name) {
  std::string canonical = lower(name);
  std::replace(canonical.begin(), canonical.end(), '-', '_');
  if (!canonical.starts_with("llama")) canonical = "llama2_" + canonical;
  const auto found =
      std::find_if(kVariants.begin(), kVariants.end(), [&](const auto& v) { return v.name == canonical; });
  return found == kVariants.end() ? std::nullopt : std::optional(*found);
}

class FmsImporter : Importer {
 public:
  FmsImporter(const std::vector<std::string>& arguments, const FmsImport& import)
      : Importer("fms-fsdp's options", &OptionNames::fms, fms_options(), import.base), ranks_(import.ranks) {
    read_arguments(arguments);
    dialect_ = import.dialect.value_or(guess());
    defaults_ = defaults_of(dialect_);
    say("read as",
        fmt::format("{}{}", defaults_.name, import.dialect ? "" : ", by the names of the options (--dialect says it)"));
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
    // A value that is no boolean is an error where the option has no meaning, too.
    for (const char* option : {"use_wandb", "use_aim", "low_cpu_fsdp", "use_torch_compile", "resuming_dataset"})
      (void)flag(option, false);
    rest();
    return finish();
  }

 private:
  /// fire's and argparse's spellings: "--name=value", "--name value", "--name", "--noname".
  void read_arguments(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      if (!argument.starts_with("--") || argument.size() < 3) {
        problem(fmt::format("'{}' is no option: write --name=value", argument));
        continue;
      }
      const size_t equals = argument.find('=');
      std::string spelling = argument.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
      std::replace(spelling.begin(), spelling.end(), '-', '_');
      // fms-fsdp takes "ConfigName.param", too.
      if (const size_t dot = spelling.rfind('.'); dot != std::string::npos) spelling = spelling.substr(dot + 1);
      if (equals != std::string::npos) {
        read_argument(spelling, argument.substr(equals + 1), argument);
      } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
        read_argument(spelling, arguments[i + 1], argument + " " + arguments[i + 1]);
        ++i;
      } else {
        read_argument(spelling, std::nullopt, argument);
      }
    }
  }

  /// The name at HEAD of a spelling; empty: there is none.
  static std::string name_of(const std::string& spelling) {
    const auto other = kOtherSpellings.find(spelling);
    return other != kOtherSpellings.end() ? other->second : fms_options().contains(spelling) ? spelling : "";
  }

  void read_argument(std::string spelling, const std::optional<std::string>& value, const std::string& argument) {
    std::string name = name_of(spelling);
    bool off = false;
    if (name.empty() && !value && spelling.starts_with("no")) {  // fire's --nouse_profiler
      const std::string without = trimmed(spelling.substr(2), "_");
      off = kBooleans.contains(name_of(without));
      if (off) name = name_of(spelling = without);
    }
    if (name.empty()) {
      std::vector<std::string> known;
      for (const auto& [one, why] : fms_options()) known.push_back("--" + one);
      for (const auto& [one, canonical] : kOtherSpellings) known.push_back("--" + one);
      std::sort(known.begin(), known.end());
      return problem(
          fmt::format("unknown option '{}' (fms-fsdp ignores it).{}", argument, did_you_mean("--" + spelling, known)));
    }
    if (!value && !kBooleans.contains(name))
      return problem(fmt::format("'{}' has no value: write {}=VALUE", argument, argument));
    spellings_.insert(spelling);
    const auto [place, is_new] = options_.emplace(name, Option{ConfNode(value ? *value
                                                                        : off ? "false"
                                                                              : "true"),
                                                               argument, ""});
    if (!is_new) problem(fmt::format("'{}' and '{}' set the same option", place->second.shown, argument));
  }

  // Values as words of a command line.
  std::string text(const std::string& option, const std::string& otherwise) override {
    const ConfNode* value = find(option);
    return value == nullptr ? otherwise : trimmed(value->text, "\"' ");
  }
  int64_t count(const std::string& option, int64_t otherwise, int64_t least) override {
    if (!given(option)) return otherwise;
    std::string digits = text(option, "");
    std::erase(digits, '_');
    if (const auto value = parse_whole<int64_t>(digits); value && *value >= least && *value <= 2147483647)
      return *value;
    problem(fmt::format("'{}' must be an integer from {} to 2147483647", shown(option), least));
    return otherwise;
  }
  int64_t read(const std::string& option, int64_t otherwise, const Key& key) override {
    return count(option, otherwise, static_cast<int64_t>(key.min));
  }
  double number(const std::string& option, double otherwise) override {
    if (!given(option)) return otherwise;
    if (const auto value = parse_fraction(text(option, ""))) return *value;
    problem(fmt::format("'{}' must be a number", shown(option)));
    return otherwise;
  }
  /// true, false, yes, no, on, off, 1, 0 in any case, and None as false.
  bool flag(const std::string& option, bool otherwise) override {
    if (!given(option)) return otherwise;
    const std::string word = lower(text(option, ""));
    for (const char* yes : {"true", "yes", "on", "y", "t", "1"})
      if (word == yes) return true;
    for (const char* no : {"false", "no", "off", "n", "f", "0", "none"})
      if (word == no) return false;
    problem(fmt::format("'{}' must be true or false", shown(option)));
    return otherwise;
  }
  /// An id or None. The end of a document has a default.
  void token(const std::string& option) {
    const bool by_default = option == "eos_token" && !given(option);
    if (!given(option) && !by_default) return;
    const std::string word = lower(text(option, "none"));
    std::string id = "null";
    if (by_default || (word != "none" && !word.empty())) id = std::to_string(count(option, defaults_.eos_token, 0));
    set(option, "data." + option, id);
  }
  /// "1,2", "(1, 2)", "[1,2]": the items, without blanks and quotes.
  std::vector<std::string> items(const std::string& option, const std::string& otherwise) {
    std::vector<std::string> all;
    const std::string list = trimmed(text(option, otherwise), "()[] ");
    if (list.empty()) return all;
    for (const std::string& item : split(list, ',')) all.push_back(trimmed(item, "\"' "));
    return all;
  }
  void refuse(const std::string& option, const std::string& why) override {
    problem(fmt::format("'{}': {}", shown(option), why));
  }

  bool aws() const { return dialect_ == FmsDialect::kAws; }

  FmsDialect guess() const {
    for (const char* name :
         {"model_name", "load_ckpt_path", "save_ckpt_path", "dataset_path", "use_nsight", "use_nsys", "wandb_dir"})
      if (spellings_.contains(name)) return FmsDialect::kAws;
    for (const char* name : {"sep_token", "use_wandb", "use_aim"})
      if (spellings_.contains(name)) return FmsDialect::kMarch2024;
    return FmsDialect::kHead;
  }

  /// A boolean in any usual spelling. argparse's type=bool makes every text true, and an option that is not given None.
  bool switched_on(const std::string& option, bool otherwise) {
    const bool value = flag(option, aws() ? false : otherwise);
    if (aws() && given(option) && !value) became(option, "false, as it says; the AWS script reads every text as true");
    if (aws() && !given(option) && otherwise)
      say(option + " (default)",
          "off: the AWS parser overwrites the documented default True where the option is not given");
    return value;
  }

  void model() {
    const std::string name = text("model_variant", "llama2_7b");
    put("model.path", "model");
    put("model.init", "random");
    auto variant = variant_of(name);
    if (!variant) {
      std::vector<std::string> variants;
      for (const ImportedModel& one : kVariants) variants.push_back(one.name);
      if (name.starts_with("mamba")) return refuse("model_variant", "Trireme has no Mamba");
      return problem(fmt::format("'{}' is no Llama of fms-fsdp.{} Known: {}", shown("model_variant"),
                                 did_you_mean(name, variants), join(variants, ", ")));
    }
    std::string note = variant->name == name ? "" : fmt::format(" (read as {})", variant->name);
    if (aws() && variant->name == "llama2_70b") note += "; the MLP is 28672 wide, where the AWS case writes 28762";
    became("model_variant",
           fmt::format("model.path: model, init: random; model/config.json is {}{}: {} blocks, width {}, {} query and "
                       "{} key/value heads",
                       variant->name, note, variant->layers, variant->hidden_size, variant->heads, variant->kv_heads));
    say("initial weights",
        "model.init random draws Hugging Face's normal(0.02); fms-fsdp's embedding and head have other deviations");
    if (given("vocab_size") && count("vocab_size", variant->vocab_size, 1) != variant->vocab_size)
      became("vocab_size", fmt::format("no key: fms-fsdp uses it for its dummy data only; the model has {} rows",
                                       variant->vocab_size));
    else
      no_key("vocab_size", "as the model's config.json has it");
    const int64_t length = count("seq_length", 4096, 2);
    if (length > variant->positions)
      became("seq_length",
             fmt::format("config.json's max_position_embeddings rises from {} to {}", variant->positions, length));
    variant->positions = std::max(variant->positions, length);
    set_ends(*variant, std::nullopt);
    model_ = *variant;
  }

  void data() {
    const bool is_text = text("file_type", "arrow") == "hf_parquet";
    if (flag("use_dummy_dataset", false))
      refuse("use_dummy_dataset", "its counted tokens are not there; data.train: mock has random ones");
    else
      no_key("use_dummy_dataset", "data.train has the data");
    if (aws() && spellings_.contains("data_path"))
      became("data_path", "taken; the AWS script knows --dataset_path only and ignores this one");
    const std::string root = path("data_path", "data");
    train(root);
    const int64_t length = count("seq_length", 4096, 2);
    set("seq_length", "data.seq_length", std::to_string(length),
        fmt::format("a row has {} tokens and {} targets; fms-fsdp reads {} and counts {}", length, length - 1,
                    length + 1, length));
    put("data.shuffle", aws() ? "false" : "true");
    if (aws()) say("shuffle=False", "data.shuffle: false; the AWS sampler keeps the file's order");
    no_key("file_type", is_text ? "the format follows from the content; text is tokenised with model/tokenizer.model"
                                : "the format follows from the content");
    if (given(option_of("data.column"))) take<std::string>("data.column", "tokens");
    if (aws()) {
      for (const char* option : {"bos_token", "eos_token", "bol_token", "eol_token", "strip_tokens", "logical_shards"})
        no_key(option, "nothing: the AWS case reads rows that are packed already and never uses it");
    } else {
      for (const char* option : {"bos_token", "eos_token", "bol_token", "eol_token"}) token(option);
      const auto strip = items("strip_tokens", "");
      if (!strip.empty())
        set("strip_tokens", "data.strip_tokens", fmt::format("[{}]", join(strip, ", ")));
      else
        no_key("strip_tokens", "none: the default");
      take("data.logical_shards", defaults_.logical_shards);
    }
  }

  void train(const std::string& root) {
    if (aws()) {
      set("data_path", "data.train", yaml_text(root));
      if (given("datasets") || given("weights")) say("--datasets, --weights", "nothing: the AWS case never uses them");
    }
    for (const char* option : {"data_path", "datasets", "weights"}) (void)shown(option);  // in one line
    if (aws()) return;
    const auto names = items("datasets", kDatasetsAtHead), weights = items("weights", kWeightsAtHead);
    const std::string remedy = given("datasets") || given("weights")
                                   ? ""
                                   : " (the defaults of fms-fsdp; --datasets and --weights name others)";
    if (names.empty() || names.size() != weights.size()) {
      return problem(
          fmt::format("--datasets has {} names and --weights {} numbers{}", names.size(), weights.size(), remedy));
    }
    std::string streams;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string path = yaml_text((std::filesystem::path(root) / names[i]).string());  // as os.path.join
      if (const auto weight = parse_fraction(weights[i]); !weight || !(*weight > 0))
        problem(
            fmt::format("--weights: '{}' of {} is no weight above 0 (fms-fsdp stops, too): leave it out of --datasets "
                        "and --weights",
                        weights[i], names[i]));
      streams += fmt::format("{}{{path: {}, weight: {}, name: {}}}", i == 0 ? "" : ", ", path, weights[i],
                             yaml_text(names[i]));
    }
    put("data.train", fmt::format("[{}]", streams), "--datasets, --weights");
    say("--data_path, --datasets, --weights",
        fmt::format("data.train: {} weighted streams below {}{}", names.size(), root, remedy));
  }

  void batch() {
    take<int64_t>("batch.micro_batch_size", 2);
    put("batch.global_batch_size", std::to_string(global_batch()));
    say(fmt::format("batch_size x {} ranks", ranks_),
        fmt::format("batch.global_batch_size: {}; --ranks N says how many GPUs", global_batch()));
  }
  int64_t global_batch() { return count("batch_size", 2, 1) * ranks_; }

  void optimizer() {
    const int64_t steps = count("num_steps", defaults_.num_steps, 1);
    put("optimizer.name", "adamw");
    take("optimizer.lr", 3e-4);
    put_all({{"optimizer.betas", "[0.9, 0.95]"},
             {"optimizer.eps", "1e-08"},
             {"optimizer.weight_decay", "0.1"},
             {"optimizer.decay_norms", "true"}});
    say("AdamW", "optimizer.betas: [0.9, 0.95], weight_decay: 0.1 on every parameter (decay_norms: true), eps: 1e-8");
    take("optimizer.grad_clip", defaults_.grad_clip);
    const std::string stage = text("training_stage", "initial");
    if (stage == "annealing") {
      set("training_stage", "schedule.name", "annealing", "lr * (1 - t / num_steps)");
    } else {
      const int64_t warmup = std::min<int64_t>(2000, steps / 20);
      set("training_stage", "schedule.name", "fms_cosine", "quadratic warm-up, cosine to a tenth");
      put("schedule.warmup_steps", std::to_string(warmup));
      say("min(2000, num_steps // 20)",
          fmt::format("schedule.warmup_steps: {}{}", warmup, warmup == 0 ? "; fms-fsdp divides by zero here" : ""));
      if (stage != "initial") refuse("training_stage", "stages are initial and annealing");
    }
    take("train.max_steps", defaults_.num_steps,
         aws() && !given("num_steps") ? "the AWS parser's default; its dataclass says 2000000" : "");
    take<int64_t>("train.seed", 2023, "other random numbers than torch's");
    put("train.loss", "token_mean");
    say("cross entropy", "train.loss: token_mean");
  }

  void precision() {
    const bool mixed = aws() && !given("mixed_precision") ? true : flag("mixed_precision", true);
    set("mixed_precision", "precision.compute", mixed ? "bf16" : "fp32",
        mixed ? "parallel.reduce_dtype: compute, as fms-fsdp reduces gradients in bf16; fp32 is the default here" : "");
    if (mixed) put("parallel.reduce_dtype", "compute");
    if (aws() && !given("mixed_precision"))
      say("mixed_precision (default)",
          "on, as the dataclass says; the AWS parser's None would be fp32 at half the speed");
  }

  void parallel() {
    const std::string strategy = lower(text("sharding_strategy", aws() ? "fsdp" : "hsdp"));
    if (strategy == "fsdp" || strategy == "hsdp" || strategy == "ddp") {
      const std::string size = strategy == "fsdp" ? "world" : strategy == "hsdp" ? "auto" : "1";
      put("parallel.policy", strategy == "ddp" ? "none" : "full");
      set("sharding_strategy", "parallel.shard_size", size,
          strategy == "fsdp"   ? "parallel.policy: full, over all ranks"
          : strategy == "hsdp" ? "parallel.policy: full, inside a host, with copies across hosts"
                               : "parallel.policy: none, weights whole on every rank");
    } else {
      refuse("sharding_strategy", "strategies are fsdp, hsdp and ddp (fms-fsdp takes every other word as fsdp)." +
                                      did_you_mean(strategy, {"fsdp", "hsdp", "ddp"}));
    }
    recompute();
  }

  void recompute() {
    if (!switched_on("fsdp_activation_checkpointing", aws())) {
      put("parallel.recompute", "none");
      became("fsdp_activation_checkpointing", "parallel.recompute: none; auto would recompute what memory asks for");
      no_key("selective_checkpointing", "nothing while fsdp_activation_checkpointing is off");
      return;
    }
    std::string option = "fsdp_activation_checkpointing";
    if (given("selective_checkpointing")) {
      no_key(option, "parallel.recompute, see selective_checkpointing");
      option = "selective_checkpointing";
    }
    const std::string blocks = text("selective_checkpointing", "1");
    const auto share = parse_fraction(blocks);
    if (!share) return problem(fmt::format("'{}' must be a number or a fraction such as 1/3", shown(option)));
    if (dialect_ == FmsDialect::kHead) {
      const std::string value = *share <= 0 ? "none" : *share >= 1 ? "full" : blocks;
      set(option, "parallel.recompute", value, *share > 0 && *share < 1 ? "the same blocks as there" : "");
      return;
    }
    // Every k-th block; 0 is all.
    const auto every = static_cast<int64_t>(*share);
    if (static_cast<double>(every) != *share || every < 0)
      return refuse(option, fmt::format("{} takes an integer k, for every k-th block; --dialect head takes fractions",
                                        defaults_.name));
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
    if (aws() && (spellings_.contains("ckpt_save_path") || spellings_.contains("ckpt_load_path")))
      say("--ckpt_save_path, --ckpt_load_path",
          "taken; the AWS script knows --save_ckpt_path and --load_ckpt_path only and ignores these");
    const std::string directory = path("ckpt_save_path", "runs/fms");
    set("ckpt_save_path", "output.dir", yaml_text(directory),
        "checkpoints below checkpoints/; the newest whole one is resumed by the same command");
    if (const std::string from = path("ckpt_load_path", directory); from == directory)
      no_key("ckpt_load_path", "the same directory: resuming needs no key");
    else
      refuse("ckpt_load_path",
             "fms-fsdp's checkpoints (torch DCP) are not read. Leave it out; to start from that model, export it to "
             "Hugging Face's format and set model.path and model.init: checkpoint");
    const int64_t interval = count("checkpoint_interval", defaults_.checkpoint_interval, 1);
    set("checkpoint_interval", "output.save_every_samples", std::to_string(interval * global_batch()),
        fmt::format("{} steps of {} samples", interval, global_batch()));
    take("logging.every_steps", defaults_.report_interval);
    put("logging.style", dialect_ == FmsDialect::kHead ? "fms" : "fms_2024");
    say("report labels", fmt::format("logging.style: {}; plain prints a line a step",
                                     dialect_ == FmsDialect::kHead ? "fms" : "fms_2024"));
  }

  void profile() {
    if (switched_on("use_profiler", false)) {
      const bool one = flag("profiler_rank0_only", dialect_ == FmsDialect::kHead);
      put_all({{"profile.wait", "1"},
               {"profile.warmup", "2"},
               {"profile.active", "3"},
               {"profile.repeat", "1"},
               {"profile.ranks", one ? "[0]" : "all"},
               {"profile.memory", "true"},
               {"profile.shapes", "true"},
               {"profile.stacks", "false"}});
      became("use_profiler",
             fmt::format("profile: wait 1, warmup 2, active 3, repeat 1, ranks {}; traces in profile/ of output.dir",
                         one ? "[0]" : "all"));
    } else {
      no_key("use_profiler", "no profile section");
    }
    if (aws() && spellings_.contains("use_nsys"))
      became("use_nsight", "taken; the AWS script knows --use_nsight only and ignores this one");
    if (given("use_nsight"))
      became("use_nsight", flag("use_nsight", false) ? "no key: submit scripts/slurm/pretrain/03.pretrain-nsys.sbatch"
                                                     : "no key: nsys is started by the sbatch file");
  }

  int64_t ranks_;
  FmsDialect dialect_ = FmsDialect::kHead;
  FmsDefaults defaults_;
  std::set<std::string> spellings_;  // as given, with underscores
};

}  // namespace

ImportedConfig import_fms(const std::vector<std::string>& arguments, const FmsImport& options) {
  return FmsImporter(arguments, options).run();
}

}  // namespace trireme
