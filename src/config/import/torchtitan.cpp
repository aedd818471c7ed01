// torchtitan's TOML (v0.2) as our configuration.
#include "importer.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace trireme {

namespace {

/// llama3_args: name, width, heads, key/value heads, blocks, MLP width, vocabulary, positions, RoPE base, its scaling.
const std::vector<ImportedModel> kFlavors = {
    {"debugmodel", 256, 16, 16, 6, 768, 2048, 131072, 5e5, true},
    {"8B", 4096, 32, 8, 32, 14336, 128256, 131072, 5e5, true},
    {"70B", 8192, 64, 8, 80, 28672, 128256, 131072, 5e5, true},
    {"405B", 16384, 128, 8, 126, 53248, 128256, 131072, 5e5, true},
};

std::string shown_value(const toml::node& node) {
  if (node.is_floating_point()) return format_exact(node.as_floating_point()->get());  // toml++ prints 17 digits
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

ConfNode conf_node(const toml::node& node) {
  if (const auto* text = node.as_string()) return ConfNode(text->get());
  if (const auto* integer = node.as_integer()) return ConfNode(integer->get());
  if (const auto* number = node.as_floating_point()) return ConfNode(number->get());
  if (const auto* flag = node.as_boolean()) return ConfNode(flag->get());
  if (!node.is_array()) return ConfNode(ConfNode::Kind::kMap);  // a date or a time, which no option takes
  ConfNode list(ConfNode::Kind::kList);
  for (const auto& item : *node.as_array())
    if (item.is_string()) list.items.push_back(conf_node(item));
  return list;
}

/// TOML without its comments and strings.
std::string without_strings(std::string_view text) {
  std::string rest;
  for (size_t begin; (begin = text.find_first_of("#\"'")) != text.npos;) {
    rest += text.substr(0, begin);
    text.remove_prefix(begin);
    const std::string mark(1, text[0]), thrice = mark + mark + mark;
    const std::string end = mark == "#" ? "\n" : text.starts_with(thrice) ? thrice : mark;
    size_t at = end.size();
    while (at < text.size() && !text.substr(at).starts_with(end)) at += mark == "\"" && text[at] == '\\' ? 2 : 1;
    text.remove_prefix(std::min(at + end.size(), text.size()));
    while (mark != "#" && text.starts_with(mark)) text.remove_prefix(1);  // a string may end with quotes before """
  }
  return rest.append(text);
}

class TitanImporter : Importer {
 public:
  TitanImporter(const std::filesystem::path& file, int64_t ranks, const std::filesystem::path& base,
                const TokenizerReader& tokenizer)
      : Importer(file.string(), &OptionNames::torchtitan, torchtitan_options(), base),
        ranks_(ranks),
        read_tokenizer_(tokenizer) {
    read_file(file);
  }

  ImportedConfig run() {
    model();
    context();
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
    rest();
    ImportedConfig imported = finish();
    if (imported.model) imported.tokenizer = std::move(tokenizer_);
    return imported;
  }

 private:
  /// A file that is no TOML is a ConfigError with line and column.
  void read_file(const std::filesystem::path& file) {
    std::string content;
    try {
      content = read_text_file(file, ExitCode::kConfig, 1 << 20);
    } catch (const Error& error) {
      throw ConfigError(error.what());
    }
    if (is_too_deep(without_strings(content)))
      throw ConfigError(file.string() + ": keys of more than 1000 parts: not torchtitan's configuration");
    try {
      add_below(toml::parse(content, file.string()), "", file.string());
    } catch (const toml::parse_error& error) {
      throw ConfigError(fmt::format("{}:{}:{}: {}", file.string(), error.source().begin.line,
                                    error.source().begin.column, std::string(error.description())));
    }
  }

  void add_below(const toml::table& table, const std::string& prefix, const std::string& file) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      const auto at = node.source().begin;
      const std::string place = fmt::format("{}:{}:{}", file, at.line, at.column);
      if (!node.is_table())
        add(name, conf_node(node), shown_value(node), place);
      else if (enter_section(name, place))
        add_below(*node.as_table(), name + ".", file);
    }
  }

