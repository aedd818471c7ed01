#pragma once
// The training configuration as plain structs. A new key is one member here and one entry of
// src/config/description.cpp, which has the rest: words of its choices, limits, meaning, programs.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/lora.h"
#include "trireme/base/optimizers.h"
#include "trireme/base/recipe.h"
#include "trireme/config/features.h"

namespace trireme {

struct ModelSection {
  std::string path;
  enum class Init { kCheckpoint, kRandom } init = Init::kCheckpoint;
  enum class Read { kPerRank, kPerHost } read = Read::kPerRank;
  std::optional<int64_t> vocab_size;         // rows of the vocabulary to train with; null = the model's
  std::optional<int64_t> pad_vocab_to;       // null = ProgramKeys::vocab_multiple
  std::optional<bool> scaled_residual_init;  // null = the default of the model's family
  bool operator==(const ModelSection&) const = default;
};
struct LoraSection : LoraOptions {
  std::optional<std::string> adapter;
  bool operator==(const LoraSection&) const = default;
};
struct DataSection {
  std::vector<std::string> train, valid, test;
  std::vector<double> weights;     // of the entries of train; empty: none, or equal weights if the entries have names
  std::vector<std::string> names;  // of the entries of train
  int64_t seq_length = 0;
  bool shuffle = true;
  // For documents only, not for rows (data/stream/token_stream.h):
  std::optional<std::string> column;  // null = tokens, input_ids or text
  std::optional<int64_t> bos_token, eos_token, bol_token, eol_token;
  std::vector<int64_t> strip_tokens;
  int64_t min_length = 3, logical_shards = 960;
  // For Megatron's indexed files only (data/megatron/); eos_token is their end of a document:
  std::optional<std::string> splits;  // "99990,8,2": shares of data.train for train, valid and test
  enum class IndexRules { kNemo, kCore } index_rules = IndexRules::kNemo;
  std::optional<std::string> index_cache;  // directory of the index maps; null = the directory of each file
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
#define TRIREME_VALUE(Value, word) k##Value,
  enum class Name { TRIREME_OPTIMIZERS(TRIREME_VALUE) } name = Name::kAdamw;
#undef TRIREME_VALUE
  enum class Masters { kFp32, kBf16 } masters = Masters::kFp32;  // adamw; kBf16: the weights in use
  double lr = 4e-4;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 1e-4;
  bool decay_norms = false;
  double grad_clip = 0.3;
  enum class Clip { kGlobal, kLocal } clip = Clip::kGlobal;
  enum class TrustRatio { kDecayed, kAll } trust_ratio = TrustRatio::kDecayed;  // lamb
  enum class Moments { kFp32, kBf16 } moments = Moments::kFp32;                 // adamw, muon
  enum class Gradients { kFp32, kBf16 } gradients = Gradients::kFp32;           // their sums
  // muon:
  double momentum = 0.95;
  enum class AdjustLr { kMatchRmsAdamw, kOriginal } adjust_lr_fn = AdjustLr::kMatchRmsAdamw;
  std::optional<double> matrix_lr;  // peak rate of matrices; null = lr
  bool operator==(const OptimizerSection&) const = default;
};
struct ScheduleSection {
  enum class Name { kCosine, kLinear, kConstant, kWsd, kFmsCosine, kAnnealing } name = Name::kCosine;
  int64_t warmup_steps = 0;
  /// In place of warmup_steps: a share of train.max_steps. Loading replaces it by warmup_steps, unless train.epochs
  /// says how long the run is: then resolve_epochs() does.
  std::optional<double> warmup_ratio;
  int64_t constant_steps = 0;           // cosine: steps at min_lr after the decay; above 0 NeMo's warm-up
  double min_lr = 0;                    // cosine, linear
  std::optional<double> min_lr_factor;  // wsd (default 0), fms_cosine (default 0.1): share of the peak
  std::optional<double> decay_ratio;    // wsd: share of the run's steps; null = all after the warm-up
  enum class DecayType { kLinear, kSqrt, kCosine } decay_type = DecayType::kLinear;  // wsd
  bool operator==(const ScheduleSection&) const = default;
};
struct TrainSection {
  int64_t max_steps = 1024, seed = 1234;
  std::optional<double> epochs;  // instead of max_steps; resolve_epochs() replaces it
  bool deterministic = false;
  enum class Objective { kSft, kDpo, kOrpo, kKto } objective = Objective::kSft;
  enum class Loss { kSampleMean, kTokenMean, kRankMean } loss = Loss::kSampleMean;
  enum class OnNonfinite { kStop, kSkip } on_nonfinite = OnNonfinite::kStop;
  enum class OnSpike { kReport, kSkip } on_spike = OnSpike::kReport;
  std::optional<std::string> max_time;  // DD:HH:MM:SS of one process
  double neftune_alpha = 0;             // noise on the embedding; 0 = none
  double label_smoothing = 0;           // share of each target's probability that all ids divide
  std::optional<int64_t> patience;      // evaluations in a row without a better one that end the run
  bool operator==(const TrainSection&) const = default;
};
/// Of train.objective dpo, orpo and kto; the names are TRL's.
struct PreferenceSection {
  double beta = 0.1;
  enum class LossType { kSigmoid, kHinge, kIpo, kRobust, kKto, kApoZeroUnpaired };
  std::optional<LossType> loss_type;  // null: kSigmoid; with kto kKto
  double label_smoothing = 0, rpo_alpha = 0;
  double desirable_weight = 1, undesirable_weight = 1;  // kto
  std::optional<bool> precompute_ref_log_probs;         // null: where all parameters are trained
  bool disable_dropout = true;
  bool operator==(const PreferenceSection&) const = default;
};
struct EvalSection {
  std::optional<int64_t> every_samples;
  static constexpr int64_t kSkipByMlperf = -1;
  std::optional<int64_t> skip_first;  // a count, or kSkipByMlperf
  std::optional<double> target_loss;
  std::optional<int64_t> samples;  // number of rows of data.valid, from the first; null = all
  bool shuffle = true;             // Megatron's files: through its shuffled maps; other files are read in their order
  std::optional<double> target_accuracy;
  std::optional<int64_t> test_samples;  // number of rows of data.test, from the first; null = all
  std::vector<std::string> prompts;     // continued by the model at every evaluation
  int64_t max_new_tokens = 64;          // of an answer to a prompt
  double temperature = 0;               // of the answers
  bool operator==(const EvalSection&) const = default;
};
struct PrecisionSection {
  enum class Compute { kFp32, kBf16, kFp16 };
  std::optional<Compute> compute;                                            // default: bf16 on a GPU, fp32 on a CPU
  enum class Linear { kCompute, kFp8 } linear = Linear::kCompute;            // products of the blocks' matrices
  enum class Frozen { kAuto, kCompute, kFp8, kNf4 } frozen = Frozen::kAuto;  // matrices beside adapters
  std::optional<Recipe> fp8_recipe;               // of trained matrices; null: the program chooses
  int64_t fp8_skip_first = 0, fp8_skip_last = 0;  // trained blocks that stay in the compute type
  bool fp8_transpose_cache = true;                // transposed codes stay where the plan leaves memory
  enum class Attention { kCompute, kFp8 } attention = Attention::kCompute;  // its products in forward
  std::optional<double> loss_scale;                                         // fp16: first value of the dynamic scale
  bool operator==(const PrecisionSection&) const = default;
};
struct ParallelSection {
  enum class Policy { kAuto, kNone, kOptimizer, kGradients, kFull } policy = Policy::kAuto;
  static constexpr int64_t kAutoSize = -1, kWorldSize = 0;
  int64_t shard_size = kAutoSize;    // kAutoSize, kWorldSize, or ranks
  int64_t context_size = kAutoSize;  // kAutoSize, or ranks that share their rows
  struct Recompute {
    enum Word { kAuto, kNone, kNorms, kMlp, kAttention, kFull, kShare } word = kAuto;
    std::string share = {};  // kShare: of the blocks, as the file writes it: "1/3", "0.25"
    bool operator==(const Recompute&) const = default;
  } recompute;
  static constexpr int64_t kAutoTile = 0;
  int64_t tile_tokens = kAutoTile;
  enum class Offload { kAuto, kNone, kActivations, kOptimizer, kAll } offload = Offload::kAuto;
  enum class ReduceDtype { kFp32, kCompute } reduce_dtype = ReduceDtype::kFp32;  // of the gradients summed over ranks
  std::optional<std::string> rates;  // file of the machine's rates (`trireme calibrate`); null: the built-in table
  bool operator==(const ParallelSection&) const = default;
};
struct OutputSection {
  std::string dir;
  std::optional<int64_t> save_every_samples;
  std::optional<double> save_every_minutes;
  bool save_on_stop = true;
  int64_t keep_last = 2;
  bool keep_best = false;
  bool operator==(const OutputSection&) const = default;
};
struct LoggingSection {
  int64_t every_steps = 1;
  enum class Style { kPlain, kFms, kFms2024, kNemo } style = Style::kPlain;
  bool mlperf = false, tensorboard = false;
  std::optional<int64_t> profile_step;
  bool operator==(const LoggingSection&) const = default;
};
struct ProfileSection {
  int64_t wait = 1, warmup = 2, active = 3;  // steps of one cycle
  int64_t repeat = 1;                        // cycles; 0: until the run ends
  static constexpr int64_t kAllRanks = -1;
  std::vector<int64_t> ranks = {0};  // ranks, or kAllRanks alone
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
  std::optional<PreferenceSection> preference;
  EvalSection eval;
  PrecisionSection precision;
  ParallelSection parallel;
  OutputSection output;
  LoggingSection logging;
  std::optional<ProfileSection> profile;
  bool operator==(const Config&) const = default;
};

/// The program of a configuration file: what its configuration may say. Keys for which the
/// program lacks the feature are refused if they differ from their default, and are neither suggested in messages nor
/// listed in --help.
struct ProgramKeys {
  std::string name;  // "train_llama", for messages; empty: a file of any program
  FeatureSet features = FeatureSet::all();
  int64_t vocab_multiple = 1;  // rows fill the vocabulary up to a multiple of this where model.pad_vocab_to is null
  Config defaults = {};        // of keys that a file does not give
};

/// Reads FILE, applies `--set a.b.c=value` overrides, resolves relative paths against the file's directory, validates
/// every rule that needs no other file. Overrides: the last of equal keys wins, a value is a YAML scalar or a list in
/// brackets, `lora=null` removes the section and `lora.r=8` makes it; relative paths in overrides also start at the
/// file's directory. `world_size`: number of ranks over which the batch and parallel.shard_size must divide; nullopt:
/// unknown. All problems are in one ConfigError: one line each, `file:line:column: what is wrong. Did you mean 'x'?`
/// (overrides: `--set a.b.c=value: …`), and a closing line that counts them.
Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                   const ProgramKeys& program = {}, std::optional<int64_t> world_size = std::nullopt);

/// `text`, a problem that was found after load_config(), behind the place of the key with which it begins:
/// "run.yaml:3:9: lora.r …", "--set lora.r=99: lora.r …"; as it is if neither file nor overrides give such a key.
std::string with_place(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                       const ProgramKeys& program, const std::string& text);

/// Reads the text of print_config(); messages use `name` in place of a file. In text of earlier versions keys that have
/// been renamed get their new names.
Config parse_config(const std::string& text, const std::string& name);

/// `config` with train.max_steps in place of train.epochs, and schedule.warmup_steps in place of schedule.warmup_ratio.
/// `steps`: the steps of the epochs. ConfigError if a rule that counts steps does not hold.
Config with_steps(const Config& config, int64_t steps, const ProgramKeys& program, std::optional<int64_t> world_size);

/// YAML that load_config() reads back to the same Config (absolute paths, all keys, exact numbers).
std::string print_config(const Config& config);

/// Every key with its value as print_config() writes it: "optimizer.lr" -> "0.0004"; an absent section: "lora" ->
/// "null".
std::vector<std::pair<std::string, std::string>> flatten_config(const Config& config);

}  // namespace trireme
