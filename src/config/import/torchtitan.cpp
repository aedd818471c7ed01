// torchtitan's TOML (v0.2) as our configuration.
#include "importer.h"
#include "titan_options.h"
#include "trireme/base/text.h"
#include "variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

/// What torchtitan's per-op recomputation ("op") becomes: outputs of norms and activation are recomputed.
constexpr const char* kOpRecompute = "norms";

class TitanImporter : Importer<TitanOptions> {
 public:
  TitanImporter(const std::filesystem::path& file, int64_t ranks, const TokenizerReader& tokenizer)
      : Importer(file.string(), &OptionNames::torchtitan, file), ranks_(ranks), read_tokenizer_(tokenizer) {}

  ImportedConfig run() {
    model();
    parallel();
    batch();
    data();
    optimizer();
    schedule();
    precision();
    recompute();
    checkpoint();
    validation();
    logging();
    refused();
    spellings();
    options_.rest();
    ImportedConfig imported = draft_.finish();
    if (imported.model) imported.tokenizer = std::move(tokenizer_);
    return imported;
  }

 private:
  /// Versions of torchtitan have two names for some options.
  void spellings() {
    for (const auto& [name, other] : {std::pair("training.local_batch_size", "training.batch_size"),
                                      {"debug.seed", "training.seed"},
                                      {"debug.deterministic", "training.deterministic"},
                                      {"model.hf_assets_path", "model.tokenizer_path"},
                                      {"checkpoint.enable", "checkpoint.enable_checkpoint"},
                                      {"validation.enable", "validation.enabled"},
                                      {"lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"},
                                      {"quantize.linear.float8.recipe_name", "float8.recipe_name"},
                                      {"quantize.linear.float8.filter_fqns", "float8.filter_fqns"}})
      if (options_.given(name) && options_.given(other) && !options_.equal(name, other))
        options_.problem(other, fmt::format("sets what {} sets: leave one of them out", name));
  }

  int64_t product(const std::string& option, std::initializer_list<int64_t> factors) {
    int64_t result = 1;
    for (const int64_t factor : factors)
      if (__builtin_mul_overflow(result, factor, &result)) {
        options_.problem(option, "too large");
        return 1;
      }
    return result;
  }

  void model() {
    const std::string name = options_.text("model.name", "llama3"),
                      flavor = options_.text("model.flavor", "debugmodel");
    const std::string assets = options_.text("model.hf_assets_path", options_.text("model.tokenizer_path", "model"));
    if (read_tokenizer_) tokenizer_ = read_tokenizer_(assets);
    const bool from_hf = options_.flag("checkpoint.initial_load_in_hf", false);
    if (name != "llama3") draft_.problem(fmt::format("{}: only llama3 can be imported", options_.shown("model.name")));
    const std::string initial = options_.text("checkpoint.initial_load_path", "");
    if (from_hf) {
      const std::string path = initial.empty() ? assets : initial;
      draft_.set("model.path", yaml_text(path));
      draft_.set("model.init", "checkpoint");
      draft_.say(options_.shown("checkpoint.initial_load_in_hf"), "model.path: " + path + ", init: checkpoint");
      if (options_.given("model.flavor"))
        draft_.say(options_.shown("model.flavor"), "no key: the shape is that of config.json in model.path");
    } else {
      draft_.set("model.path", "model");
      draft_.set("model.init", "random");
      auto shape = torchtitan_flavor(flavor);
      if (!shape) {
        draft_.problem(fmt::format("{}: no such llama3.{} Known: {}", options_.shown("model.flavor"),
                                   did_you_mean(flavor, torchtitan_flavor_names()),
                                   join(torchtitan_flavor_names(), ", ")));
        return;
      }
      draft_.say(options_.shown("model.flavor"),
                 fmt::format("model.path: model, init: random; model/config.json: {} blocks, width {}, RoPE base {}, "
                             "scaled as in Llama 3.1",
                             shape->layers, shape->hidden_size, shape->rope_theta));
      draft_.say("initial weights",
                 "model.init random draws normal(0.02) everywhere; torchtitan's embedding is N(0, 1)");
      shape->name = "llama3 " + flavor;
      draft_.model(*shape);
      if (!initial.empty())
        draft_.problem(
            fmt::format("{}: torch DCP checkpoints are not read; export it to Hugging Face's format and set "
                        "initial_load_in_hf",
                        options_.shown("checkpoint.initial_load_path")));
    }
    const std::string tokenizer = tokenizer_ && !from_hf ? "model/ gets its tokenizer"
                                                         : "the tokenizer of text is model.path's: put its files there";
    options_.no_key("model.hf_assets_path", tokenizer);
    options_.no_key("model.tokenizer_path", tokenizer);
  }