  static std::optional<ImportedModel> model_of(const std::string& flavor) {
    const auto found = std::find_if(kFlavors.begin(), kFlavors.end(), [&](const auto& m) { return m.name == flavor; });
    if (found == kFlavors.end()) return std::nullopt;
    ImportedModel model = *found;
    if (flavor == "debugmodel") {  // tests/assets/tokenizer adds both behind its 2002 tokens
      model.bos = 2002;
      model.eos = 2003;
    }
    return model;
  }

  /// Versions of torchtitan have two names for some options.
  void spellings() {
    for (const auto& [name, other] : {std::pair("training.local_batch_size", "training.batch_size"),
                                      {"debug.seed", "training.seed"},
                                      {"debug.deterministic", "training.deterministic"},
                                      {"model.hf_assets_path", "model.tokenizer_path"},
                                      {"parallelism.context_parallel_degree", "experimental.context_parallel_degree"},
                                      {"checkpoint.enable", "checkpoint.enable_checkpoint"},
                                      {"validation.enable", "validation.enabled"},
                                      {"lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"},
                                      {"quantize.linear.float8.recipe_name", "float8.recipe_name"},
                                      {"quantize.linear.float8.filter_fqns", "float8.filter_fqns"}})
      if (given(name) && given(other) && !equal(name, other))
        refuse(other, fmt::format("sets what {} sets: leave one of them out", name));
  }

  int64_t product(const std::string& option, std::initializer_list<int64_t> factors) {
    int64_t result = 1;
    for (const int64_t factor : factors)
      if (__builtin_mul_overflow(result, factor, &result)) {
        refuse(option, "too large");
        return 1;
      }
    return result;
  }

  void model() {
    const std::string flavor = text("model.flavor", "debugmodel");
    const std::string assets = path("model.hf_assets_path", path("model.tokenizer_path", ""));
    if (read_tokenizer_ && !assets.empty()) tokenizer_ = read_tokenizer_(assets);
    const bool from_hf = flag("checkpoint.initial_load_in_hf", false);
    if (text("model.name", "llama3") != "llama3") refuse("model.name", "only llama3 can be imported");
    const std::string initial = path("checkpoint.initial_load_path", "");
    if (from_hf) {
      const std::string path = !initial.empty() ? initial : !assets.empty() ? assets : "model";
      put("model.path", yaml_text(path));
      put("model.init", "checkpoint");
      const bool loads = flag("checkpoint.enable", flag("checkpoint.enable_checkpoint", false));
      became("checkpoint.initial_load_in_hf",
             fmt::format("model.path: {}, init: checkpoint{}", path,
                         loads ? "" : "; torchtitan loads it only with checkpoint.enable: true, and starts at random"));
      if (given("model.flavor")) became("model.flavor", "no key: the shape is that of config.json in model.path");
    } else {
      put("model.path", "model");
      put("model.init", "random");
      auto shape = model_of(flavor);
      if (!shape) {
        std::vector<std::string> names;
        for (const ImportedModel& one : kFlavors) names.push_back(one.name);
        return refuse("model.flavor",
                      fmt::format("no such llama3.{} Known: {}", did_you_mean(flavor, names), join(names, ", ")));
      }
      became("model.flavor", fmt::format("model.path: model, init: random; model/config.json: {} blocks, width {}, "
                                         "RoPE base {}, scaled as in Llama 3.1",
                                         shape->layers, shape->hidden_size, shape->rope_theta));
      say("initial weights", "model.init random draws normal(0.02) everywhere; torchtitan's embedding is N(0, 1)");
      shape->name = "llama3 " + flavor;
      set_ends(*shape, tokenizer_);
      model_ = *shape;
      if (!initial.empty())
        refuse("checkpoint.initial_load_path",
               "torch DCP checkpoints are not read; export it to Hugging Face's format and set initial_load_in_hf");
    }
    const std::string tokenizer = tokenizer_ && !from_hf ? "model/ gets its tokenizer"
                                                         : "the tokenizer of text is model.path's: put its files there";
    no_key("model.hf_assets_path", tokenizer);
    no_key("model.tokenizer_path", tokenizer);
  }

