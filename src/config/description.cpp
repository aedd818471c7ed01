// The table of all sections and keys.
#include "described_section.h"
#include "trireme/base/time.h"

namespace trireme {

namespace {

constexpr double kMaxCount = 2147483647;            // 2^31 - 1
constexpr double kMaxSamples = 9007199254740992.0;  // 2^53

Section model_section() {
  using S = ModelSection;
  described::SectionKeys<S> s(&Config::model, "model", "the model and its weights");
  s.key("path", &S::path,
        "Hugging Face directory, or NeMo zarr checkpoint directory; BERT: also a TensorFlow checkpoint",
        {.required = true,
         .path = true,
         .elsewhere = {"model_name_or_path", "base_model", "model_name", "model.name", "model.name_or_path",
                       "checkpoint_dir"}});
  s.key("init", &S::init, "weights from the checkpoint, or random (config.json alone is enough)",
        {.choices = {{"checkpoint", S::Init::kCheckpoint}, {"random", S::Init::kRandom}}});
  s.key("read", &S::read,
        "per_rank: every rank reads its weights from the files; per_host: one rank of a host reads each weight and "
        "sends it to the others",
        {.choices = {{"per_rank", S::Read::kPerRank}, {"per_host", S::Read::kPerHost}}, .may_change = true});
  s.key("vocab_size", &S::vocab_size,
        "rows of the vocabulary; new rows start as the mean of the existing ones, as with transformers' "
        "resize_token_embeddings; null = as many as the model has",
        {.min = 1,
         .max = kMaxCount,
         .feature = Feature::kVocabularySize,
         .instead = "fill the vocabulary up with model.pad_vocab_to"});
  s.key("pad_vocab_to", &S::pad_vocab_to,
        "rows are added to the vocabulary up to a multiple of this; 1 = none; null = {vocab_multiple}",
        {.min = 1, .max = 65536, .option = {.nemo = "model.make_vocab_size_divisible_by"}});
  s.key("scaled_residual_init", &S::scaled_residual_init,
        "with init random: projections whose output is added to the residual stream are drawn with the standard "
        "deviation initializer_range / sqrt(2 layers), as in GPT-2 and MLPerf's llama31_8b; null = what the "
        "model's family does",
        {.feature = Feature::kVocabularySize, .instead = "leave it out"});
  return s.section;
}

Section lora_section() {
  using S = LoraSection;
  described::SectionKeys<S> s(&Config::lora, "lora", "low-rank adapters; leave out for full-parameter training",
                              {.feature = Feature::kAdapters, .instead = "leave 'lora' out"});
  s.key("r", &S::r, "rank of the adapters",
        {.min = 1, .max = 65536, .elsewhere = {"lora.rank", "lora_r", "lora_rank"}});
  s.key("alpha", &S::alpha, "the adapter's output is scaled by alpha / r; with use_rslora by alpha / sqrt(r)",
        {.min = 0, .max = 65536, .above_min = true, .elsewhere = {"lora_alpha"}});
  s.key("dropout", &S::dropout, "dropout before A, in training only",
        {.min = 0, .max = 1, .below_max = true, .elsewhere = {"lora_dropout"}});
  const std::vector<KeyChoice> projections = {"q_proj",       "k_proj",    "v_proj",       "o_proj", "gate_proj",
                                              "up_proj",      "down_proj", "c_attn",       "c_proj", "c_fc",
                                              "gate_up_proj", "qkv_proj",  "embed_tokens", "wte"};
  s.key("target_modules", &S::target_modules,
        "projections that get an adapter: names, also with parts of the path before them (layers.3.mlp.up_proj); a "
        "regular expression that matches whole paths (model.layers.3.mlp.up_proj); or all-linear. qkv_proj = one fused "
        "adapter over q, k, v",
        {.choices = projections,
         .elsewhere = {"lora_target", "lora_target_modules", "lora.modules", "lora_attn_modules"}});
  s.key("exclude_modules", &S::exclude_modules, "of these, those that get none: names or a regular expression",
        {.choices = projections, .may_be_absent = true});
  s.key("layers_to_transform", &S::layers_to_transform, "blocks with adapters, the first is 0; null = all",
        {.min = 0, .max = 1e6, .one_or_more = true, .may_be_absent = true, .elsewhere = {"peft_layers_to_transform"}});
  s.key("use_rslora", &S::use_rslora, "the adapter's output is scaled by alpha / sqrt(r)",
        {.elsewhere = {"rslora", "peft_use_rslora"}});
  s.key("rank_pattern", &S::rank_pattern,
        "another r for some projections: a mapping of names, or of regular expressions that match a path or its end "
        "after a dot",
        {.min = 1, .max = 65536, .may_be_absent = true, .elsewhere = {"lora_rank_pattern"}});
  s.key("alpha_pattern", &S::alpha_pattern, "another alpha for some projections, as rank_pattern",
        {.min = 0, .max = 65536, .above_min = true, .may_be_absent = true, .elsewhere = {"lora_alpha_pattern"}});
  s.key("use_dora", &S::use_dora,
        "DoRA: the length of each row of an adapted weight is trained apart from its direction. With dropout each "
        "adapted "
        "matrix is multiplied twice, as in peft",
        {.elsewhere = {"dora", "peft_use_dora"}});
  s.key("bias", &S::bias, "biases that are trained: none, all of the model, or those of projections with an adapter",
        {.choices = {{"none", S::Bias::kNone}, {"all", S::Bias::kAll}, {"lora_only", S::Bias::kLoraOnly}},
         .elsewhere = {"lora_bias"}});
  const std::vector<KeyChoice> token_modules = {"embed_tokens", "lm_head", "wte"};
  s.key("modules_to_save", &S::modules_to_save,
        "modules that are trained whole beside the adapters: the embedding, the output matrix",
        {.choices = token_modules, .may_be_absent = true, .elsewhere = {"lora_modules_to_save", "additional_target"}});
  s.key(
      "ensure_weight_tying", &S::ensure_weight_tying,
      "a model whose output matrix is its embedding, and modules_to_save with the embedding: true = the output matrix "
      "is trained with it; false = it stays as it was, as in peft");
  s.key("trainable_token_indices", &S::trainable_token_indices,
        "ids of tokens whose rows of the embedding are trained; a mapping says of which module",
        {.choices = token_modules,
         .min = 0,
         .max = kMaxCount,
         .may_be_absent = true,
         .elsewhere = {"peft_trainable_token_indices"}});
  s.key("adapter", &S::adapter, "PEFT directory to start from",
        {.path = true, .elsewhere = {"lora_model_dir", "adapter_name_or_path", "adapter_checkpoint"}});
  return s.section;
}

Section data_section() {
  using S = DataSection;
  described::SectionKeys<S> s(&Config::data, "data", "token rows");
  s.key("train", &S::train,
        "training rows; the format is detected from the content; mock = random ids, to measure speed",
        {.required = true,
         .path = true,
         .one_or_more = true,
         .not_path = "mock",
         .elsewhere = {"train_file", "data.path", "dataset"}});
  s.key("weights", &S::weights,
        "for each path of data.train its share, in any unit: of the tokens of documents (Arrow, save_to_disk, Parquet, "
        "JSON lines), of the rows of npy, HDF5 and Megatron's files; or write entries with path, weight and name into "
        "data.train",
        {.min = 0, .above_min = true, .feature = Feature::kDocumentStreams});
  s.key("names", &S::names,
        "the name that messages give to each path of data.train (documents, npy, HDF5); names without weights are "
        "equal shares",
        {.may_change = true, .may_be_absent = true, .feature = Feature::kDocumentStreams});
  s.key("valid", &S::valid, "validation rows",
        {.path = true,
         .one_or_more = true,
         .may_be_absent = true,
         .not_path = "mock",
         .elsewhere = {"validation_file", "data.validation", "data.eval", "test_datasets", "eval_dataset",
                       "dataset_val"}});
  s.key("test", &S::test, "test rows, evaluated once, after the last step",
        {.path = true, .one_or_more = true, .may_be_absent = true, .not_path = "mock"});
  s.key("seq_length", &S::seq_length, "tokens in a row",
        {.min = 2,
         .max = 16777216,
         .required = true,
         .option = {.fms = "seq_length", .torchtitan = "training.seq_len", .nemo = "model.data.seq_length"},
         .elsewhere = {"max_seq_length", "max_seq_len", "max_length", "block_size", "cutoff_len", "sequence_len"}});
  s.key("shuffle", &S::shuffle, "shuffle the rows; false = the order of the file",
        {.elsewhere = {"shuffle_dataset", "shuffle_merged_datasets"}});
  s.key("column", &S::column,
        "documents: column or field that holds them; null = tokens, input_ids or text, whichever is there",
        {.data = kDocumentData, .option = {.fms = "col_name"}});
  s.key("bos_token", &S::bos_token, "documents: id put before each one",
        {.min = 0, .max = kMaxCount, .data = kDocumentData});
  s.key("eos_token", &S::eos_token, "documents: id put after each one; Megatron: id that already ends each one",
        {.min = 0, .max = kMaxCount, .data = kDocumentData | kMegatronData});
  s.key("bol_token", &S::bol_token, "documents: id that every row begins with",
        {.min = 0, .max = kMaxCount, .data = kDocumentData});
  s.key("eol_token", &S::eol_token, "documents: id that every row ends with",
        {.min = 0, .max = kMaxCount, .data = kDocumentData});
  s.key("strip_tokens", &S::strip_tokens,
        "documents: more ids that are removed at the start and end of a document, as the four ids above are",
        {.min = 0, .max = kMaxCount, .data = kDocumentData});
  s.key("min_length", &S::min_length, "documents: those with fewer tokens, bos and eos included, are skipped",
        {.min = 1, .max = kMaxCount, .data = kDocumentData});
  s.key("logical_shards", &S::logical_shards,
        "documents: number of parts that the ranks share out; a multiple of the number of ranks, the same for a "
        "whole run",
        // Without a meaning for other data, where it changes nothing.
        {.min = 1, .max = 1048576, .feature = Feature::kDocumentStreams, .option = {.fms = "logical_shards"}});
  s.key("splits", &S::splits,
        "Megatron: shares of the documents of data.train for training, validation and test, such as '99990,8,2'; "
        "null = all for training",
        {.data = kMegatronData, .option = {.nemo = "model.data.splits_string"}});
  s.key("index_rules", &S::index_rules,
        "Megatron: whether splits are rounded and the rows of blends counted as in NeMo or as in Megatron core",
        {.choices = {{"nemo", S::IndexRules::kNemo}, {"core", S::IndexRules::kCore}}, .data = kMegatronData});
  s.key("index_cache", &S::index_cache, "Megatron: directory of the index maps; null = where each file lies",
        {.path = true, .data = kMegatronData, .option = {.nemo = "model.data.index_mapping_dir"}});
  s.key("reset_position_ids", &S::reset_position_ids,
        "Megatron: positions count from 0 again after each data.eos_token", {.data = kMegatronData});
  s.key("reset_attention_mask", &S::reset_attention_mask, "Megatron: attention does not cross a data.eos_token",
        {.data = kMegatronData});
  s.key("eod_mask_loss", &S::eod_mask_loss, "Megatron: no loss on the prediction made at a data.eos_token",
        {.data = kMegatronData});
  return s.section;
}

Section batch_section() {
  using S = BatchSection;
  described::SectionKeys<S> s(&Config::batch, "batch", "batch sizes");
  s.key("global_batch_size", &S::global_batch_size, "samples (BERT: rows) per optimizer step, over all ranks",
        {.min = 1,
         .max = kMaxCount,
         .option = {.torchtitan = "training.global_batch_size", .nemo = "model.global_batch_size"},
         .elsewhere = {"batch_size", "train_batch_size", "batch.size"}});
  s.key("micro_batch_size", &S::micro_batch_size, "samples (BERT: rows) per rank per forward",
        {.min = 1,
         .max = kMaxCount,
         .may_change = true,
         .option = {.fms = "batch_size", .torchtitan = "training.local_batch_size", .nemo = "model.micro_batch_size"},
         .elsewhere = {"train_batch_size", "per_device_train_batch_size", "per_device_batch_size", "batch.size"}});
  s.key("packing_rate", &S::packing_rate, "samples that a row counts for in eval.every_samples and the MLPerf log",
        {.min = 1, .max = 1024, .feature = Feature::kPackedRows});
  s.key("rampup", &S::rampup,
        "[start, increment, samples]: the batch grows from `start` to global_batch_size samples, by `increment` "
        "at a time, evenly over the first `samples` samples (BERT: all three count rows); null = it does not grow",
        {.min = 1,
         .max = kMaxSamples,
         .length = 3,
         .may_be_absent = true,
         .option = {.nemo = "model.rampup_batch_size"}});
  return s.section;
}

Section optimizer_section() {
  using S = OptimizerSection;
  described::SectionKeys<S> s(&Config::optimizer, "optimizer", "optimizer over the trained parameters");
  s.key("name", &S::name, "optimizer",
#define TRIREME_CHOICE(Value, word) KeyChoice(#word, S::Name::k##Value),
        {.choices = {TRIREME_OPTIMIZERS(TRIREME_CHOICE)},
#undef TRIREME_CHOICE
         .elsewhere = {"optim", "optimizer.type", "use_muon"},
         .words_elsewhere = {{"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw"}, {"dist_muon", "muon"}}});
  s.key("moments", &S::moments,
        "adamw, muon: type of the moments; bf16: half the memory, rounded stochastically (the momentum of matrices to "
        "nearest)",
        {.choices = {{"fp32", S::Moments::kFp32}, {"bf16", S::Moments::kBf16}}});
  s.key(
      "gradients", &S::gradients,
      "type in which gradients of all parameters are summed over micro-batches and ranks; bf16: half the memory, each "
      "sum rounded to nearest, so that small gradients of many micro-batches are lost",
      {.choices = {{"fp32", S::Gradients::kFp32}, {"bf16", S::Gradients::kBf16}}});
  s.key(
      "masters", &S::masters,
      "type of the weights that the optimizer updates; bf16 (adamw, all parameters, products in bf16): the weights in "
      "use are the only copy, 2 bytes a parameter instead of 6; each update is computed in fp32 and rounded "
      "stochastically, which alone keeps small updates",
      {.choices = {{"fp32", S::Masters::kFp32}, {"bf16", S::Masters::kBf16}}});
  s.key("lr", &S::lr, "peak learning rate",
        {.min = 0,
         .option = {.fms = "learning_rate", .torchtitan = "optimizer.lr", .nemo = "model.optim.lr"},
         .elsewhere = {"max_lr"}});
  s.key("betas", &S::betas, "decay of the two moments",
        {.min = 0,
         .max = 1,
         .below_max = true,
         .length = 2,
         .option = {.nemo = "model.optim.betas"},
         .elsewhere = {"beta1", "beta2", "adam_beta1", "adam_beta2"}});
  s.key("eps", &S::eps, "added to the denominator of the update",
        {.min = 0,
         .above_min = true,
         .option = {.torchtitan = "optimizer.eps", .nemo = "model.optim.eps"},
         .elsewhere = {"adam_epsilon", "epsilon"}});
  s.key("weight_decay", &S::weight_decay, "decoupled; on matrices and embeddings, not on norms and biases",
        {.min = 0,
         .option = {.torchtitan = "optimizer.weight_decay", .nemo = "model.optim.weight_decay"},
         .elsewhere = {"wd"}});
  s.key("decay_norms", &S::decay_norms, "true: weight decay on every parameter");
  s.key("grad_clip", &S::grad_clip, "largest L2 norm of the gradient over all trained parameters; 0 = off",
        {.min = 0,
         .option = {.fms = "grad_clip_thresh", .torchtitan = "training.max_norm", .nemo = "trainer.gradient_clip_val"},
         .elsewhere = {"max_grad_norm", "clip_grad", "clip_grad_norm", "gradient_clipping"}});
  s.key("clip", &S::clip,
        "global: the gradient summed over all ranks is clipped; local: each rank's own, before the sum",
        {.choices = {{"global", S::Clip::kGlobal}, {"local", S::Clip::kLocal}}, .feature = Feature::kRankMeans});
  s.key("trust_ratio", &S::trust_ratio,
        "lamb: tensors whose step is scaled by |w| / |update|: those with weight decay, or all",
        {.choices = {{"decayed", S::TrustRatio::kDecayed}, {"all", S::TrustRatio::kAll}}});
  s.key("momentum", &S::momentum, "muon: decay of the momentum of matrices (Nesterov)",
        {.min = 0, .max = 1, .below_max = true, .elsewhere = {"muon_momentum", "optimizer.mu"}});
  s.key("adjust_lr_fn", &S::adjust_lr_fn,
        "muon: factor of the learning rate of a matrix [out, in], as torch.optim.Muon has it: match_rms_adamw 0.2 "
        "sqrt(max(out, in)), with which rates and weight decay of adamw fit; original sqrt(max(1, out / in))",
        {.choices = {{"match_rms_adamw", S::AdjustLr::kMatchRmsAdamw}, {"original", S::AdjustLr::kOriginal}},
         .elsewhere = {"muon_scale_mode", "muon_adjust_lr"},
         .words_elsewhere = {{"rms_norm", "match_rms_adamw"}}});
  s.key(
      "matrix_lr", &S::matrix_lr,
      "muon: peak learning rate of matrices, on the schedule of lr, which is then that of the other parameters; null: "
      "lr",
      {.min = 0, .elsewhere = {"muon_lr"}});
  return s.section;
}

Section schedule_section() {
  using S = ScheduleSection;
  described::SectionKeys<S> s(&Config::schedule, "schedule", "learning rate of step t, where the first step is 0");
  s.key("name", &S::name,
        "learning rate after the warm-up; wsd: torchtitan's warm-up, stable, decay; fms_cosine: fms-fsdp's "
        "quadratic warm-up and cosine; annealing: lr * (1 - t/max_steps)",
        {.choices = {{"cosine", S::Name::kCosine},
                     {"linear", S::Name::kLinear},
                     {"constant", S::Name::kConstant},
                     {"wsd", S::Name::kWsd},
                     {"fms_cosine", S::Name::kFmsCosine},
                     {"annealing", S::Name::kAnnealing}},
         .elsewhere = {"lr_scheduler", "lr_scheduler_type", "schedule.type"},
         .words_elsewhere = {
             {"warmup_stable_decay", "wsd"}, {"constant_with_warmup", "constant"}, {"cosine_with_min_lr", "cosine"}}});
  s.key("warmup_steps", &S::warmup_steps,
        "steps of warm-up: lr * (t+1) / (warmup_steps+1); wsd: lr * (t+1) / warmup_steps; fms_cosine: lr * "
        "(1 - (1 - t/warmup_steps)^2)",
        {.min = 0,
         .max = kMaxCount,
         .option = {.torchtitan = "lr_scheduler.warmup_steps", .nemo = "model.optim.sched.warmup_steps"},
         .elsewhere = {"schedule.warmup", "optimizer.warmup", "train.warmup", "num_warmup_steps", "lr_warmup_steps"}});
  s.key("warmup_ratio", &S::warmup_ratio, "instead of warmup_steps: share of the run's steps, rounded up",
        {.min = 0, .max = 1});
  s.key("constant_steps", &S::constant_steps,
        "cosine: the last steps of the run, which have the rate min_lr. Above 0 the schedule is NeMo's "
        "CosineAnnealing, whose warm-up is lr * t / warmup_steps up to step warmup_steps",
        {.min = 0, .max = kMaxCount, .option = {.nemo = "model.optim.sched.constant_steps"}});
  s.key("min_lr", &S::min_lr, "cosine, linear: learning rate that the schedule reaches after the last step",
        {.min = 0, .option = {.nemo = "model.optim.sched.min_lr"}, .elsewhere = {"min_learning_rate"}});
  s.key("min_lr_factor", &S::min_lr_factor,
        "wsd, fms_cosine: the decay ends at this share of optimizer.lr; null = 0 for wsd, 0.1 for fms_cosine",
        {.min = 0, .max = 1, .option = {.torchtitan = "lr_scheduler.min_lr_factor"}});
  s.key("decay_ratio", &S::decay_ratio,
        "wsd: share of train.max_steps in which the rate decays; null = all after the warm-up", {.min = 0, .max = 1});
  s.key(
      "decay_type", &S::decay_type, "wsd: form of the decay",
      {.choices = {{"linear", S::DecayType::kLinear}, {"sqrt", S::DecayType::kSqrt}, {"cosine", S::DecayType::kCosine}},
       .option = {.torchtitan = "lr_scheduler.decay_type"}});
  return s.section;
}

Section train_section() {
  using S = TrainSection;
  described::SectionKeys<S> s(&Config::train, "train", "length, seed and loss");
  s.key("max_steps", &S::max_steps, "optimizer steps of the run; may be raised later",
        {.min = 1,
         .max = kMaxCount,
         .option = {.fms = "num_steps", .torchtitan = "training.steps", .nemo = "trainer.max_steps"},
         .elsewhere = {"train_steps", "train_iters"}});
  s.key("epochs", &S::epochs,
        "instead of max_steps: passes over the rows of data.train (a fraction is allowed); the last step is "
        "the one that reaches the last row of the last pass",
        {.min = 0, .max = 1e6, .above_min = true, .elsewhere = {"num_epochs", "num_train_epochs", "max_epochs"}});
  s.key("seed", &S::seed, "data order, dropout, initial weights",
        {.min = 0,
         .max = 4294967295.0,
         .option = {.fms = "seed", .torchtitan = "training.seed", .nemo = "model.seed"},
         .elsewhere = {"random_seed", "data_seed", "random_state"}});
  s.key("deterministic", &S::deterministic,
        "on GPUs: every run of the same configuration on the same kind of GPU has the same bits, a resumed one too; "
        "attention's backward then sums in a fixed order, which takes longer. CPUs always have the same bits",
        {.may_change = true,
         .option = {.torchtitan = "training.deterministic", .nemo = "trainer.deterministic"},
         .elsewhere = {"full_determinism", "cudnn_deterministic_mode"}});
  s.key(
      "objective", &S::objective,
      "sft: predict the targets; dpo, orpo: prefer the chosen to the rejected answer of each pair (section "
      "preference); data.train then has rows of pairs (trireme data preference); kto: prefer desirable to undesirable "
      "answers (trireme data preference --unpaired)",
      {.choices = {{"sft", S::Objective::kSft},
                   {"dpo", S::Objective::kDpo},
                   {"orpo", S::Objective::kOrpo},
                   {"kto", S::Objective::kKto}},
       .feature = Feature::kPairs,
       .elsewhere = {"rl", "stage"}});
  s.key("loss", &S::loss,
        "sample_mean: mean of each sample's mean over its targets; token_mean: mean over all targets of the step",
        {.choices = {
             {"sample_mean", S::Loss::kSampleMean},
             {"token_mean", S::Loss::kTokenMean},
             {"rank_mean", S::Loss::kRankMean, Feature::kRankMeans, "; rank_mean: mean of the ranks' token means"}}});
  s.key("neftune_alpha", &S::neftune_alpha,
        "NEFTune: uniform noise of at most this / sqrt(data.seq_length * hidden size) is added to the embeddings in "
        "training, not in evaluations; 5 and 10 are usual; 0 = none",
        {.min = 0, .feature = Feature::kPairs, .elsewhere = {"neftune_noise_alpha", "noisy_embedding_alpha"}});
  s.key("label_smoothing", &S::label_smoothing,
        "share of each target's probability that all ids of the vocabulary divide evenly, in training; losses of steps "
        "have it, those of evaluations do not; BERT: of the masked words' loss",
        {.min = 0, .max = 1, .below_max = true, .elsewhere = {"label_smoothing_factor"}});
  s.key("on_nonfinite", &S::on_nonfinite,
        "at a step whose loss or gradient is not finite: stop = end the run; skip = change no weight, do not "
        "count the step in the schedule, and go on (at most 20 times in a row)",
        {.choices = {{"stop", S::OnNonfinite::kStop}, {"skip", S::OnNonfinite::kSkip}}, .may_change = true});
  s.key("on_spike", &S::on_spike, "at a step whose loss is far above those before it: report it, or also skip the step",
        {.choices = {{"report", S::OnSpike::kReport}, {"skip", S::OnSpike::kSkip}}, .may_change = true});
  s.key("max_time", &S::max_time,
        "time limit: the run saves its state and ends with exit code 0 before it is reached; the same command "
        "continues; null = no limit",
        {.may_change = true,
         .form = "days:hours:minutes:seconds above 0 such as \"00:23:30:00\"",
         .has_form = [](std::string_view text) { return parse_day_time(text).has_value(); },
         .option = {.nemo = "trainer.max_time"}});
  s.key("patience", &S::patience,
        "the run ends with success after so many evaluations in a row of which none is better than the best before "
        "them (by loss, or by accuracy where there is one); null = it does not",
        {.min = 1, .max = kMaxCount, .may_change = true, .elsewhere = {"early_stopping_patience"}});
  return s.section;
}

Section preference_section() {
  using S = PreferenceSection;
  described::SectionKeys<S> s(&Config::preference, "preference", "the loss of train.objective dpo, orpo and kto",
                              {.feature = Feature::kPairs, .instead = "leave 'preference' out"});
  s.key(
      "beta", &S::beta,
      "dpo, kto: factor of the log-probability ratios to the reference (ipo: its tau); orpo: weight of the odds ratio",
      {.min = 0, .above_min = true, .elsewhere = {"dpo_beta", "pref_beta", "rl_beta", "orpo_alpha", "kto_beta"}});
  s.key("loss_type", &S::loss_type,
        "dpo, with the margin m of the ratios: sigmoid = -log sigmoid(beta m); hinge = max(0, 1 - beta m); ipo = "
        "(m - 1 / (2 beta))^2, m of means over tokens; robust = sigmoid for labels of which label_smoothing are wrong. "
        "kto: "
        "kto, or apo_zero_unpaired = the same without its KL term. null = sigmoid, with kto kto",
        {.choices = {{"sigmoid", S::LossType::kSigmoid},
                     {"hinge", S::LossType::kHinge},
                     {"ipo", S::LossType::kIpo},
                     {"robust", S::LossType::kRobust},
                     {"kto", S::LossType::kKto},
                     {"apo_zero_unpaired", S::LossType::kApoZeroUnpaired}},
         .elsewhere = {"dpo_loss", "dpo_loss_type", "pref_loss"}});
  s.key("label_smoothing", &S::label_smoothing,
        "dpo: share of pairs whose order is taken to be wrong; with sigmoid conservative DPO, which TRL had before "
        "its version 1",
        {.min = 0, .max = 0.5, .below_max = true, .elsewhere = {"dpo_label_smoothing"}});
  s.key("rpo_alpha", &S::rpo_alpha,
        "dpo: weight of the chosen answers' mean negative log-probability a token, added to the loss (TRL's loss_type "
        "[sigmoid, sft])",
        {.min = 0, .elsewhere = {"pref_ftx"}});
  s.key("desirable_weight", &S::desirable_weight, "kto: weight of the loss of desirable answers",
        {.min = 0, .elsewhere = {"kto_desirable_weight", "kto_chosen_weight"}});
  s.key("undesirable_weight", &S::undesirable_weight, "kto: weight of the loss of undesirable answers",
        {.min = 0, .elsewhere = {"kto_undesirable_weight", "kto_rejected_weight"}});
  s.key("precompute_ref_log_probs", &S::precompute_ref_log_probs,
        "dpo, kto: the reference's log-probabilities of all rows are computed before the first step, into output.dir; "
        "false "
        "= in every step; null = true where all parameters are trained and with lora.modules_to_save, false with other "
        "adapters");
  s.key("disable_dropout", &S::disable_dropout, "no dropout in training, whatever model and lora.dropout say");
  return s.section;
}

Section eval_section() {
  using S = EvalSection;
  described::SectionKeys<S> s(&Config::eval, "eval", "evaluation on data.valid", {.may_change = true});
  s.key("every_samples", &S::every_samples,
        "samples between evaluations, rounded up to whole steps; null = only at the end",
        {.min = 1,
         .max = kMaxSamples,
         .elsewhere = {"eval.steps", "eval.every_steps", "eval_every", "eval_interval", "val_check_interval",
                       "eval_steps", "run_val_every_n_steps"},
         .note = " It counts samples."});
  s.key(
      "skip_first", &S::skip_first, "evaluations skipped at the start",
      {.choices = {{"mlperf", S::kSkipByMlperf, Feature::kMlperfSkip, "; mlperf = floor(0.125 global_batch_size + 2)"}},
       .min = 0,
       .max = kMaxCount});
  s.key("target_loss", &S::target_loss, "stop with success at the first evaluation <= this");
  s.key("samples", &S::samples, "evaluate on this many samples from the start of data.valid; null = on all",
        {.min = 1, .max = kMaxCount});
  s.key("shuffle", &S::shuffle,
        "Megatron's files: evaluate rows in the shuffled order that Megatron uses; false = the first rows of "
        "the file, as with all other formats",
        {.feature = Feature::kMegatronData});
  s.key("target_accuracy", &S::target_accuracy, "stop with success at the first evaluation whose accuracy is >= this",
        {.min = 0, .max = 1, .above_min = true, .feature = Feature::kAccuracy, .instead = "use eval.target_loss"});
  s.key("test_samples", &S::test_samples, "test on this many rows from the start of data.test; null = on all",
        {.min = 1, .max = kMaxCount});
  s.key("prompts", &S::prompts,
        "texts that the model answers after every evaluation, for people to read: in metrics.jsonl, TensorBoard and "
        "the HTML report. Of a model with a chat template each is a message of the user, of another the beginning of a "
        "text",
        {.may_be_absent = true, .feature = Feature::kPairs, .elsewhere = {"validation_prompt", "validation_prompts"}});
  s.key("max_new_tokens", &S::max_new_tokens, "most tokens of an answer to eval.prompts",
        {.min = 1, .max = kMaxCount, .feature = Feature::kPairs});
  s.key("temperature", &S::temperature,
        "of the answers to eval.prompts; 0 = the likeliest token every time. Every evaluation draws with the same "
        "random numbers",
        {.min = 0, .feature = Feature::kPairs});
  return s.section;
}

Section precision_section() {
  using S = PrecisionSection;
  described::SectionKeys<S> s(&Config::precision, "precision", "number formats");
  s.key("compute", &S::compute, "arithmetic; null = bf16 on a GPU, fp32 on a CPU",
        {.choices = {{"fp32", S::Compute::kFp32}, {"bf16", S::Compute::kBf16}, {"fp16", S::Compute::kFp16}},
         .elsewhere = {"dtype", "torch_dtype", "mixed_precision", "bf16", "fp16", "bfloat16", "float16", "float32"},
         .words_elsewhere = {{"float16", "fp16"},
                             {"half", "fp16"},
                             {"bfloat16", "bf16"},
                             {"torch.bfloat16", "bf16"},
                             {"float32", "fp32"},
                             {"float", "fp32"}}});
  s.key("linear", &S::linear,
        "products of the blocks' matrices in the compute type, or in FP8: frozen matrices are stored in it, "
        "trained ones multiplied in it (GPUs of compute capability 9.0, delayed and tensorwise 8.9 or more; a CPU "
        "emulates it)",
        {.choices = {{"compute", S::Linear::kCompute}, {"fp8", S::Linear::kFp8}},
         .retired = {{"frozen", {{"fp8", "fp8"}, {"bf16", "compute"}}},
                     {"encoder", {{"fp8", "fp8"}, {"compute", "compute"}}}},
         .elsewhere = {"fp8", "enable_fp8_training"}});
  s.key("frozen", &S::frozen,
        "how the blocks' matrices beneath adapters are stored: in the compute type; in FP8, in which they are "
        "multiplied, "
        "too; in nf4, bitsandbytes' four bits with double quantisation, from which each block's are expanded to the "
        "compute type when it uses them; auto = as precision.linear says",
        {.choices = {{"auto", S::Frozen::kAuto},
                     {"compute", S::Frozen::kCompute},
                     {"fp8", S::Frozen::kFp8},
                     {"nf4", S::Frozen::kNf4}},
         .feature = Feature::kAdapters,
         .elsewhere = {"bnb_4bit_quant_type"},
         .words_elsewhere = {{"bf16", "compute"}, {"4bit", "nf4"}}});
  s.key("fp8_recipe", &S::fp8_recipe,
        "scales of trained matrices' FP8 products: delayed = one for each tensor, from the step before; "
        "tensorwise = one for each tensor, its own; rowwise = one for each row of activations and "
        "gradients; auto = rowwise for decoders, delayed for BERT",
#define TRIREME_CHOICE(Name, word) , KeyChoice(#word, Recipe::kFp8##Name)
        {.choices = {"auto" TRIREME_TRAINED_FP8_RECIPES(TRIREME_CHOICE)},
         .unset = "auto",
         .elsewhere = {"fp8_recipe_name"}});
#undef TRIREME_CHOICE
  s.key("fp8_skip_first", &S::fp8_skip_first,
        "this many blocks at the start stay in the compute type when all parameters are trained in FP8",
        {.min = 0, .max = 65536});
  s.key("fp8_skip_last", &S::fp8_skip_last,
        "this many blocks at the end stay in the compute type when all parameters are trained in FP8",
        {.min = 0, .max = 65536});
  s.key(
      "fp8_transpose_cache", &S::fp8_transpose_cache,
      "FP8 codes that backward multiplies by stay transposed where the plan leaves memory, one byte a weight; false = "
      "they are transposed in each backward",
      {.may_change = true, .elsewhere = {"keep_fp8_transpose_cache", "keep_fp8_weight_transpose_cache"}});
  s.key("attention", &S::attention, "attention's products: compute = in the compute type",
        {.choices = {{"compute", S::Attention::kCompute},
                     {"fp8", S::Attention::kFp8, Feature::kFp8Attention,
                      "; fp8 = forward multiplies FP8 codes of queries, keys, values and probabilities, backward "
                      "multiplies in the compute type (GPUs of compute capability 9.0, sequences of 8,192 tokens or "
                      "more on average, heads of 128, no dropout and no window; elsewhere queries, keys and values are "
                      "rounded to FP8, which is no faster)"}},
         .elsewhere = {"fp8_dot_product_attention", "fp8_dpa"}});
  s.key("loss_scale", &S::loss_scale, "fp16: what the dynamic loss scale starts from; null = 65536",
        {.min = 1, .max = 16777216});
  return s.section;
}

Section parallel_section() {
  using S = ParallelSection;
  described::SectionKeys<S> s(&Config::parallel, "parallel", "what is sharded over ranks and recomputed",
                              {.may_change = true});
  s.key("policy", &S::policy,
        "what each shard group divides among its ranks: none = nothing; optimizer = master weights and "
        "moments; gradients = these and the gradients; full = these and the weights; auto = the choice with "
        "the shortest predicted step among those that fit",
        {.choices = {{"auto", S::Policy::kAuto},
                     {"none", S::Policy::kNone},
                     {"optimizer", S::Policy::kOptimizer},
                     {"gradients", S::Policy::kGradients},
                     {"full", S::Policy::kFull}},
         .elsewhere = {"parallel.strategy", "parallel.sharding", "fsdp", "sharding_strategy"},
         .words_elsewhere = {{"full_shard", "full"},
                             {"FULL_SHARD", "full"},
                             {"shard_grad_op", "gradients"},
                             {"SHARD_GRAD_OP", "gradients"},
                             {"no_shard", "none"},
                             {"NO_SHARD", "none"}}});
  s.key("shard_size", &S::shard_size, "number of ranks in a shard group",
        {.choices = {{"auto", S::kAutoSize}, {"world", S::kWorldSize}},
         .min = 1,
         .max = 1048576,
         .elsewhere = {"dp_shard_size", "data_parallel_shard_dim"}});
  s.key("context_size", &S::context_size,
        "number of ranks that share a row, each with a part of its tokens, for long sequences; auto = 1, or more where "
        "a row does not fit on one rank, or there are more ranks than rows of a global batch",
        {.choices = {{"auto", S::kAutoSize}},
         .min = 1,
         .max = 1048576,
         .feature = Feature::kContext,
         .instead = "leave it out",
         .option = {.torchtitan = "parallelism.context_parallel_degree", .nemo = "model.context_parallel_size"},
         .elsewhere = {"cp_size", "sequence_parallel_degree", "context_parallel_dim"}});
  s.key(
      "recompute", &S::recompute,
      "what backward recomputes: full = every block; a share such as 1/3 = that part of the blocks",
      {.choices = {{"auto", S::Recompute::kAuto},
                   {"none", S::Recompute::kNone},
                   {"norms", S::Recompute::kNorms, Feature::kRecomputeMlp,
                    "; norms = of every block the outputs of norms and activation"},
                   {"mlp", S::Recompute::kMlp, Feature::kRecomputeMlp, "; mlp = these and the gate and up projections"},
                   {"attention",
                    S::Recompute::kAttention,
                    {},
                    "; attention = everything but attention, whose output is kept beside each block's input"},
                   {"full", S::Recompute::kFull}},
       .elsewhere = {"gradient_checkpointing", "activation_checkpointing", "use_gradient_checkpointing",
                     "enable_activation_checkpointing"}});
  s.key(
      "tile_tokens", &S::tile_tokens,
      "blocks that are recomputed whole, or but for attention, go through so many tokens at a time in their norms and "
      "products, so that working memory does not grow with the row; a multiple of 128; auto = all tokens, or the "
      "largest number with which the run fits",
      {.choices = {{"auto", S::kAutoTile}}, .min = 128, .max = 1048576});
  s.key(
      "offload", &S::offload,
      "what waits in pinned memory of the host: activations = with parallel.recompute attention or full what blocks "
      "keep, their input and attention's output, with mlp the gate and up projections, which then are not recomputed; "
      "optimizer = master weights and moments of adamw, of as many units "
      "as the host holds; all = both; auto = activations of as many blocks as the plan finds worth it, and the "
      "optimizer's state of as many units as must where the run does not fit otherwise",
      {.choices = {{"auto", S::Offload::kAuto},
                   {"none", S::Offload::kNone},
                   {"activations", S::Offload::kActivations},
                   {"optimizer", S::Offload::kOptimizer},
                   {"all", S::Offload::kAll}},
       .elsewhere = {"activation_offloading", "enable_activation_offloading", "fsdp_cpu_offload", "cpu_offloading",
                     "cpu_offload", "offload_optimizer", "layer_offloading"}});
  s.key("reduce_dtype", &S::reduce_dtype,
        "type in which gradients are summed over ranks; compute = that of precision.compute",
        {.choices = {{"fp32", S::ReduceDtype::kFp32}, {"compute", S::ReduceDtype::kCompute}}});
  s.key("rates", &S::rates,
        "YAML file of this machine's rates, from which the plan predicts step times (trireme calibrate writes "
        "it); null = the built-in table",
        {.path = true});
  return s.section;
}

Section output_section() {
  using S = OutputSection;
  described::SectionKeys<S> s(&Config::output, "output", "what the run leaves", {.may_change = true});
  s.key("dir", &S::dir,
        "directory of all files that the run writes; it is created; one that holds another run is refused",
        {.required = true,
         .path = true,
         .option = {.fms = "ckpt_save_path", .torchtitan = "job.dump_folder", .nemo = "exp_manager.explicit_log_dir"},
         .elsewhere = {"output_dir"}});
  s.key("save_every_samples", &S::save_every_samples,
        "samples (BERT: rows) between checkpoints, rounded up to whole steps; the last step saves too; null = save "
        "only when stopped",
        {.min = 1,
         .max = kMaxSamples,
         .elsewhere = {"save_every", "save_interval", "save_every_steps", "output.every_steps", "save_steps",
                       "save_every_n_steps"},
         .note = " It counts samples."});
  s.key("save_every_minutes", &S::save_every_minutes,
        "minutes between checkpoints, independent of save_every_samples; null = not by time",
        {.min = 0, .max = 525600, .above_min = true});
  s.key("save_on_stop", &S::save_on_stop,
        "a signal saves a checkpoint before the run ends; false: steps after the last checkpoint are lost");
  s.key("keep_last", &S::keep_last, "how many of the newest whole checkpoints are kept; older ones are removed",
        {.min = 2, .max = kMaxCount, .elsewhere = {"save_total_limit", "output.keep", "keep_last_n_checkpoints"}});
  s.key("keep_best", &S::keep_best,
        "after an evaluation that is better than all before it, the adapter or the model is written to output.dir/best "
        "too, in place of the one before",
        {.elsewhere = {"load_best_model_at_end", "save_best"}});
  return s.section;
}

Section logging_section() {
  using S = LoggingSection;
  described::SectionKeys<S> s(&Config::logging, "logging", "console and logs", {.may_change = true});
  s.key("every_steps", &S::every_steps, "steps between console lines",
        {.min = 1,
         .max = kMaxCount,
         .option = {.fms = "report_interval", .torchtitan = "metrics.log_freq", .nemo = "trainer.log_every_n_steps"},
         .elsewhere = {"logging.steps", "log_every", "log_interval", "logging_steps"}});
  s.key("style", &S::style,
        "plain: a console line for each step; fms, fms_2024: the lines of fms-fsdp and of its version of March "
        "2024 (AWS); nemo: as plain, and NeMo's log files and TensorBoard tags in output.dir",
        {.choices = {{"plain", S::Style::kPlain},
                     {"fms", S::Style::kFms},
                     {"fms_2024", S::Style::kFms2024},
                     {"nemo", S::Style::kNemo}}});
  s.key("mlperf", &S::mlperf, ":::MLLOG lines on stdout and in mllog.log", {.feature = Feature::kMlperfLog});
  s.key("tensorboard", &S::tensorboard,
        "TensorBoard event files in output.dir/tensorboard; with logging.style: nemo only those that it writes",
        {.option = {.torchtitan = "metrics.enable_tensorboard"}, .elsewhere = {"use_tensorboard"}});
  s.key("profile_step", &S::profile_step,
        "one step to profile, the same as the section profile with active 1 and warmup 1; null = none",
        {.min = 1, .max = kMaxCount});
  return s.section;
}

Section profile_section() {
  using S = ProfileSection;
  described::SectionKeys<S> s(&Config::profile, "profile",
                              "traces of some steps in output.dir/profile; leave out for none", {.may_change = true});
  s.key("wait", &S::wait, "steps of a cycle in which the profiler is off, before its warm-up",
        {.min = 0, .max = kMaxCount});
  s.key("warmup", &S::warmup, "steps in which the profiler starts up and records nothing; on GPUs at least 1",
        {.min = 0, .max = kMaxCount});
  s.key("active", &S::active, "steps recorded", {.min = 1, .max = kMaxCount});
  s.key("repeat", &S::repeat, "cycles; 0 = until the run ends", {.min = 0, .max = kMaxCount});
  s.key("ranks", &S::ranks, "ranks that record",
        {.choices = {{"all", S::kAllRanks}}, .min = 0, .max = 1048575, .one_or_more = true});
  s.key("memory", &S::memory, "record allocations, and make a table and a timeline of memory");
  s.key("shapes", &S::shapes, "record the shapes of the operations' inputs");
  s.key("stacks", &S::stacks, "call stacks: must be false, LibTorch records those of Python only");
  return s.section;
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      model_section(),    lora_section(),   data_section(),       batch_section(),  optimizer_section(),
      schedule_section(), train_section(),  preference_section(), eval_section(),   precision_section(),
      parallel_section(), output_section(), logging_section(),    profile_section()};
  return all;
}

}  // namespace trireme
