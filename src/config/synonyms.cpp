#include "synonyms.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/text.h"

namespace trireme {

namespace {

const std::map<std::string, Synonym>& synonyms() {
  static const std::vector<std::string> batch_sizes = {"batch.global_batch_size", "batch.micro_batch_size"};
  static const std::vector<std::string> epochs = {"train.epochs", "train.max_steps"};
  static const std::vector<std::string> warmup = {"schedule.warmup_steps"};
  static const std::vector<std::string> warmup_ratio = {"schedule.warmup_ratio", "schedule.warmup_steps"};
  static const char* accumulation =
      " Gradients accumulate over batch.global_batch_size / (batch.micro_batch_size x ranks) micro-batches.";
  static const std::map<std::string, Synonym> table = {
      {"learning_rate", {{"optimizer.lr"}}},
      {"max_lr", {{"optimizer.lr"}}},
      {"min_learning_rate", {{"schedule.min_lr"}}},
      {"optim", {{"optimizer.name"}}},
      {"adam_epsilon", {{"optimizer.eps"}}},
      {"epsilon", {{"optimizer.eps"}}},
      {"beta1", {{"optimizer.betas"}}},
      {"beta2", {{"optimizer.betas"}}},
      {"adam_beta1", {{"optimizer.betas"}}},
      {"adam_beta2", {{"optimizer.betas"}}},
      {"wd", {{"optimizer.weight_decay"}}},
      {"max_grad_norm", {{"optimizer.grad_clip"}}},
      {"max_norm", {{"optimizer.grad_clip"}}},
      {"clip_grad", {{"optimizer.grad_clip"}}},
      {"gradient_clip_val", {{"optimizer.grad_clip"}}},
      {"gradient_clipping", {{"optimizer.grad_clip"}}},
      {"lr_scheduler", {{"schedule.name"}}},
      {"lr_scheduler_type", {{"schedule.name"}}},
      {"schedule.type", {{"schedule.name"}}},
      {"optimizer.type", {{"optimizer.name"}}},
      {"schedule.warmup", {warmup}},
      {"optimizer.warmup", {warmup}},
      {"train.warmup", {warmup}},
      {"num_warmup_steps", {warmup}},
      {"lr_warmup_steps", {warmup}},
      {"warmup_ratio", {warmup_ratio, true}},
      {"batch_size", {batch_sizes}},
      {"train_batch_size", {batch_sizes}},
      {"per_device_train_batch_size", {{"batch.micro_batch_size"}}},
      {"per_device_batch_size", {{"batch.micro_batch_size"}}},
      {"local_batch_size", {{"batch.micro_batch_size"}}},
      {"gradient_accumulation_steps", {{}, false, accumulation}},
      {"accumulate_grad_batches", {{}, false, accumulation}},
      {"epochs", {epochs, true}},
      {"num_epochs", {epochs, true}},
      {"num_train_epochs", {epochs, true}},
      {"max_epochs", {epochs, true}},
      {"steps", {{"train.max_steps"}}},
      {"train_steps", {{"train.max_steps"}}},
      {"train_iters", {{"train.max_steps"}}},
      {"num_steps", {{"train.max_steps"}}},
      {"max_seq_length", {{"data.seq_length"}}},
      {"max_seq_len", {{"data.seq_length"}}},
      {"seq_len", {{"data.seq_length"}}},
      {"max_length", {{"data.seq_length"}}},
      {"block_size", {{"data.seq_length"}}},
      {"cutoff_len", {{"data.seq_length"}}},
      {"model_name_or_path", {{"model.path"}}},
      {"model.name", {{"model.path"}}},
      {"model.name_or_path", {{"model.path"}}},
      {"train_file", {{"data.train"}}},
      {"validation_file", {{"data.valid"}}},
      {"data.path", {{"data.train"}}},
      {"data.validation", {{"data.valid"}}},
      {"data.eval", {{"data.valid"}}},
      {"dataset", {{"data.train"}}},
      {"lora.rank", {{"lora.r"}}},
      {"lora_r", {{"lora.r"}}},
      {"lora_rank", {{"lora.r"}}},
      {"lora_alpha", {{"lora.alpha"}}},
      {"lora_dropout", {{"lora.dropout"}}},
      {"lora_target", {{"lora.target_modules"}}},
      {"lora.modules", {{"lora.target_modules"}}},
      {"eval.steps", {{"eval.every_samples"}, false, " It counts samples."}},
      {"eval.every_steps", {{"eval.every_samples"}, false, " It counts samples."}},
      {"eval_every", {{"eval.every_samples"}, false, " It counts samples."}},
      {"eval_interval", {{"eval.every_samples"}, false, " It counts samples."}},
      {"val_check_interval", {{"eval.every_samples"}, false, " It counts samples."}},
      {"save_every", {{"output.save_every_samples"}, false, " It counts samples."}},
      {"save_interval", {{"output.save_every_samples"}, false, " It counts samples."}},
      {"save_every_steps", {{"output.save_every_samples"}, false, " It counts samples."}},
      {"output.every_steps", {{"output.save_every_samples"}, false, " It counts samples."}},
      {"logging.steps", {{"logging.every_steps"}}},
      {"log_every", {{"logging.every_steps"}}},
      {"log_interval", {{"logging.every_steps"}}},
      {"log_freq", {{"logging.every_steps"}}},
      {"batch.size", {batch_sizes}},
      {"parallel.strategy", {{"parallel.policy"}}},
      {"parallel.sharding", {{"parallel.policy"}}},
      {"eval_steps", {{"eval.every_samples"}, false, " It counts samples."}},
      {"save_steps", {{"output.save_every_samples"}, false, " It counts samples."}},
      {"save_total_limit", {{"output.keep_last"}}},
      {"logging_steps", {{"logging.every_steps"}}},
      {"output_dir", {{"output.dir"}}},
      {"resume_from_checkpoint", {{}, false, " A run resumes by itself when output.dir holds its checkpoints."}},
      {"gradient_checkpointing", {{"parallel.recompute"}}},
      {"activation_checkpointing", {{"parallel.recompute"}}},
      {"dtype", {{"precision.compute"}}},
      {"torch_dtype", {{"precision.compute"}}},
      {"mixed_precision", {{"precision.compute"}}},
      {"bf16", {{"precision.compute"}}},
      {"fp16", {{"precision.compute"}}},
      {"fp8", {{"precision.linear"}}},
      {"fsdp", {{"parallel.policy"}}},
      {"sharding_strategy", {{"parallel.policy"}}},
      {"random_seed", {{"train.seed"}}},
  };
  return table;
}

}  // namespace

std::string word_hint(const std::string& word, const std::vector<std::string>& words) {
  static const std::map<std::string, std::vector<std::string>> others = {
      {"bfloat16", {"bf16"}},
      {"torch.bfloat16", {"bf16"}},
      {"float16", {"fp16"}},
      {"half", {"fp16"}},
      {"float32", {"fp32"}},
      {"float", {"fp32"}},
      {"all-linear", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
      {"full_shard", {"full"}},
      {"FULL_SHARD", {"full"}},
      {"shard_grad_op", {"gradients"}},
      {"SHARD_GRAD_OP", {"gradients"}},
      {"no_shard", {"none"}},
      {"NO_SHARD", {"none"}},
      {"adamw_torch", {"adamw"}},
      {"adamw_torch_fused", {"adamw"}},
      {"cosine_with_min_lr", {"cosine"}},
      {"constant_with_warmup", {"constant"}},
      {"warmup_stable_decay", {"wsd"}},
  };
  const auto found = others.find(word);
  if (found == others.end() || std::find(words.begin(), words.end(), found->second.front()) == words.end())
    return did_you_mean(word, words);
  const std::vector<std::string>& ours = found->second;
  return fmt::format(" Did you mean '{}'?", ours.size() == 1 ? ours.front() : "[" + join(ours, ", ") + "]");
}

const Synonym* find_synonym(const std::string& section, const std::string& key) {
  for (const std::string& name : {section + "." + key, key})
    if (const auto found = synonyms().find(name); found != synonyms().end()) return &found->second;
  return nullptr;
}

}  // namespace trireme