  void parallel() {
    for (const char* kind : {"tensor", "pipeline", "expert"}) {
      const std::string key = fmt::format("parallelism.{}_parallel_degree", kind);
      expect(key, integer(key, 1) == 1,
             "Trireme divides data and sequences only; write 1 and use the shard group, or context_parallel_degree",
             "1 here, too");
    }
    const std::string replicated = "parallelism.data_parallel_replicate_degree",
                      sharded = "parallelism.data_parallel_shard_degree";
    const int64_t copies = integer(replicated, 1);
    int64_t shard = integer(sharded, -1);
    if (copies < 1 || (shard < 1 && shard != -1)) return refuse(sharded, "degrees are -1 or counts");
    // Ranks that share rows are sharded over as well.
    if (shard == -1 && readers_ % copies != 0)
      refuse(replicated, fmt::format("{} ranks do not divide by it", readers_));
    else if (shard != -1 && shard * copies != readers_)
      problem(fmt::format("{} x {} copies{} are {} ranks, --ranks says {}", origin(sharded), copies,
                          readers_ == ranks_ ? "" : fmt::format(" x context {}", ranks_ / readers_),
                          shard * copies * (ranks_ / readers_), ranks_));
    if (shard == -1) shard = std::max<int64_t>(1, readers_ / copies);
    shard *= ranks_ / readers_;
    const std::string resharding =
        word("parallelism.fsdp_reshard_after_forward", "default", {"default", "always", "never"});
    const std::string policy = shard == 1 ? "none" : resharding == "never" ? "gradients" : "full";
    put("parallel.policy", policy);
    const std::string size = shard == ranks_ && shard > 1 ? "world" : std::to_string(shard);
    set(sharded, "parallel.shard_size", size,
        fmt::format("parallel.policy: {}, {} cop{} of a shard group", policy, copies, copies == 1 ? "y" : "ies"));
    no_key(replicated, fmt::format("parallel.shard_size: {} of {} ranks", size, ranks_));
    no_key("parallelism.fsdp_reshard_after_forward", "parallel.policy: " + policy);
  }

  /// Ranks that share rows, and how many groups of them have rows of their own.
  void context() {
    const std::string now = option_of("parallel.context_size"), before = "experimental.context_parallel_degree";
    const std::string key = given(before) && !given(now) ? before : now;
    const int64_t size = integer(key, 1);
    if (size < 1 || ranks_ % size != 0) return refuse(key, fmt::format("{} ranks do not divide by it", ranks_));
    if (given(key)) set(key, "parallel.context_size", std::to_string(size));
    readers_ = ranks_ / size;
  }

  void batch() {
    const std::string key = given("training.batch_size") ? "training.batch_size" : "training.local_batch_size";
    const int64_t micro = integer(key, 8), global = integer("training.global_batch_size", -1);
    if (global == 0) refuse("training.global_batch_size", "must be a number from 1 on, or -1");
    global_ = global > 0 ? global : product(key, {micro, readers_});
    set(key, "batch.micro_batch_size", std::to_string(micro));
    set("training.global_batch_size", "batch.global_batch_size", std::to_string(global_),
        global > 0 ? ""
                   : fmt::format("{} x {} {}; --ranks N says how many", micro, readers_,
                                 readers_ == ranks_ ? "ranks" : "groups of ranks"));
    take<int64_t>("train.max_steps", 10000);
  }