  void parallel() {
    for (const char* kind : {"tensor", "pipeline", "context", "expert"}) {
      const std::string key = fmt::format("parallelism.{}_parallel_degree", kind);
      if (options_.integer(key, 1) != 1)
        options_.problem(key, "Trireme has data parallelism only; write 1 and use the shard group");
      else
        options_.no_key(key, "1 here, too");
    }
    const int64_t copies = options_.integer("parallelism.data_parallel_replicate_degree", 1);
    int64_t shard = options_.integer("parallelism.data_parallel_shard_degree", -1);
    const std::string shown = options_.shown("parallelism.data_parallel_shard_degree");
    if (copies < 1 || (shard < 1 && shard != -1)) {
      draft_.problem(shown + ": degrees are -1 or counts");
      return;
    }
    if (shard == -1 && ranks_ % copies != 0)
      draft_.problem(fmt::format("{}: {} ranks do not divide by it",
                                 options_.shown("parallelism.data_parallel_replicate_degree"), ranks_));
    else if (shard != -1 && shard * copies != ranks_)
      draft_.problem(
          fmt::format("{} x {} copies are {} ranks, --ranks says {}", shown, copies, shard * copies, ranks_));
    if (shard == -1) shard = std::max<int64_t>(1, ranks_ / copies);
    const std::string resharding =
        options_.word("parallelism.fsdp_reshard_after_forward", "default", {"default", "always", "never"});
    const std::string policy = shard == 1 ? "none" : resharding == "never" ? "gradients" : "full";
    draft_.set("parallel.policy", policy);
    const std::string size = shard == ranks_ && shard > 1 ? "world" : std::to_string(shard);
    set("parallelism.data_parallel_shard_degree", "parallel.shard_size", size,
        fmt::format("parallel.policy: {}, {} cop{} of a shard group", policy, copies, copies == 1 ? "y" : "ies"));
    options_.no_key("parallelism.data_parallel_replicate_degree",
                    fmt::format("parallel.shard_size: {} of {} ranks", size, ranks_));
    options_.no_key("parallelism.fsdp_reshard_after_forward", "parallel.policy: " + policy);
  }

  void batch() {
    const std::string key = options_.given("training.batch_size") ? "training.batch_size" : "training.local_batch_size";
    const int64_t micro = options_.integer(key, 8), global = options_.integer("training.global_batch_size", -1);
    if (global == 0) options_.problem("training.global_batch_size", "must be a number from 1 on, or -1");
    global_ = global > 0 ? global : product(key, {micro, ranks_});
    set(key, "batch.micro_batch_size", std::to_string(micro));
    set("training.global_batch_size", "batch.global_batch_size", std::to_string(global_),
        global > 0 ? "" : fmt::format("{} x {} ranks; --ranks N says how many", micro, ranks_));
    take<int64_t>("train.max_steps", 10000);
  }

