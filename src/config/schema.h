#pragma once
// The one description of the configuration: describe(visitor, section) names every field with its limits and meaning.
// The reader, the printer, --help and did-you-mean are visitors of it.
//
// A visitor has
//   template <class Section> void section(const SectionInfo& info, Section& section);
//   template <class Value> void field(const Field& field, Value& value);
// with Value one of std::string, int64_t, double, bool, std::vector<std::string>, std::vector<double>,
// std::vector<int64_t>, or an std::optional of them, and Section a struct of config.h or an std::optional of one.

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct SectionInfo {
  const char* name = "";
  const char* help = "";
  Feature feature = Feature::kAlways;
  const char* instead = "";  // what a program without the feature is told to do
};

/// One of a field's words that only programs with a feature take.
struct TaggedWord {
  const char* word = "";
  Feature feature = Feature::kAlways;
  const char* help = "";  // goes on from the field's own help
};

struct Field {
  const char* key = "";
  const char* help = "";
  std::vector<std::string> words = {};  // allowed texts; empty: any
  bool or_count = false;                // a word, or an integer from `min`, kept as text
  bool or_fraction = false;             // a word, or a share from 0 to 1 ("1/3", 0.25), kept as text
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the limit itself is excluded
  size_t length = 0;                          // exact length of a list; 0: any
  bool required = false;
  bool path = false;  // made absolute against the configuration file's directory
  bool one_or_more = false,
       may_be_absent = false;           // lists: a scalar is a list of one (of texts); null is the empty list
  Feature feature = Feature::kAlways;   // programs without it lack the key
  const char* instead = "";             // what they are told to do
  std::vector<TaggedWord> tagged = {};  // of `words`
  const char* not_path = "";            // with `path`: a word that is kept as it is
};

/// `field` with the words that a program of these features takes.
Field offered(const Field& field, const FeatureSet& features);

inline constexpr double kMaxCount = 2147483647;  // 2^31 - 1

template <class Visitor>
void describe(Visitor& v, ModelSection& s) {
  v.field({.key = "path",
           .help = "Hugging Face directory, or NeMo zarr checkpoint directory",
           .required = true,
           .path = true},
          s.path);
  v.field({.key = "init",
           .help = "weights from the checkpoint, or random (config.json alone is enough)",
           .words = {"checkpoint", "random"}},
          s.init);
  v.field({.key = "vocab_size",
           .help = "rows of the vocabulary; new ones start at the mean of the model's own, as "
                   "transformers' resize_token_embeddings; null = the model's",
           .min = 1,
           .max = kMaxCount,
           .feature = Feature::kVocabularySize,
           .instead = "fill the vocabulary up with model.pad_vocab_to"},
          s.vocab_size);
  v.field({.key = "pad_vocab_to",
           .help = "new rows fill the vocabulary up to a multiple of this; 1 = none; null = {vocab_multiple}",
           .min = 1,
           .max = 65536},
          s.pad_vocab_to);
  v.field({.key = "scaled_residual_init",
           .help = "init random: projections that end in the residual start with initializer_range / sqrt(2 layers), "
                   "as GPT-2's and MLPerf's llama31_8b; null = as the model's family",
           .feature = Feature::kVocabularySize,
           .instead = "leave it out"},
          s.scaled_residual_init);
}

template <class Visitor>
void describe(Visitor& v, LoraSection& s) {
  v.field({.key = "r", .help = "rank of the adapters", .min = 1, .max = 65536}, s.r);
  v.field({.key = "alpha", .help = "the adapter's output is scaled by alpha / r", .min = 0, .above_min = true},
          s.alpha);
  v.field({.key = "dropout", .help = "dropout before A, in training only", .min = 0, .max = 1, .below_max = true},
          s.dropout);
  v.field({.key = "target_modules",
           .help = "projections that get an adapter; qkv_proj = one fused adapter over q, k, v",
           .words = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "c_attn", "c_proj",
                     "c_fc", "qkv_proj"}},
          s.target_modules);
  v.field({.key = "adapter", .help = "PEFT directory to start from", .path = true}, s.adapter);
}