  /// What is no directory is a name of the Hub to load_dataset(): that stays.
  std::string dataset_path(const std::string& option) {
    const std::string path = text(option, ""), whole = absolute(path);
    const bool name = !path.starts_with('.') && std::count(path.begin(), path.end(), '/') <= 1;
    return name && !std::filesystem::exists(whole) ? path : whole;
  }

  void data() {
    const std::string name = text("training.dataset", "c4_test");
    const std::string path = dataset_path("training.dataset_path");
    set(path.empty() ? "training.dataset" : "training.dataset_path", "data.train",
        yaml_text(path.empty() ? "data/" + name : path),
        path.empty()
            ? "nothing is downloaded: put the data there (npy, HDF5, Arrow; `trireme data pack` makes rows of text)"
            : "npy, HDF5, Arrow, or text; see docs/howto/prepare-data.md");
    if (!path.empty()) no_key("training.dataset", "the format follows from the files, not from a name");
    const int64_t length = integer("training.seq_len", 2048);
    set("training.seq_len", "data.seq_length", std::to_string(length),
        fmt::format("a row has {} tokens and {} targets; torchtitan reads {}", length, length - 1, length + 1));
    ends_of_documents();
    set(given("debug.seed") ? "debug.seed" : "training.seed", "train.seed",
        std::to_string(integer("training.seed", integer("debug.seed", 1234))), "other random numbers than torch's");
    for (const char* key : {"training.deterministic", "debug.deterministic"})
      if (given(key)) set(key, "train.deterministic", yaml_text(flag(key, false)));
    put("train.loss", "token_mean");
    say("loss", "train.loss: token_mean");
  }

  /// torchtitan puts BOS before and EOS after each document, and drops none.
  void ends_of_documents() {
    ImportedModel ends;
    ends.bos = ends.eos = std::nullopt;
    ends = model_of(text("model.flavor", "debugmodel")).value_or(ends);
    set_ends(ends, tokenizer_);
    for (const auto& [key, id] : {std::pair("data.bos_token", ends.bos), {"data.eos_token", ends.eos}}) {
      put(key, id ? std::to_string(*id) : "null", origin("model.hf_assets_path"));
      say(fmt::format("{} around documents", key == std::string("data.bos_token") ? "BOS" : "EOS"),
          fmt::format("{}: {}{}; rows that are packed already take null", key, id ? std::to_string(*id) : "null",
                      tokenizer_ ? ", of the tokenizer" : ""));
    }
    put("data.min_length", "1");
  }

  /// What changes results there and has no key here.
  void refused() {
    for (const auto& [option, why] :
         {std::pair("optimizer.early_step_in_backward", "the step follows backward, because clipping needs the norm"),
          {"fault_tolerance.enable", "a lost rank ends the run, which starts again from its last checkpoint"},
          {"checkpoint.create_seed_checkpoint",
           "it ends without training; initial weights depend on train.seed alone, on any number of ranks"},
          {"checkpoint.initial_load_in_hf_quantized", "weights of a Llama that are not quantised can be imported"}})
      expect(option, !flag(option, false), std::string(why) + ": set it to false", "off: as here");
    for (const char* option :
         {"job.custom_config_module", "experimental.custom_import", "experimental.custom_args_module"})
      expect(option, text(option, "").empty(), "a module of Python is not run: leave it out", "none: as here");
    expect("comm.mode", text("comm.mode", "default") == "default",
           "write default; `train_llama --dry-run --ranks N` checks a configuration without devices", "as here");
    if (!list("checkpoint.exclude_from_loading").empty())
      refuse("checkpoint.exclude_from_loading",
             "a run goes on from its whole state; model.path starts from weights alone");
  }