  void data() {
    const std::string name = options_.text("training.dataset", "c4_test");
    const std::string path = options_.text("training.dataset_path", "");
    set(path.empty() ? "training.dataset" : "training.dataset_path", "data.train",
        yaml_text(path.empty() ? "data/" + name : path),
        path.empty()
            ? "nothing is downloaded: put the data there (npy, HDF5, Arrow; `trireme data pack` makes rows of text)"
            : "npy, HDF5, Arrow, or text; see docs/howto/prepare-data.md");
    if (!path.empty()) options_.no_key("training.dataset", "the format follows from the files, not from a name");
    const int64_t length = options_.integer("training.seq_len", 2048);
    set("training.seq_len", "data.seq_length", std::to_string(length),
        fmt::format("a row has {} tokens and {} targets; torchtitan reads {}", length, length - 1, length + 1));
    ends_of_documents();
    set(options_.given("debug.seed") ? "debug.seed" : "training.seed", "train.seed",
        std::to_string(options_.integer("training.seed", options_.integer("debug.seed", 1234))),
        "other random numbers than torch's");
    for (const char* key : {"training.deterministic", "debug.deterministic"})
      if (options_.given(key)) set(key, "train.deterministic", yaml_text(options_.flag(key, false)));
    draft_.set("train.loss", "token_mean");
    draft_.say("loss", "train.loss: token_mean");
  }

  /// torchtitan puts BOS before and EOS after each document, and drops none.
  void ends_of_documents() {
    std::optional<int64_t> bos, eos;
    const std::string flavor = options_.text("model.flavor", "debugmodel");
    if (tokenizer_) {
      bos = tokenizer_->bos;
      eos = tokenizer_->eos;
    } else if (const auto shape = torchtitan_flavor(flavor); shape && shape->vocab_size == 128256) {
      bos = 128000;
      eos = 128001;
    } else if (flavor == "debugmodel") {  // tests/assets/tokenizer adds both behind its 2002 tokens
      bos = 2002;
      eos = 2003;
    }
    for (const auto& [key, id] : {std::pair("data.bos_token", bos), {"data.eos_token", eos}}) {
      draft_.set(key, id ? std::to_string(*id) : "null", options_.origin("model.hf_assets_path"));
      draft_.say(fmt::format("{} around documents", key == std::string("data.bos_token") ? "BOS" : "EOS"),
                 fmt::format("{}: {}{}; rows that are packed already take null", key, id ? std::to_string(*id) : "null",
                             tokenizer_ ? ", of the tokenizer" : ""));
    }
    draft_.set("data.min_length", "1");
  }

  /// What changes results there and has no key here.
  void refused() {
    for (const auto& [option, why] :
         {std::pair("optimizer.early_step_in_backward", "the step follows backward, because clipping needs the norm"),
          {"fault_tolerance.enable", "a lost rank ends the run, which starts again from its last checkpoint"}}) {
      if (options_.flag(option, false))
        options_.problem(option, std::string(why) + ": set it to false");
      else
        options_.no_key(option, "off: as here");
    }
    if (!options_.list("checkpoint.exclude_from_loading").empty())
      options_.problem("checkpoint.exclude_from_loading",
                       "a run goes on from its whole state; model.path starts from weights alone");
  }

  void optimizer() {
    const std::string name = options_.text("optimizer.name", "AdamW");
    if (name != "AdamW")
      draft_.problem(
          fmt::format("{}: AdamW can be imported, Trireme has no {}", options_.shown("optimizer.name"), name));
    draft_.set("optimizer.name", "adamw");
    options_.no_key("optimizer.name", "optimizer.name: adamw");
    take("optimizer.lr", 8e-4);
    draft_.set("optimizer.betas", fmt::format("[{}, {}]", yaml_text(options_.number("optimizer.beta1", 0.9)),
                                              yaml_text(options_.number("optimizer.beta2", 0.95))));
    options_.no_key("optimizer.beta1", "optimizer.betas, the first");
    options_.no_key("optimizer.beta2", "optimizer.betas, the second");
    take("optimizer.eps", 1e-8);
    take("optimizer.weight_decay", 0.1, "decay_norms: true, as torchtitan decays every parameter");
    draft_.set("optimizer.decay_norms", "true");
    take("optimizer.grad_clip", 1.0);
    const std::string dtype = options_.word("training.dtype", "float32", {"float32", "bfloat16"});
    if (dtype == "bfloat16")
      options_.problem(
          "training.dtype",
          "master weights are fp32 here: set float32 (and optimizer.moments: bf16 in the configuration for "
          "moments of half the size)");
    else
      options_.no_key("training.dtype", "master weights are fp32 here, too");
  }