template <class Visitor>
void describe(Visitor& v, DataSection& s) {
  v.field({.key = "train",
           .help = "training rows; the format follows from the content; mock = random ids, to measure speed with",
           .required = true,
           .path = true,
           .one_or_more = true,
           .not_path = "mock"},
          s.train);
  v.field({.key = "weights",
           .help = "documents (Arrow, save_to_disk, Parquet, JSON lines) in data.train: shares of the tokens that its "
                   "paths get, in any unit; also written as entries of data.train with path, weight and name",
           .min = 0,
           .above_min = true,
           .feature = Feature::kDocumentStreams},
          s.weights);
  v.field({.key = "names",
           .help = "documents: what messages call the paths of data.train",
           .may_be_absent = true,
           .feature = Feature::kDocumentStreams},
          s.names);
  v.field({.key = "valid",
           .help = "validation rows",
           .path = true,
           .one_or_more = true,
           .may_be_absent = true,
           .not_path = "mock"},
          s.valid);
  v.field({.key = "test",
           .help = "rows that are evaluated once, after the last step",
           .path = true,
           .one_or_more = true,
           .may_be_absent = true},
          s.test);
  v.field({.key = "seq_length", .help = "tokens in a row", .min = 2, .max = 16777216, .required = true}, s.seq_length);
  v.field({.key = "shuffle", .help = "false: the order of the file"}, s.shuffle);
  v.field({.key = "column",
           .help = "documents: column or field; null = tokens, input_ids or text, whichever is there",
           .feature = Feature::kDocumentStreams},
          s.column);
  v.field({.key = "bos_token",
           .help = "documents: id put before each one",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.bos_token);
  v.field({.key = "eos_token",
           .help = "documents: id put after each one; Megatron's indexed files: id that stands after each one",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.eos_token);
  v.field({.key = "bol_token",
           .help = "documents: id that every row begins with",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.bol_token);
  v.field({.key = "eol_token",
           .help = "documents: id that every row ends with",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.eol_token);
  v.field({.key = "strip_tokens",
           .help = "documents: ids of which one is taken off each end, as of the four above",
           .min = 0,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.strip_tokens);
  v.field({.key = "min_length",
           .help = "documents: shorter ones, counted with bos and eos, are skipped",
           .min = 1,
           .max = kMaxCount,
           .feature = Feature::kDocumentStreams},
          s.min_length);
  v.field({.key = "logical_shards",
           .help = "documents: parts that the order is made of; a multiple of the ranks, the same for a whole run",
           .min = 1,
           .max = 1048576,
           .feature = Feature::kDocumentStreams},
          s.logical_shards);
  v.field({.key = "splits",
           .help = "Megatron: shares of the documents of data.train that train, valid and test get, as '99990,8,2'; "
                   "null = train gets all",
           .feature = Feature::kMegatronData},
          s.splits);
  v.field({.key = "index_rules",
           .help = "Megatron: how splits are rounded and blends counted",
           .words = {"nemo", "core"},
           .feature = Feature::kMegatronData},
          s.index_rules);
  v.field({.key = "index_cache",
           .help = "Megatron: directory of the index maps; null = where each file lies",
           .path = true,
           .feature = Feature::kMegatronData},
          s.index_cache);
  v.field({.key = "reset_position_ids",
           .help = "Megatron: positions count from 0 again after each data.eos_token",
           .feature = Feature::kMegatronData},
          s.reset_position_ids);
  v.field({.key = "reset_attention_mask",
           .help = "Megatron: attention does not cross a data.eos_token",
           .feature = Feature::kMegatronData},
          s.reset_attention_mask);
  v.field({.key = "eod_mask_loss",
           .help = "Megatron: no loss on what follows a data.eos_token",
           .feature = Feature::kMegatronData},
          s.eod_mask_loss);
}

template <class Visitor>
void describe(Visitor& v, BatchSection& s) {
  v.field(
      {.key = "global_batch_size", .help = "samples per optimizer step, over all ranks", .min = 1, .max = kMaxCount},
      s.global_batch_size);
  v.field({.key = "micro_batch_size", .help = "samples per rank per forward", .min = 1, .max = kMaxCount},
          s.micro_batch_size);
  v.field({.key = "packing_rate",
           .help = "samples that a row counts for in eval.every_samples and the MLPerf log",
           .min = 1,
           .max = 1024,
           .feature = Feature::kPackedRows},
          s.packing_rate);
  v.field({.key = "rampup",
           .help = "[start, increment, samples]: steps have `start` samples at first, and `increment` more each time "
                   "that samples / ((global_batch_size - start) / increment) are seen; null = none",
           .min = 1,
           .max = 9007199254740992.0,
           .length = 3,
           .may_be_absent = true},
          s.rampup);
}

template <class Visitor>
void describe(Visitor& v, OptimizerSection& s) {
  v.field({.key = "name", .help = "optimizer", .words = {"adamw", "lamb"}}, s.name);
  v.field({.key = "moments",
           .help = "adamw: type of both moments; bf16: half the memory, rounded stochastically",
           .words = {"fp32", "bf16"}},
          s.moments);
  v.field({.key = "lr", .help = "peak learning rate", .min = 0}, s.lr);
  v.field({.key = "betas", .help = "decay of the two moments", .min = 0, .max = 1, .below_max = true, .length = 2},
          s.betas);
  v.field({.key = "eps", .help = "added to the denominator", .min = 0, .above_min = true}, s.eps);
  v.field({.key = "weight_decay", .help = "decoupled; on matrices and embeddings, not on norms and biases", .min = 0},
          s.weight_decay);
  v.field({.key = "decay_norms", .help = "true: weight decay on every parameter"}, s.decay_norms);
  v.field({.key = "grad_clip", .help = "largest L2 norm of the gradient over all trainables; 0 = off", .min = 0},
          s.grad_clip);
  v.field({.key = "clip",
           .help = "which gradient is clipped: the sum over all ranks, or each rank's own before the sum",
           .words = {"global", "local"},
           .feature = Feature::kRankMeans},
          s.clip);
  v.field({.key = "trust_ratio",
           .help = "lamb: tensors whose step is scaled by |w| / |update|: those with weight decay, or all",
           .words = {"decayed", "all"}},
          s.trust_ratio);
}

template <class Visitor>
void describe(Visitor& v, ScheduleSection& s) {
  v.field({.key = "name",
           .help = "learning rate after the warm-up; wsd: torchtitan's warm-up, stable, decay; fms_cosine: fms-fsdp's "
                   "quadratic warm-up and cosine; annealing: lr * (1 - t/max_steps)",
           .words = {"cosine", "linear", "constant", "wsd", "fms_cosine", "annealing"}},
          s.name);
  v.field({.key = "warmup_steps",
           .help = "steps of warm-up: lr * (t+1) / (warmup_steps+1); wsd: lr * (t+1) / warmup_steps; fms_cosine: lr * "
                   "(1 - (1 - t/warmup_steps)^2)",
           .min = 0,
           .max = kMaxCount},
          s.warmup_steps);
  v.field({.key = "constant_steps",
           .help = "cosine: steps at min_lr at the end of the run, before which the decay ends; above 0 the warm-up is "
                   "lr * t / warmup_steps up to step warmup_steps, as NeMo's CosineAnnealing",
           .min = 0,
           .max = kMaxCount},
          s.constant_steps);
  v.field({.key = "min_lr", .help = "cosine, linear: learning rate at the last step", .min = 0}, s.min_lr);
  v.field({.key = "min_lr_factor",
           .help = "wsd, fms_cosine: share of optimizer.lr that the decay ends at; null = 0 and 0.1",
           .min = 0,
           .max = 1},
          s.min_lr_factor);
  v.field({.key = "decay_ratio",
           .help = "wsd: share of train.max_steps that decays; null = all after the warm-up",
           .min = 0,
           .max = 1},
          s.decay_ratio);
  v.field({.key = "decay_type", .help = "wsd: how it decays", .words = {"linear", "sqrt", "cosine"}}, s.decay_type);
}

template <class Visitor>
void describe(Visitor& v, TrainSection& s) {
  v.field({.key = "max_steps", .help = "optimizer steps of the run; may be raised later", .min = 1, .max = kMaxCount},
          s.max_steps);
  v.field({.key = "seed", .help = "data order, dropout, initial weights", .min = 0, .max = 4294967295.0}, s.seed);
  v.field({.key = "loss",
           .help = "mean of the samples' masked means, or over all targets of the step",
           .words = {"sample_mean", "token_mean", "rank_mean"},
           .tagged = {{"rank_mean", Feature::kRankMeans, ", or of the ranks' means"}}},
          s.loss);
  v.field({.key = "on_nonfinite",
           .help = "a step whose loss or gradient is not finite: end the run, or skip the step (at most 20 in a row), "
                   "which changes nothing and does not count for the schedule",
           .words = {"stop", "skip"}},
          s.on_nonfinite);
  v.field({.key = "on_spike",
           .help = "a step whose loss is far above the last ones: report it, or skip the step",
           .words = {"report", "skip"}},
          s.on_spike);
  v.field({.key = "max_time",
           .help = "DD:HH:MM:SS: the run saves its state and ends with exit code 0 before it has run for so long, and "
                   "the same command goes on; null = no limit"},
          s.max_time);
}

template <class Visitor>
void describe(Visitor& v, EvalSection& s) {
  v.field({.key = "every_samples",
           .help = "samples between evaluations, in whole steps; null = only at the end",
           .min = 1,
           .max = 9007199254740992.0},
          s.every_samples);
  v.field({.key = "skip_first",
           .help = "evaluations skipped at the start",
           .words = {"mlperf"},
           .or_count = true,
           .min = 0,
           .max = kMaxCount,
           .tagged = {{"mlperf", Feature::kMlperfSkip, "; mlperf = floor(0.125 global_batch_size + 2)"}}},
          s.skip_first);
  v.field({.key = "target_loss", .help = "stop with success at the first evaluation <= this"}, s.target_loss);
  v.field({.key = "samples",
           .help = "evaluate on the first so many samples of data.valid; null = on all",
           .min = 1,
           .max = kMaxCount},
          s.samples);
  v.field({.key = "shuffle",
           .help = "Megatron's files: evaluate rows that its shuffled maps give, as Megatron does; false = the first "
                   "rows in the file's order, as other files are read",
           .feature = Feature::kMegatronData},
          s.shuffle);
  v.field({.key = "target_accuracy",
           .help = "stop with success at the first evaluation whose accuracy is >= this",
           .min = 0,
           .max = 1,
           .above_min = true,
           .feature = Feature::kAccuracy,
           .instead = "use eval.target_loss"},
          s.target_accuracy);
  v.field({.key = "test_samples",
           .help = "test on the first so many rows of data.test; null = on all",
           .min = 1,
           .max = kMaxCount},
          s.test_samples);
}

template <class Visitor>
void describe(Visitor& v, PrecisionSection& s) {
  v.field(
      {.key = "compute", .help = "arithmetic; null = bf16 on a GPU, fp32 on a CPU", .words = {"fp32", "bf16", "fp16"}},
      s.compute);
  v.field({.key = "linear",
           .help = "products of the blocks' matrices in the compute type, or in FP8: frozen matrices are stored in it, "
                   "trained ones multiplied in it (GPUs of compute capability 9.0; a CPU emulates it)",
           .words = {"compute", "fp8"}},
          s.linear);
  v.field(
      {.key = "fp8_recipe",
       .help = "scales of trained matrices' FP8 products: delayed = one a tensor, from the step before; tensorwise = "
               "one a tensor, its own; rowwise = one a row of activations and gradients; auto = rowwise for decoders, "
               "delayed for BERT",
       .words = {"auto", "rowwise", "tensorwise", "delayed"}},
      s.fp8_recipe);
  v.field({.key = "fp8_skip_first",
           .help = "the first so many blocks stay in the compute type when all parameters are trained in FP8",
           .min = 0,
           .max = 65536},
          s.fp8_skip_first);
  v.field({.key = "fp8_skip_last",
           .help = "the last so many blocks stay in the compute type when all parameters are trained in FP8",
           .min = 0,
           .max = 65536},
          s.fp8_skip_last);
  v.field({.key = "loss_scale",
           .help = "fp16: what the dynamic loss scale starts from; null = 65536",
           .min = 1,
           .max = 16777216},
          s.loss_scale);
}

template <class Visitor>
void describe(Visitor& v, ParallelSection& s) {
  v.field({.key = "policy",
           .help = "what of the trained weights' state is divided among the ranks of a shard group: nothing, master "
                   "weights and moments, gradients too, weights too",
           .words = {"auto", "none", "optimizer", "gradients", "full"}},
          s.policy);
  v.field({.key = "shard_size",
           .help = "ranks that a unit is sharded over",
           .words = {"auto", "world"},
           .or_count = true,
           .min = 1,
           .max = 1048576},
          s.shard_size);
  v.field({.key = "recompute",
           .help = "what backward recomputes of each block; a share recomputes that part of the blocks whole",
           .words = {"auto", "none", "norms", "mlp", "full"},
           .or_fraction = true,
           .tagged = {{"norms", Feature::kRecomputeMlp, " (norms: outputs of norms and activation"},
                      {"mlp", Feature::kRecomputeMlp, "; mlp: gate and up projections too)"}}},
          s.recompute);
  v.field({.key = "reduce_dtype",
           .help = "type of the gradients summed over ranks; compute: as computed with",
           .words = {"fp32", "compute"}},
          s.reduce_dtype);
}

template <class Visitor>
void describe(Visitor& v, OutputSection& s) {
  v.field({.key = "dir", .help = "created; a directory of another run is refused", .required = true, .path = true},
          s.dir);
  v.field({.key = "save_every_samples",
           .help = "samples between checkpoints, in whole steps, and the last step; null = only when stopped",
           .min = 1,
           .max = 9007199254740992.0},
          s.save_every_samples);
  v.field({.key = "save_every_minutes",
           .help = "minutes between checkpoints, beside the above; null = no",
           .min = 0,
           .max = 525600,
           .above_min = true},
          s.save_every_minutes);
  v.field({.key = "save_on_stop",
           .help = "a signal saves a checkpoint before the run ends; false: what follows the last regular one is lost"},
          s.save_on_stop);
  v.field({.key = "keep_last", .help = "whole checkpoints of this run that stay", .min = 2, .max = kMaxCount},
          s.keep_last);
}

template <class Visitor>
void describe(Visitor& v, LoggingSection& s) {
  v.field({.key = "every_steps", .help = "steps between console lines", .min = 1, .max = kMaxCount}, s.every_steps);
  v.field({.key = "style",
           .help = "console lines of steps: one a step, or those of fms-fsdp and of its version of March 2024 (AWS); "
                   "nemo: one a step, and the log files and TensorBoard tags of NeMo's results folder in output.dir",
           .words = {"plain", "fms", "fms_2024", "nemo"}},
          s.style);
  v.field({.key = "mlperf", .help = ":::MLLOG lines on stdout and in mllog.log", .feature = Feature::kMlperfLog},
          s.mlperf);
  v.field({.key = "tensorboard", .help = "TensorBoard event files in output.dir/tensorboard"}, s.tensorboard);
  v.field({.key = "profile_step",
           .help = "one step to profile: short for profile with active 1 and warmup 1; null = none",
           .min = 1,
           .max = kMaxCount},
          s.profile_step);
}

template <class Visitor>
void describe(Visitor& v, ProfileSection& s) {
  v.field({.key = "wait", .help = "steps of a cycle before its warm-up", .min = 0, .max = kMaxCount}, s.wait);
  v.field({.key = "warmup",
           .help = "steps with the profiler prepared and nothing recorded; on GPUs at least 1",
           .min = 0,
           .max = kMaxCount},
          s.warmup);
  v.field({.key = "active", .help = "steps recorded", .min = 1, .max = kMaxCount}, s.active);
  v.field({.key = "repeat", .help = "cycles; 0 = until the run ends", .min = 0, .max = kMaxCount}, s.repeat);
  v.field({.key = "ranks",
           .help = "ranks that record",
           .words = {"all"},
           .or_count = true,
           .min = 0,
           .max = 1048575,
           .one_or_more = true},
          s.ranks);
  v.field({.key = "memory", .help = "allocations in the trace, and a table and a timeline of memory"}, s.memory);
  v.field({.key = "shapes", .help = "shapes of the operations' inputs"}, s.shapes);
  v.field({.key = "stacks", .help = "call stacks: not available, LibTorch takes those of Python only"}, s.stacks);
}

template <class Visitor>
void describe(Visitor& v, Config& c) {
  v.section({"model", "the model and its weights"}, c.model);
  v.section(
      {"lora", "low-rank adapters; leave out for full-parameter training", Feature::kAdapters, "leave 'lora' out"},
      c.lora);
  v.section({"data", "token rows"}, c.data);
  v.section({"batch", "batch sizes"}, c.batch);
  v.section({"optimizer", "optimizer over the trained parameters"}, c.optimizer);
  v.section({"schedule", "learning rate of step t, from 0"}, c.schedule);
  v.section({"train", "length, seed and loss"}, c.train);
  v.section({"eval", "evaluation on data.valid"}, c.eval);
  v.section({"precision", "number formats"}, c.precision);
  v.section({"parallel", "memory against communication"}, c.parallel);
  v.section({"output", "what the run leaves"}, c.output);
  v.section({"logging", "console and logs"}, c.logging);
  v.section({"profile", "traces of some steps in output.dir/profile; leave out for none"}, c.profile);
}

}  // namespace trireme