  void optimizer() {
    if (const std::string name = text("optimizer.name", "AdamW"); name != "AdamW")
      refuse("optimizer.name", name == "Muon" ? "AdamW can be imported; for Muon set optimizer.name: muon in the result"
                                              : "AdamW can be imported, Trireme has no " + name);
    put("optimizer.name", "adamw");
    no_key("optimizer.name", "optimizer.name: adamw");
    take("optimizer.lr", 8e-4);
    put("optimizer.betas",
        fmt::format("[{}, {}]", yaml_text(number("optimizer.beta1", 0.9)), yaml_text(number("optimizer.beta2", 0.95))));
    no_key("optimizer.beta1", "optimizer.betas, the first");
    no_key("optimizer.beta2", "optimizer.betas, the second");
    take("optimizer.eps", 1e-8);
    take("optimizer.weight_decay", 0.1, "decay_norms: true, as torchtitan decays every parameter");
    put("optimizer.decay_norms", "true");
    take("optimizer.grad_clip", 1.0);
    expect("training.dtype", word("training.dtype", "float32", {"float32", "bfloat16"}) == "float32",
           "master weights are fp32 here: set float32 (and in the configuration optimizer.moments: bf16 for moments of "
           "half the size, optimizer.masters: bf16 for weights without fp32 copies, rounded stochastically)",
           "master weights are fp32 here, too");
  }

  void schedule() {
    const int64_t steps = integer("training.steps", 10000);
    int64_t warmup = integer("lr_scheduler.warmup_steps", 200);
    if (given("lr_scheduler.total_steps") && integer("lr_scheduler.total_steps", steps) != steps)
      refuse("lr_scheduler.total_steps", "a schedule of another length than training.steps is not available");
    put("schedule.name", "wsd");
    const std::string shortened = warmup > steps ? "shortened to the run, as torchtitan does" : "";
    warmup = std::min(warmup, steps);
    set("lr_scheduler.warmup_steps", "schedule.warmup_steps", std::to_string(warmup),
        shortened.empty() ? "schedule.name: wsd" : shortened);
    set("lr_scheduler.decay_type", "schedule.decay_type",
        word("lr_scheduler.decay_type", "linear", {"linear", "sqrt", "cosine"}));
    const std::string least = given("lr_scheduler.lr_min") ? "lr_scheduler.lr_min" : "lr_scheduler.min_lr_factor";
    set(least, "schedule.min_lr_factor", yaml_text(number(least, 0)));
    if (!given("lr_scheduler.decay_ratio")) return;
    const double ratio = number("lr_scheduler.decay_ratio", 1);
    const auto decay = static_cast<int64_t>(std::nearbyint(static_cast<double>(steps) * ratio));
    if (warmup + decay > steps)
      became(
          "lr_scheduler.decay_ratio",
          fmt::format("schedule.decay_ratio not set: torchtitan shortens the decay to the {} steps after the warm-up",
                      steps - warmup));
    else
      set("lr_scheduler.decay_ratio", "schedule.decay_ratio", yaml_text(ratio), fmt::format("{} steps", decay));
  }

  void precision() {
    const std::string compute = word("training.mixed_precision_param", "bfloat16", {"bfloat16", "float32"});
    set("training.mixed_precision_param", "precision.compute", compute == "bfloat16" ? "bf16" : "fp32");
    const std::string reduce = word("training.mixed_precision_reduce", "float32", {"float32", "bfloat16"});
    set("training.mixed_precision_reduce", "parallel.reduce_dtype", reduce == "float32" ? "fp32" : "compute");
    bool fp8 = false;
    for (const std::string& converter : list("model.converters")) {
      if (converter == "quantize.linear.float8" || converter == "float8")
        fp8 = true;
      else
        problem(fmt::format("model.converters: Trireme has no '{}'", converter));
    }
    const std::string section = has_section("float8") ? "float8." : "quantize.linear.float8.";
    if (fp8) {
      const std::string recipe =
          word(section + "recipe_name", "tensorwise", {"tensorwise", "rowwise", "rowwise_with_gw_hp"});
      if (recipe == "rowwise_with_gw_hp")
        refuse(section + "recipe_name", "wgrad products are in FP8 too; write rowwise or tensorwise");
      put("precision.linear", "fp8");
      put("precision.fp8_recipe", recipe);
      became("model.converters", "precision.linear: fp8");
      became(section + "recipe_name", "precision.fp8_recipe: " + recipe);
    } else {
      no_key("model.converters", "precision.linear stays compute");
      no_key(section + "recipe_name", "nothing: model.converters does not name quantize.linear.float8");
    }
    for (const std::string& name : list(section + "filter_fqns"))
      if (fp8 && name != "output")
        refuse(section + "filter_fqns",
               fmt::format("all matrices of the blocks are multiplied in FP8: '{}' is not left out", name));
  }

