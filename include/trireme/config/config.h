#pragma once
// The training configuration as plain structs. One description (describe() in schema.h) feeds the strict YAML reader,
// the resolved printer, --set, --help and did-you-mean: a new key is one field here and one line there.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/config/features.h"

namespace trireme {

struct ModelSection {
  std::string path;
  std::string init = "checkpoint";           // checkpoint | random
  std::string read = "per_rank";             // per_rank | per_host
  std::optional<int64_t> vocab_size;         // rows of the vocabulary to train with; null = the model's
  std::optional<int64_t> pad_vocab_to;       // null = ConfigFamily::vocab_multiple
  std::optional<bool> scaled_residual_init;  // null = as the model's family
  bool operator==(const ModelSection&) const = default;
};
struct LoraSection {
  int64_t r = 16;
  double alpha = 32;
  double dropout = 0.1;
  std::vector<std::string> target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"};
  std::optional<std::string> adapter;
  bool operator==(const LoraSection&) const = default;
};
struct DataSection {
  std::vector<std::string> train, valid, test;
  std::vector<double> weights;     // of the entries of train; empty: none, or equal ones where they have names
  std::vector<std::string> names;  // of the entries of train
  int64_t seq_length = 0;
  bool shuffle = true;
  // For documents only, not for rows (data/stream/token_stream.h):
  std::optional<std::string> column;  // null = tokens, input_ids or text
  std::optional<int64_t> bos_token, eos_token, bol_token, eol_token;
  std::vector<int64_t> strip_tokens;
  int64_t min_length = 3, logical_shards = 960;
  // For Megatron's indexed files only (data/megatron/); eos_token is their end of a document:
  std::optional<std::string> splits;       // "99990,8,2": train, valid and test from data.train
  std::string index_rules = "nemo";        // nemo | core
  std::optional<std::string> index_cache;  // directory of the index maps; null = that of each file
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  bool operator==(const DataSection&) const = default;
};
struct BatchSection {
  int64_t global_batch_size = 8, micro_batch_size = 1;
  double packing_rate = 1;  // samples that a row counts for
  /// start, increment, samples: the batch grows from `start` by `increment` each samples / (number of increments);
  /// empty: it is global_batch_size from the first step on.
  std::vector<int64_t> rampup;
  bool operator==(const BatchSection&) const = default;
};
struct OptimizerSection {
  std::string name = "adamw";
  double lr = 4e-4;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 1e-4;
  bool decay_norms = false;
  double grad_clip = 0.3;
  std::string clip = "global";          // global | local
  std::string trust_ratio = "decayed";  // lamb: decayed | all
  std::string moments = "fp32";         // adamw: fp32 | bf16
  bool operator==(const OptimizerSection&) const = default;
};
struct ScheduleSection {
  std::string name = "cosine";  // cosine | linear | constant | wsd | fms_cosine | annealing
  int64_t warmup_steps = 0;
  /// Instead of warmup_steps: a share of train.max_steps. Loading replaces it by warmup_steps, unless train.epochs says
  /// how long the run is: then resolve_epochs() does.
  std::optional<double> warmup_ratio;
  int64_t constant_steps = 0;           // cosine: steps at min_lr after the decay; above 0 NeMo's warm-up
  double min_lr = 0;                    // cosine, linear
  std::optional<double> min_lr_factor;  // wsd (default 0), fms_cosine (default 0.1): share of the peak
  std::optional<double> decay_ratio;    // wsd: share of the run's steps; null = all after the warm-up
  std::string decay_type = "linear";    // wsd: linear | sqrt | cosine
  bool operator==(const ScheduleSection&) const = default;
};
struct TrainSection {
  int64_t max_steps = 1024, seed = 1234;
  std::optional<double> epochs;  // instead of max_steps; resolve_epochs() replaces it
  bool deterministic = false;
  std::string loss = "sample_mean";
  std::string on_nonfinite = "stop";    // stop | skip
  std::string on_spike = "report";      // report | skip
  std::optional<std::string> max_time;  // DD:HH:MM:SS of one process
  bool operator==(const TrainSection&) const = default;
};
struct EvalSection {
  std::optional<int64_t> every_samples;
  std::optional<std::string> skip_first;  // null, "mlperf", or a count
  std::optional<double> target_loss;
  std::optional<int64_t> samples;  // the first so many of data.valid; null = all
  bool shuffle = true;             // Megatron's files: through its shuffled maps; others are read in the file's order
  std::optional<double> target_accuracy;
  std::optional<int64_t> test_samples;  // the first so many rows of data.test; null = all
  bool operator==(const EvalSection&) const = default;
};
struct PrecisionSection {
  std::optional<std::string> compute;             // default: bf16 on a GPU, fp32 on a CPU
  std::string linear = "compute";                 // products of the blocks' matrices: compute | fp8
  std::string fp8_recipe = "auto";                // of trained matrices: auto | rowwise | tensorwise | delayed
  int64_t fp8_skip_first = 0, fp8_skip_last = 0;  // trained blocks that stay in the compute type
  std::optional<double> loss_scale;               // fp16: what the dynamic scale starts from
  bool operator==(const PrecisionSection&) const = default;
};
struct ParallelSection {
  std::string policy = "auto";        // auto | none | optimizer | gradients | full
  std::string shard_size = "auto";    // auto | world | a count
  std::string recompute = "auto";     // auto | none | norms | mlp | full, or a share of the blocks ("1/3", "0.25")
  std::string reduce_dtype = "fp32";  // of the gradients summed over ranks: fp32 | compute
  std::optional<std::string> rates;   // file of the machine's rates (`trireme calibrate`); null: the built-in table
  bool operator==(const ParallelSection&) const = default;
};
struct OutputSection {
  std::string dir;
  std::optional<int64_t> save_every_samples;
  std::optional<double> save_every_minutes;
  bool save_on_stop = true;
  int64_t keep_last = 2;
  bool operator==(const OutputSection&) const = default;
};
struct LoggingSection {
  int64_t every_steps = 1;
  std::string style = "plain";  // plain | fms | fms_2024 | nemo
  bool mlperf = false, tensorboard = false;
  std::optional<int64_t> profile_step;
  bool operator==(const LoggingSection&) const = default;
};
struct ProfileSection {
  int64_t wait = 1, warmup = 2, active = 3;  // steps of one cycle
  int64_t repeat = 1;                        // cycles; 0: until the run ends
  std::vector<std::string> ranks = {"0"};    // counts, or "all"
  bool memory = false, shapes = false, stacks = false;
  bool operator==(const ProfileSection&) const = default;
};

struct Config {
  ModelSection model;
  std::optional<LoraSection> lora;
  DataSection data;
  BatchSection batch;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  TrainSection train;
  EvalSection eval;
  PrecisionSection precision;
  ParallelSection parallel;
  OutputSection output;
  LoggingSection logging;
  std::optional<ProfileSection> profile;
  bool operator==(const Config&) const = default;
};

/// Whose configuration a file is. Keys that it has no feature for are refused where they are set to something else than
/// their default, and neither offered in messages nor listed in --help.
struct ConfigFamily {
  std::string program;  // "train_llama", for messages; empty: a file of any program
  FeatureSet features = FeatureSet::all();
  int64_t vocab_multiple = 1;  // rows fill the vocabulary up to a multiple of this where model.pad_vocab_to is null
  Config defaults = {};        // of keys that a file does not give
};

/// Reads FILE, applies `--set a.b.c=value` overrides, resolves relative paths against the file's directory, validates
/// every rule that needs no other file. Overrides: the last of equal keys wins, a value is a YAML scalar or a list in
/// brackets, `lora=null` removes the section and `lora.r=8` makes it; relative paths count from the file's directory
/// there, too. `world_size`: the ranks that the batch and parallel.shard_size must divide over; nullopt: not known.
/// All problems come in one ConfigError: one line each, `file:line:column: what is wrong. Did you mean 'x'?`
/// (overrides: `--set a.b.c=value: …`), and a closing line that counts them.
Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const ConfigFamily& family = {}, std::optional<int64_t> world_size = std::nullopt);

/// The same for the text that print_config() gave, `name` standing for the file in messages. Text of earlier versions
/// is read as what it meant: a key that has another name now becomes that.
Config parse_config(const std::string& text, const std::string& name);

/// `config` with train.max_steps in place of train.epochs, and schedule.warmup_steps in place of schedule.warmup_ratio.
/// `steps`: those of the epochs. ConfigError if a rule that counts steps does not hold.
Config with_steps(const Config& config, int64_t steps, const ConfigFamily& family, std::optional<int64_t> world_size);

/// YAML that load_config() reads back to the same Config (absolute paths, all keys, exact numbers).
std::string print_config(const Config& config);

/// Every key with its value as print_config() writes it: "optimizer.lr" -> "0.0004"; an absent section: "lora" ->
/// "null".
std::vector<std::pair<std::string, std::string>> flatten_config(const Config& config);

/// Every key of `family` with type, default and meaning, for --help.
std::string describe_config(const ConfigFamily& family);

}  // namespace trireme