  void schedule() {
    const int64_t steps = options_.integer("training.steps", 10000);
    int64_t warmup = options_.integer("lr_scheduler.warmup_steps", 200);
    if (options_.given("lr_scheduler.total_steps") && options_.integer("lr_scheduler.total_steps", steps) != steps)
      draft_.problem(fmt::format("{}: a schedule of another length than training.steps is not available",
                                 options_.shown("lr_scheduler.total_steps")));
    draft_.set("schedule.name", "wsd");
    const std::string shortened = warmup > steps ? "shortened to the run, as torchtitan does" : "";
    warmup = std::min(warmup, steps);
    set("lr_scheduler.warmup_steps", "schedule.warmup_steps", std::to_string(warmup),
        shortened.empty() ? "schedule.name: wsd" : shortened);
    set("lr_scheduler.decay_type", "schedule.decay_type",
        options_.word("lr_scheduler.decay_type", "linear", {"linear", "sqrt", "cosine"}));
    const std::string least =
        options_.given("lr_scheduler.lr_min") ? "lr_scheduler.lr_min" : "lr_scheduler.min_lr_factor";
    set(least, "schedule.min_lr_factor", yaml_text(options_.number(least, 0)));
    if (!options_.given("lr_scheduler.decay_ratio")) return;
    const double ratio = options_.number("lr_scheduler.decay_ratio", 1);
    const auto decay = static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * ratio));
    if (warmup + decay > steps)
      draft_.say(
          options_.shown("lr_scheduler.decay_ratio"),
          fmt::format("schedule.decay_ratio not set: torchtitan shortens the decay to the {} steps after the warm-up",
                      steps - warmup));
    else
      set("lr_scheduler.decay_ratio", "schedule.decay_ratio", yaml_text(ratio), fmt::format("{} steps", decay));
  }

  void precision() {
    const std::string compute = options_.word("training.mixed_precision_param", "bfloat16", {"bfloat16", "float32"});
    set("training.mixed_precision_param", "precision.compute", compute == "bfloat16" ? "bf16" : "fp32");
    const std::string reduce = options_.word("training.mixed_precision_reduce", "float32", {"float32", "bfloat16"});
    set("training.mixed_precision_reduce", "parallel.reduce_dtype", reduce == "float32" ? "fp32" : "compute");
    bool fp8 = false;
    for (const std::string& converter : options_.list("model.converters")) {
      if (converter == "quantize.linear.float8" || converter == "float8")
        fp8 = true;
      else
        draft_.problem(fmt::format("model.converters: Trireme has no '{}'", converter));
    }
    const std::string section = options_.has_section("float8") ? "float8." : "quantize.linear.float8.";
    if (fp8) {
      const std::string recipe =
          options_.word(section + "recipe_name", "tensorwise", {"tensorwise", "rowwise", "rowwise_with_gw_hp"});
      if (recipe == "rowwise_with_gw_hp")
        options_.problem(section + "recipe_name", "wgrad products are in FP8 too; write rowwise or tensorwise");
      draft_.set("precision.linear", "fp8");
      draft_.set("precision.fp8_recipe", recipe);
      draft_.say(options_.shown("model.converters"), "precision.linear: fp8");
      draft_.say(options_.shown(section + "recipe_name"), "precision.fp8_recipe: " + recipe);
    } else {
      options_.no_key("model.converters", "precision.linear stays compute");
      options_.no_key(section + "recipe_name", "nothing: model.converters does not name quantize.linear.float8");
    }
    options_.no_key(section + "enable_fsdp_float8_all_gather",
                    "no key: the precision recipe decides what is gathered in FP8");
    options_.no_key(section + "precompute_float8_dynamic_scale_for_fsdp",
                    "no key: the optimizer's pass makes the scales");
    for (const std::string& name : options_.list(section + "filter_fqns"))
      if (fp8 && name != "output")
        options_.problem(section + "filter_fqns",
                         fmt::format("all matrices of the blocks are multiplied in FP8: '{}' is not left out", name));
    options_.no_key(section + "filter_fqns",
                    "no key: the blocks' matrices are multiplied in FP8, head and embedding are not");
    options_.no_key(section + "emulate", "no key: a CPU emulates FP8");
  }

  void recompute() {
    const std::string mode =
        options_.word("activation_checkpoint.mode", "selective", {"none", "full", "selective", "memory_budget"});
    if (mode == "none" || mode == "full") {
      set("activation_checkpoint.mode", "parallel.recompute", mode);
      options_.no_key("activation_checkpoint.selective_ac_option", "nothing in this mode");
      return;
    }
    const std::string option = options_.text("activation_checkpoint.selective_ac_option", "2");
    if (mode == "memory_budget") {
      set("activation_checkpoint.mode", "parallel.recompute", "auto", "the plan recomputes the least that fits");
    } else if (option == "op") {
      set("activation_checkpoint.selective_ac_option", "parallel.recompute", kOpRecompute,
          "products and attention are kept, norms and activation are recomputed");
    } else if (!option.empty() && option.size() < 6 && option.find_first_not_of("0123456789") == std::string::npos &&
               std::stoi(option) > 0) {
      set("activation_checkpoint.selective_ac_option", "parallel.recompute", option == "1" ? "full" : "1/" + option,
          option == "1" ? "" : "as many blocks as there, at the middle of each group");
    } else {
      draft_.problem(fmt::format("{}: 'op' or a count", options_.shown("activation_checkpoint.selective_ac_option")));
    }
    options_.no_key("activation_checkpoint.mode", "see selective_ac_option");
  }

  void checkpoint() {
    take<std::string>("output.dir", "outputs");
    options_.no_key("checkpoint.folder", "always checkpoints/ in output.dir");
    if (options_.flag("checkpoint.enable", options_.flag("checkpoint.enable_checkpoint", false))) {
      const int64_t interval = options_.integer("checkpoint.interval", 500);
      set("checkpoint.interval", "output.save_every_samples",
          std::to_string(product("checkpoint.interval", {interval, global_})),
          fmt::format("{} steps of {} samples", interval, global_));
      const int64_t keep = options_.integer("checkpoint.keep_latest_k", 10);
      if (keep == 1) options_.problem("checkpoint.keep_latest_k", "must be a number from 2 on, or 0 for all");
      set("checkpoint.keep_latest_k", "output.keep_last", std::to_string(keep <= 0 ? 2147483647 : keep),
          keep <= 0 ? "all" : "");
    } else {
      options_.no_key("checkpoint.interval", "no regular checkpoints: checkpoint.enable is off");
      options_.no_key("checkpoint.keep_latest_k", "no regular checkpoints: checkpoint.enable is off");
    }
    for (const char* key : {"checkpoint.enable", "checkpoint.enable_checkpoint"})
      options_.no_key(key, "output.save_every_samples; a signal always saves (output.save_on_stop)");
    options_.no_key("checkpoint.async_mode", "no key: files are always written behind the steps");
    options_.no_key("checkpoint.last_save_in_hf",
                    "no key: the end of a run always writes model/ in Hugging Face's format");
    options_.no_key("checkpoint.last_save_model_only",
                    "no key: model/ is the model alone, checkpoints/ the whole state");
    options_.no_key("checkpoint.export_dtype", "no key: `trireme model` converts");
    if (options_.integer("checkpoint.load_step", -1) != -1)
      options_.problem("checkpoint.load_step",
                       "the newest whole checkpoint is resumed; move the newer ones away and write -1");
    else
      options_.no_key("checkpoint.load_step", "the newest whole checkpoint is resumed");
  }

  void validation() {
    if (!options_.flag("validation.enable", options_.flag("validation.enabled", false))) return;
    const std::string path =
        options_.text("validation.dataset_path", "data/" + options_.text("validation.dataset", "c4_validation"));
    set(options_.given("validation.dataset_path") ? "validation.dataset_path" : "validation.dataset", "data.valid",
        yaml_text(path));
    const int64_t every = options_.integer("validation.freq", 10);
    set("validation.freq", "eval.every_samples", std::to_string(product("validation.freq", {every, global_})),
        fmt::format("{} steps", every));
    const int64_t length = options_.integer("training.seq_len", 2048), steps = options_.integer("validation.steps", -1),
                  local = options_.integer("validation.local_batch_size", 8);
    if (options_.integer("validation.seq_len", length) != length)
      options_.problem("validation.seq_len", fmt::format("rows have training.seq_len {} tokens in both", length));
    else if (!options_.given("validation.seq_len") && length != 2048)
      draft_.say("validation.seq_len (default)", fmt::format("{}, as in training; 2048 there", length));
    else
      options_.no_key("validation.seq_len", "as in training");
    if (steps == 0 || steps < -1 || local < 1)
      options_.problem(local < 1 ? "validation.local_batch_size" : "validation.steps", "must be a number from 1 on");
    else if (steps > 0)
      set("validation.steps", "eval.samples", std::to_string(product("validation.steps", {steps, local, ranks_})),
          fmt::format("{} steps of {} rows on {} ranks", steps, local, ranks_));
    else
      options_.no_key("validation.steps", "eval.samples: null, all rows");
    options_.no_key("validation.local_batch_size",
                    steps > 0 ? "eval.samples" : "no effect on results: all rows are evaluated");
  }

  void logging() {
    take<int64_t>("logging.every_steps", 10);
    if (options_.given(option_of("logging.tensorboard"))) take("logging.tensorboard", false);
    if (!options_.flag("profiling.enable_profiling", false)) return;
    const int64_t every = options_.integer("profiling.profile_freq", 10),
                  active = options_.integer("profiling.profiler_active", 1),
                  warmup = options_.integer("profiling.profiler_warmup", 3);
    if (every > 2147483647 || active < 1 || warmup < 0 || active > every || warmup > every - active)
      options_.problem("profiling.profile_freq",
                       fmt::format("{} active and {} warm-up steps do not fit into {} steps", active, warmup, every));
    for (const auto& [key, value] : std::initializer_list<std::pair<const char*, std::string>>{
             {"wait", std::to_string(every - active - warmup)},
             {"warmup", std::to_string(warmup)},
             {"active", std::to_string(active)},
             {"repeat", "1"},
             {"ranks", "all"},
             {"memory", options_.flag("profiling.enable_memory_snapshot", false) ? "true" : "false"},
             {"shapes", "true"},
             {"stacks", "false"}})
      draft_.set(fmt::format("profile.{}", key), value);
    draft_.say(options_.shown("profiling.enable_profiling"),
               fmt::format("profile: warmup {}, active {}, one cycle (torchtitan repeats it every {} steps), all ranks",
                           warmup, active, every));
  }

  int64_t ranks_;
  const TokenizerReader& read_tokenizer_;
  std::optional<ImportedTokenizer> tokenizer_;
  int64_t global_ = 1;
};

}  // namespace

ImportedConfig import_torchtitan(const std::filesystem::path& file, int64_t ranks, const TokenizerReader& tokenizer) {
  return TitanImporter(file, ranks, tokenizer).run();
}

}  // namespace trireme