  void recompute() {
    const std::string mode =
        word("activation_checkpoint.mode", "selective", {"none", "full", "selective", "memory_budget"});
    if (mode == "none" || mode == "full") {
      set("activation_checkpoint.mode", "parallel.recompute", mode);
      no_key("activation_checkpoint.selective_ac_option", "nothing in this mode");
      return;
    }
    const std::string option = text("activation_checkpoint.selective_ac_option", "2");
    if (mode == "memory_budget") {
      set("activation_checkpoint.mode", "parallel.recompute", "auto", "the plan recomputes the least that fits");
    } else if (option == "op") {
      set("activation_checkpoint.selective_ac_option", "parallel.recompute", "norms",
          "products and attention are kept, norms and activation are recomputed");
    } else if (!option.empty() && option.size() < 6 && option.find_first_not_of("0123456789") == std::string::npos &&
               std::stoi(option) > 0) {
      set("activation_checkpoint.selective_ac_option", "parallel.recompute", option == "1" ? "full" : "1/" + option,
          option == "1" ? "" : "as many blocks as there, at the middle of each group");
    } else {
      refuse("activation_checkpoint.selective_ac_option", "'op' or a count");
    }
    no_key("activation_checkpoint.mode", "see selective_ac_option");
  }

  void checkpoint() {
    const std::string folder = option_of("output.dir");
    set(folder, "output.dir", yaml_text(absolute(text(folder, "outputs"))));
    const std::string enable =
        given("checkpoint.enable_checkpoint") ? "checkpoint.enable_checkpoint" : "checkpoint.enable";
    const bool enabled = flag("checkpoint.enable", flag("checkpoint.enable_checkpoint", false)),
               saves = enabled && !flag("checkpoint.load_only", false);
    no_key(enable, saves     ? "output.save_every_samples; a signal saves, too (output.save_on_stop)"
                   : enabled ? "see load_only"
                             : "no regular checkpoints; a signal saves (output.save_on_stop)");
    if (saves) {
      const int64_t interval = integer("checkpoint.interval", 500);
      set("checkpoint.interval", "output.save_every_samples",
          std::to_string(product("checkpoint.interval", {interval, global_})),
          fmt::format("{} steps of {} samples", interval, global_));
      const int64_t keep = integer("checkpoint.keep_latest_k", 10);
      if (keep == 1) refuse("checkpoint.keep_latest_k", "must be a number from 2 on, or 0 for all");
      set("checkpoint.keep_latest_k", "output.keep_last", std::to_string(keep <= 0 ? 2147483647 : keep),
          keep <= 0 ? "all" : "");
      no_key("checkpoint.load_only", "off: as here");
    } else {
      if (enabled)
        set("checkpoint.load_only", "output.save_on_stop", "false", "no checkpoints");
      else
        no_key("checkpoint.load_only", "nothing: checkpoint.enable is off");
      for (const char* option : {"checkpoint.interval", "checkpoint.keep_latest_k"})
        no_key(option,
               fmt::format("no regular checkpoints: checkpoint.{}", enabled ? "load_only is on" : "enable is off"));
    }
    expect("checkpoint.load_step", integer("checkpoint.load_step", -1) == -1,
           "the newest whole checkpoint is resumed; move the newer ones away and write -1",
           "the newest whole checkpoint is resumed");
  }

