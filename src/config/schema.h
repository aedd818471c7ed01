#pragma once
// The one description of the configuration: describe(visitor, section) names every field with its limits and meaning.
// The reader, the printer, --help and did-you-mean are visitors of it.
//
// A visitor has
//   template <class Section> void section(const SectionInfo& info, Section& section);
//   template <class Value> void field(const Field& field, Value& value);
// with Value one of std::string, int64_t, double, bool, std::vector<std::string>, std::vector<double>,
// std::vector<int64_t>, or an std::optional of them, and Section a struct of config.h or an std::optional of one.

#include "schema_data.h"
#include "schema_field.h"
#include "trireme/base/recipe.h"

namespace trireme {

template <class Visitor>
void describe(Visitor& v, BatchSection& s) {
  v.field(
      {.key = "global_batch_size", .help = "samples per optimizer step, over all ranks", .min = 1, .max = kMaxCount},
      s.global_batch_size);
  v.field({.key = "micro_batch_size",
           .help = "samples per rank per forward",
           .min = 1,
           .max = kMaxCount,
           .may_change = true},
          s.micro_batch_size);
  v.field({.key = "packing_rate",
           .help = "samples that a row counts for in eval.every_samples and the MLPerf log",
           .min = 1,
           .max = 1024,
           .feature = Feature::kPackedRows},
          s.packing_rate);
  v.field(
      {.key = "rampup",
       .help = "[start, increment, samples]: the batch grows from `start` to global_batch_size samples, by `increment` "
               "at a time, evenly over the first `samples` samples; null = it does not grow",
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
  v.field({.key = "eps", .help = "added to the denominator of the update", .min = 0, .above_min = true}, s.eps);
  v.field({.key = "weight_decay", .help = "decoupled; on matrices and embeddings, not on norms and biases", .min = 0},
          s.weight_decay);
  v.field({.key = "decay_norms", .help = "true: weight decay on every parameter"}, s.decay_norms);
  v.field(
      {.key = "grad_clip", .help = "largest L2 norm of the gradient over all trained parameters; 0 = off", .min = 0},
      s.grad_clip);
  v.field({.key = "clip",
           .help = "global: the gradient summed over all ranks is clipped; local: each rank's own, before the sum",
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
  v.field({.key = "warmup_ratio",
           .help = "instead of warmup_steps: share of the run's steps, rounded up",
           .min = 0,
           .max = 1},
          s.warmup_ratio);
  v.field({.key = "constant_steps",
           .help = "cosine: the last steps of the run, which have the rate min_lr. Above 0 the schedule is NeMo's "
                   "CosineAnnealing, whose warm-up is lr * t / warmup_steps up to step warmup_steps",
           .min = 0,
           .max = kMaxCount},
          s.constant_steps);
  v.field({.key = "min_lr", .help = "cosine, linear: learning rate at the last step", .min = 0}, s.min_lr);
  v.field(
      {.key = "min_lr_factor",
       .help = "wsd, fms_cosine: the decay ends at this share of optimizer.lr; null = 0 for wsd, 0.1 for fms_cosine",
       .min = 0,
       .max = 1},
      s.min_lr_factor);
  v.field({.key = "decay_ratio",
           .help = "wsd: share of train.max_steps in which the rate decays; null = all after the warm-up",
           .min = 0,
           .max = 1},
          s.decay_ratio);
  v.field({.key = "decay_type", .help = "wsd: form of the decay", .words = {"linear", "sqrt", "cosine"}}, s.decay_type);
}

template <class Visitor>
void describe(Visitor& v, TrainSection& s) {
  v.field({.key = "max_steps", .help = "optimizer steps of the run; may be raised later", .min = 1, .max = kMaxCount},
          s.max_steps);
  v.field({.key = "epochs",
           .help = "instead of max_steps: passes over the rows of data.train (a fraction is allowed); the last step is "
                   "the one that reaches the last row of the last pass",
           .min = 0,
           .max = 1e6,
           .above_min = true},
          s.epochs);
  v.field({.key = "seed", .help = "data order, dropout, initial weights", .min = 0, .max = 4294967295.0}, s.seed);
  v.field({.key = "deterministic",
           .help = "on GPUs: every run of the same configuration has the same bits, a resumed one too; attention's "
                   "backward then sums in a fixed order, which takes longer. CPUs always have the same bits",
           .may_change = true},
          s.deterministic);
  v.field(
      {.key = "loss",
       .help =
           "sample_mean: mean of each sample's mean over its targets; token_mean: mean over all targets of the step",
       .words = {"sample_mean", "token_mean", "rank_mean"},
       .tagged = {{"rank_mean", Feature::kRankMeans, "; rank_mean: mean of the ranks' token means"}}},
      s.loss);
  v.field(
      {.key = "on_nonfinite",
       .help = "at a step whose loss or gradient is not finite: stop = end the run; skip = change no weight, do not "
               "count the step in the schedule, and go on (at most 20 times in a row)",
       .words = {"stop", "skip"},
       .may_change = true},
      s.on_nonfinite);
  v.field({.key = "on_spike",
           .help = "at a step whose loss is far above those before it: report it, or also skip the step",
           .words = {"report", "skip"},
           .may_change = true},
          s.on_spike);
  v.field({.key = "max_time",
           .help = "DD:HH:MM:SS: time limit: the run saves its state and ends with exit code 0 before it is reached; "
                   "the same command continues; null = no limit",
           .may_change = true},
          s.max_time);
}

template <class Visitor>
void describe(Visitor& v, EvalSection& s) {
  v.field({.key = "every_samples",
           .help = "samples between evaluations, rounded up to whole steps; null = only at the end",
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
           .help = "evaluate on this many samples from the start of data.valid; null = on all",
           .min = 1,
           .max = kMaxCount},
          s.samples);
  v.field(
      {.key = "shuffle",
       .help = "Megatron's files: evaluate rows in the shuffled order that Megatron uses; false = the first rows of "
               "the file, as with all other formats",
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
           .help = "test on this many rows from the start of data.test; null = on all",
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
  v.field({.key = "fp8_recipe",
           .help = "scales of trained matrices' FP8 products: delayed = one for each tensor, from the step before; "
                   "tensorwise = one for each tensor, its own; rowwise = one for each row of activations and "
                   "gradients; auto = rowwise for decoders, "
                   "delayed for BERT",
#define TRIREME_WORD(Name, word) , #word
           .words = {"auto" TRIREME_TRAINED_FP8_RECIPES(TRIREME_WORD)}},
#undef TRIREME_WORD
          s.fp8_recipe);
  v.field({.key = "fp8_skip_first",
           .help = "this many blocks at the start stay in the compute type when all parameters are trained in FP8",
           .min = 0,
           .max = 65536},
          s.fp8_skip_first);
  v.field({.key = "fp8_skip_last",
           .help = "this many blocks at the end stay in the compute type when all parameters are trained in FP8",
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
           .help = "what each shard group divides among its ranks: none = nothing; optimizer = master weights and "
                   "moments; gradients = these and the gradients; full = these and the weights; auto = the choice with "
                   "the shortest predicted step among those that fit",
           .words = {"auto", "none", "optimizer", "gradients", "full"}},
          s.policy);
  v.field({.key = "shard_size",
           .help = "number of ranks in a shard group",
           .words = {"auto", "world"},
           .or_count = true,
           .min = 1,
           .max = 1048576},
          s.shard_size);
  v.field({.key = "recompute",
           .help = "what backward recomputes: full = every block; a share such as 1/3 = that part of the blocks",
           .words = {"auto", "none", "norms", "mlp", "full"},
           .or_fraction = true,
           .tagged = {{"norms", Feature::kRecomputeMlp, "; norms = of every block the outputs of norms and activation"},
                      {"mlp", Feature::kRecomputeMlp, "; mlp = these and the gate and up projections"}}},
          s.recompute);
  v.field({.key = "reduce_dtype",
           .help = "type in which gradients are summed over ranks; compute = that of precision.compute",
           .words = {"fp32", "compute"}},
          s.reduce_dtype);
  v.field(
      {.key = "rates",
       .help = "YAML file of this machine's rates, from which the plan predicts step times (trireme calibrate writes "
               "it); null = the built-in table",
       .path = true},
      s.rates);
}

template <class Visitor>
void describe(Visitor& v, OutputSection& s) {
  v.field({.key = "dir",
           .help = "directory of all files that the run writes; it is created; one that holds another run is refused",
           .required = true,
           .path = true},
          s.dir);
  v.field({.key = "save_every_samples",
           .help = "samples between checkpoints, rounded up to whole steps; the last step saves too; null = save only "
                   "when stopped",
           .min = 1,
           .max = 9007199254740992.0},
          s.save_every_samples);
  v.field({.key = "save_every_minutes",
           .help = "minutes between checkpoints, independent of save_every_samples; null = not by time",
           .min = 0,
           .max = 525600,
           .above_min = true},
          s.save_every_minutes);
  v.field({.key = "save_on_stop",
           .help = "a signal saves a checkpoint before the run ends; false: steps after the last checkpoint are lost"},
          s.save_on_stop);
  v.field({.key = "keep_last",
           .help = "how many of the newest whole checkpoints are kept; older ones are removed",
           .min = 2,
           .max = kMaxCount},
          s.keep_last);
}

template <class Visitor>
void describe(Visitor& v, LoggingSection& s) {
  v.field({.key = "every_steps", .help = "steps between console lines", .min = 1, .max = kMaxCount}, s.every_steps);
  v.field(
      {.key = "style",
       .help = "plain: a console line for each step; fms, fms_2024: the lines of fms-fsdp and of its version of March "
               "2024 (AWS); nemo: as plain, and NeMo's log files and TensorBoard tags in output.dir",
       .words = {"plain", "fms", "fms_2024", "nemo"}},
      s.style);
  v.field({.key = "mlperf", .help = ":::MLLOG lines on stdout and in mllog.log", .feature = Feature::kMlperfLog},
          s.mlperf);
  v.field({.key = "tensorboard", .help = "TensorBoard event files in output.dir/tensorboard"}, s.tensorboard);
  v.field({.key = "profile_step",
           .help = "one step to profile, the same as the section profile with active 1 and warmup 1; null = none",
           .min = 1,
           .max = kMaxCount},
          s.profile_step);
}

template <class Visitor>
void describe(Visitor& v, ProfileSection& s) {
  v.field({.key = "wait",
           .help = "steps of a cycle in which the profiler is off, before its warm-up",
           .min = 0,
           .max = kMaxCount},
          s.wait);
  v.field({.key = "warmup",
           .help = "steps in which the profiler starts up and records nothing; on GPUs at least 1",
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
  v.field({.key = "memory", .help = "record allocations, and make a table and a timeline of memory"}, s.memory);
  v.field({.key = "shapes", .help = "record the shapes of the operations' inputs"}, s.shapes);
  v.field({.key = "stacks", .help = "call stacks: must be false, LibTorch records those of Python only"}, s.stacks);
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
  v.section({"schedule", "learning rate of step t, where the first step is 0"}, c.schedule);
  v.section({"train", "length, seed and loss"}, c.train);
  v.section({.name = "eval", .help = "evaluation on data.valid", .may_change = true}, c.eval);
  v.section({"precision", "number formats"}, c.precision);
  v.section({.name = "parallel", .help = "what is sharded over ranks and recomputed", .may_change = true}, c.parallel);
  v.section({.name = "output", .help = "what the run leaves", .may_change = true}, c.output);
  v.section({.name = "logging", .help = "console and logs", .may_change = true}, c.logging);
  v.section(
      {.name = "profile", .help = "traces of some steps in output.dir/profile; leave out for none", .may_change = true},
      c.profile);
}

}  // namespace trireme