  void validation() {
    if (!flag("validation.enable", flag("validation.enabled", false))) return;
    const std::string path = dataset_path("validation.dataset_path"),
                      name = text("validation.dataset", "c4_validation");
    set(path.empty() ? "validation.dataset" : "validation.dataset_path", "data.valid",
        yaml_text(path.empty() ? "data/" + name : path));
    const int64_t every = integer("validation.freq", 10);
    set("validation.freq", "eval.every_samples", std::to_string(product("validation.freq", {every, global_})),
        fmt::format("{} steps; torchtitan also validates after the first step", every));
    const int64_t length = integer("training.seq_len", 2048), steps = integer("validation.steps", -1),
                  local = integer("validation.local_batch_size", 8);
    if (integer("validation.seq_len", length) != length)
      refuse("validation.seq_len", fmt::format("rows have training.seq_len {} tokens in both", length));
    else if (!given("validation.seq_len") && length != 2048)
      say("validation.seq_len (default)", fmt::format("{}, as in training; 2048 there", length));
    else
      no_key("validation.seq_len", "as in training");
    if (steps == 0 || steps < -1 || local < 1)
      refuse(local < 1 ? "validation.local_batch_size" : "validation.steps", "must be a number from 1 on");
    else if (steps > 0)
      set("validation.steps", "eval.samples", std::to_string(product("validation.steps", {steps, local, readers_})),
          fmt::format("{} steps of {} rows on {} {}", steps, local, readers_,
                      readers_ == ranks_ ? "ranks" : "groups of ranks"));
    else
      no_key("validation.steps", "eval.samples: null, all rows");
    no_key("validation.local_batch_size", steps > 0 ? "eval.samples" : "no effect on results: all rows are evaluated");
  }

  void logging() {
    take<int64_t>("logging.every_steps", 10);
    if (given(option_of("logging.tensorboard"))) take("logging.tensorboard", false);
    const bool traces = flag("profiling.enable_profiling", false),
               memory = flag("profiling.enable_memory_snapshot", false);
    if (!traces && !memory) return;
    const int64_t every = integer("profiling.profile_freq", 10), active = integer("profiling.profiler_active", 1),
                  warmup = integer("profiling.profiler_warmup", 3);
    if (every > 2147483647 || active < 1 || warmup < 0 || active > every || warmup > every - active)
      refuse("profiling.profile_freq",
             fmt::format("{} active and {} warm-up steps do not fit into {} steps", active, warmup, every));
    put_all({{"profile.wait", std::to_string(every - active - warmup)},
             {"profile.warmup", std::to_string(warmup)},
             {"profile.active", std::to_string(active)},
             {"profile.repeat", "1"},
             {"profile.ranks", "all"},
             {"profile.memory", yaml_text(memory)},
             {"profile.shapes", "true"},
             {"profile.stacks", "false"}});
    const char *trace = "profiling.enable_profiling", *snapshot = "profiling.enable_memory_snapshot";
    became(traces ? trace : snapshot,
           fmt::format("profile: warmup {}, active {}, one cycle (torchtitan repeats it every {} steps), all ranks{}",
                       warmup, active, every, traces ? "" : ", memory: true; allocations and traces of these steps"));
    no_key(traces ? snapshot : trace, !traces  ? "see enable_memory_snapshot"
                                      : memory ? "profile.memory: true, allocations of these steps"
                                               : "profile.memory: false");
  }

  int64_t ranks_, readers_ = ranks_;
  const TokenizerReader& read_tokenizer_;
  std::optional<ImportedTokenizer> tokenizer_;
  int64_t global_ = 1;
};

}  // namespace

ImportedConfig import_torchtitan(const std::filesystem::path& file, int64_t ranks, const std::filesystem::path& base,
                                 const TokenizerReader& tokenizer) {
  return TitanImporter(file, ranks, base, tokenizer).run();
}

}  // namespace trireme
